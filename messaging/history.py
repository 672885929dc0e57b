"""Reading back: channels, threads, search, and the rest of a long body. Nothing here changes what is pending in an inbox."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import BooleanField, QuerySet
from django.db.models.expressions import RawSQL
from django.utils import timezone

from messaging import access, errors, pages, shapes, store
from messaging.access import Caller
from messaging.models import Message

MAX_LIMIT = 50
MAX_QUERY = 200
MAX_OFFSET = 1_000  # Who has not found it among the newest thousand should search for something narrower.


def read_channel(
    *,
    by: Caller,
    channel: str,
    after_channel_sequence: int | None = None,
    before_channel_sequence: int | None = None,
    limit: int = 20,
) -> shapes.HistoryPage:
    """Messages of a channel, or of the direct conversation `@handle`, in their order.

    From `after_channel_sequence` on, or those before `before_channel_sequence`; without either, the newest. Raises
    `unknown_channel`, `Invalid`.
    """
    found = access.find_channel(by=by, name=channel)
    messages = Message.objects.filter(channel=found)
    return _page(messages, found.stream.tail, after_channel_sequence, before_channel_sequence, limit)


def read_thread(
    *,
    by: Caller,
    thread_root_id: UUID,
    after_channel_sequence: int | None = None,
    before_channel_sequence: int | None = None,
    limit: int = 20,
) -> shapes.HistoryPage:
    """A thread from its first message on (any message of the thread names it). Raises `unknown_message`, `Invalid`."""
    named = access.find_message(by=by, message_id=thread_root_id)
    messages = Message.objects.filter(thread_root=named.thread_root_id)
    newest = messages.order_by("-channel_sequence").values_list("channel_sequence", flat=True)[:1]
    if after_channel_sequence is None and before_channel_sequence is None:
        after_channel_sequence = 0
    return _page(messages, newest[0], after_channel_sequence, before_channel_sequence, limit)


def _page(
    messages: QuerySet[Message], tail: int, after: int | None, before: int | None, limit: int
) -> shapes.HistoryPage:
    check_limit(limit)
    if after is not None and before is not None:
        raise errors.Invalid("Give `after_channel_sequence` or `before_channel_sequence`, not both.")
    for name, value in (("after_channel_sequence", after), ("before_channel_sequence", before)):
        if value is not None and not 0 <= value < 2**63:
            raise errors.Invalid(f"`{name}` is 0 or more.")
    if after is not None:
        rows = messages.filter(channel_sequence__gt=after).order_by("channel_sequence")
    else:
        rows = messages.order_by("-channel_sequence")
        rows = rows.filter(channel_sequence__lt=before) if before is not None else rows
    # What is read from its end is also cut at its other end, so that the page joins on to what the reader has.
    kept, has_more = pages.fit_page(shown(rows, limit + 1), limit)
    if after is None:
        kept.reverse()
    return {
        "messages": kept,
        "has_more": has_more,
        "after_channel_sequence": kept[-1]["channel_sequence"] if kept else (after or 0),
        "before_channel_sequence": kept[0]["channel_sequence"] if kept else (before or 0),
        "tail_channel_sequence": tail,
    }


def shown(messages: QuerySet[Message], limit: int, offset: int = 0) -> list[shapes.HistoryMessage]:
    """The rows of a query as readers see them."""
    now = timezone.now()
    rows = messages.values_list(*pages.MESSAGE_FIELDS)[offset : offset + limit]
    return [pages.history_message(pages.MessageRow(*row), now=now) for row in rows]


def search_messages(
    *, by: Caller, query: str, channel: str | None = None, limit: int = 20, offset: int = 0
) -> shapes.SearchPage:
    """Messages that contain all words of the query, newest first, among those the caller may read. Raises `Invalid`."""
    check_limit(limit)
    terms = query.replace("\0", " ").split()
    if not terms or len(query) > MAX_QUERY:
        raise errors.Invalid(f"`query` is 1 to {MAX_QUERY} characters with at least one word.", limit=MAX_QUERY)
    if not 0 <= offset <= MAX_OFFSET:
        raise errors.Invalid(f"`offset` is 0 to {MAX_OFFSET}. Search for something narrower.", limit=MAX_OFFSET)
    found = access.readable_messages(by).filter(contains_all(terms), retracted_at=None).exclude(kind=Message.Kind.EDIT)
    if channel is not None:
        found = found.filter(channel=access.find_channel(by=by, name=channel))
    kept, has_more = pages.fit_page(shown(found.order_by("-created_at", "-id"), limit + 1, offset), limit)
    return {"messages": kept, "has_more": has_more, "offset": offset + len(kept)}


def contains_all(terms: list[str]) -> Any:
    """The condition that a body contains all these words. They are quoted: no word is an operator of the search language."""
    if store.on_postgres():
        sql = "to_tsvector('simple', message.body) @@ plainto_tsquery('simple', %s)"
        return RawSQL(sql, [" ".join(terms)], output_field=BooleanField())  # noqa: S611 - the text is a parameter
    quoted = " ".join('"' + term.replace('"', '""') + '"' for term in terms)
    sql = (
        "(message.channel_id << 40 | message.channel_sequence) IN "
        "(SELECT rowid FROM message_search WHERE message_search MATCH %s)"
    )
    return RawSQL(sql, [quoted], output_field=BooleanField())  # noqa: S611 - the text is a parameter


def read_message(*, by: Caller, message_id: UUID, offset: int = 0) -> shapes.Body:
    """A body from a character on, as much as fits into a page. Raises `unknown_message`, `Invalid`."""
    message = access.find_message(by=by, message_id=message_id)
    total = len(message.body)
    if not 0 <= offset <= total:
        raise errors.Invalid(f"`offset` is 0 to {total}, the characters of this body.", limit=total)
    rest = message.body[offset:]
    room = pages.MAX_PAGE_BYTES - pages.ENVELOPE_BYTES
    part = rest[: pages.longest_prefix(rest, lambda text: pages.size(text) <= room)]
    return {
        "message_id": str(message.pk),
        "body": part,
        "offset": offset,
        "total": total,
        "has_more": offset + len(part) < total,
    }


def check_limit(limit: int) -> None:
    if not 1 <= limit <= MAX_LIMIT:
        raise errors.Invalid(f"`limit` is 1 to {MAX_LIMIT}.", limit=MAX_LIMIT)
