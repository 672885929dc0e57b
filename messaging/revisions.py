"""Editing and retracting. Both are sequenced events: a message of kind `edit` or `retraction` at its own place in the channel
and in the inbox of each recipient of the original, so that a reader who has seen the original learns of it in order. They
lock streams in the same order as a send, and they wake and notify nobody anew.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import Any
from uuid import UUID

from django.utils import timezone

from messaging import access, errors, pages, shapes, store
from messaging.access import Caller
from messaging.delivery import acting, ring_after_commit
from messaging.drafts import MAX_BODY, check_text
from messaging.models import Message, new_id
from messaging.statements import hand_out_sequences, insert_deliveries, insert_message
from messaging.store import Statement

# Others, like questions and decisions, are records that somebody has acted on.
CAN_BE_EDITED = ("message", "notice", "result")


def edit_message(*, by: Caller, message_id: UUID, body: str) -> shapes.HistoryMessage:
    """Replaces the body of an own message; the first text is kept for operators. The same body again changes nothing.

    Raises `unknown_message`, `not_your_message`, `not_editable`, `Invalid`, `paused`.
    """
    check_text("body", body, 1, MAX_BODY)
    return _revise(by, message_id, "edit", body)


def retract_message(*, by: Caller, message_id: UUID) -> shapes.HistoryMessage:
    """Empties an own message everywhere, its edits included; it is not handed out any more. Again is fine.

    Raises `unknown_message`, `not_your_message`, `not_editable`, `paused`.
    """
    return _revise(by, message_id, "retraction", "")


def _revise(by: Caller, message_id: UUID, kind: str, body: str) -> shapes.HistoryMessage:
    message = access.find_message(by=by, message_id=message_id)
    if message.sender_id != by.profile_id:
        raise errors.Denied("Only its sender can change a message.", code="not_your_message")
    if message.kind not in CAN_BE_EDITED:
        raise errors.Conflict(f"A message of kind {message.kind!r} cannot be changed.", code="not_editable")
    if message.retracted_at and kind == "edit":
        raise errors.Conflict("This message was retracted. Send a new one.", code="not_editable")
    if not (message.retracted_at if kind == "retraction" else message.body == body):
        with suppress(_Unchanged):
            ring_after_commit(store.run(store.atomic(_steps(by, message, kind, body, timezone.now()))))
    row = Message.objects.filter(pk=message_id).values_list(*pages.MESSAGE_FIELDS).get()
    return pages.history_message(pages.MessageRow(*row), now=timezone.now())


def _steps(by: Caller, message: Message, kind: str, body: str, now: datetime) -> store.Steps[tuple[int, ...]]:
    if (yield from acting(by)):
        raise errors.paused()
    routes: dict[int, str] = dict((yield _recipients(message.pk)))
    rows = yield hand_out_sequences([message.channel.stream_id, *routes])
    sequences: dict[int, int] = dict(rows)
    # Only now, with the streams locked, is it certain that nobody else has retracted it.
    changed = yield _change(message.pk, kind, body, now)
    if not changed:
        retracted = (yield _retracted(message.pk))[0][0]
        if kind == "edit" and retracted:
            raise errors.Conflict("This message was retracted meanwhile.", code="not_editable")
        raise _Unchanged
    if kind == "retraction":
        yield _empty_edits(message.pk, now)
    event: Any = new_id()
    yield insert_message(
        message_id=event,
        channel_id=message.channel_id,
        channel_sequence=sequences[message.channel.stream_id],
        sender_id=by.profile_id,
        thread_root_id=message.thread_root_id,
        refers_to=message.pk,
        kind=kind,
        body=body,
        now=now,
        expires_at=message.expires_at,
        receipt={},
    )
    if routes:
        yield insert_deliveries(event, [(inbox, sequences[inbox], route) for inbox, route in routes.items()])
    return (message.channel.stream_id, *routes)


def _recipients(message_id: UUID) -> Statement:
    """(inbox, route) of each recipient."""
    return Statement("SELECT inbox_id, route FROM delivery WHERE message_id = %s", [message_id])


class _Unchanged(Exception):
    """Somebody else has done the very same meanwhile: the sequences handed out are given back."""


def _retracted(message_id: UUID) -> Statement:
    return Statement("SELECT retracted_at IS NOT NULL FROM message WHERE id = %s", [message_id])


def _change(message_id: UUID, kind: str, body: str, now: datetime) -> Statement:
    """One row if it was not retracted before, nor has this body already."""
    if kind == "edit":
        return Statement(
            "UPDATE message SET body = %s, edited_at = %s, former_body = COALESCE(former_body, body) "
            "WHERE id = %s AND retracted_at IS NULL AND body <> %s RETURNING 1",
            [body, now, message_id, body],
        )
    return Statement(
        "UPDATE message SET body = '', former_body = NULL, retracted_at = %s WHERE id = %s AND retracted_at IS NULL RETURNING 1",
        [now, message_id],
    )


def _empty_edits(message_id: UUID, now: datetime) -> Statement:
    return Statement(
        "UPDATE message SET body = '', retracted_at = %s WHERE refers_to_id = %s AND kind = 'edit'", [now, message_id]
    )
