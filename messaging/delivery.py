"""Send and wait: the two halves of one argument, on one screen.

*A message is true when its transaction commits.* `send` locks the streams it touches (one inbox for each recipient, the
channel) until the commit, so whoever has read sequence N of a stream never later meets an N-1 it has not seen. Then it rings.
*A waiter listens before it reads*: what commits after its read will ring. It marks what it is about to hand out as offered,
and takes that back when the client is seen to be gone before the answer is written; only a cursor or `acknowledge` make it
acknowledged. So a message is lost at no point: stored, offered again until acknowledged, in order.

Both are steps for the executors in `store`; their SQL stands in `statements`; who receives a message is worked out in `plans`.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from messaging import batches, errors, pages, shapes, statements, store
from messaging.access import Caller
from messaging.doorbell import LOOK_AGAIN_S, Bell, doorbell, stream_key
from messaging.drafts import Draft, check_key
from messaging.models import new_id
from messaging.plans import Conversation, Plan, plan_send

# 50 s: Claude Code drops a call without response headers at 60 s, proxies often do too.
MAX_WAIT_S = 50
MAX_PAGE = 50
# Above this many waits in a process, deadlines are spread, so that they do not all expire in one instant.
SPREAD_ABOVE = 500
SPREAD_FROM_S = 20
SPREAD = 0.04
# An agent that got this many empty answers in a row is told to stop if nobody waits for it, and it for nobody.
PATIENCE_POLLS = 3
PATIENCE = timedelta(hours=1)


# --- Sending --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stored:
    """A message in its transaction: its receipt, and the streams to ring after the commit."""

    receipt: Any
    streams: tuple[int, ...] = ()


def send_message(*, by: Caller, draft: Draft, key: str, now: datetime | None = None) -> shapes.Receipt:
    """Stores a message once and says who gets it; for callers on Django's connection.

    The same key with the same content returns the first receipt, with `replayed`. Raises `idempotency_key_reused`,
    `unknown_handle`, `unknown_channel`, `thread_elsewhere`, `unknown_thread`, `self_send`, `paused`, `rate_limited`,
    `CredentialStale`, and `Invalid` for arguments; then nothing is stored.
    """
    stored = store.run(store.atomic(send(by=by, draft=draft, key=key, now=now or timezone.now())))
    ring_after_commit(stored.streams)
    receipt: shapes.Receipt = stored.receipt
    return receipt


async def asend_message(*, by: Caller, draft: Draft, key: str) -> shapes.Receipt:
    """The same for the doors: it may share its transaction with other sends of this moment."""
    # Two sends under one key do not: the second has to find the first one's receipt.
    stored: Stored = await batches.writer().write(
        lambda: send(by=by, draft=draft, key=key, now=timezone.now()), alone=(by.profile_id, key)
    )
    doorbell.ring(*map(stream_key, stored.streams))
    # Those who were rung read while the sender is answered, not after it.
    await asyncio.sleep(0)
    receipt: shapes.Receipt = stored.receipt
    return receipt


def ring_after_commit(streams: Iterable[int]) -> None:
    """Rings once the surrounding transaction, if there is one, has committed: nothing is announced before."""
    keys = [stream_key(s) for s in streams]
    transaction.on_commit(lambda: doorbell.ring(*keys))


def send(*, by: Caller, draft: Draft, key: str, now: datetime) -> store.Steps[Stored]:
    """The steps of a send, inside a transaction."""
    check_key(key)
    draft = draft.checked()
    paused = yield from acting(by)
    message_id = new_id()
    taken = yield statements.take_key(by.profile_id, key, draft.content_hash(), message_id, now)
    if not taken:
        return (yield from _replay(by, key, draft))
    try:
        # Only now: a replay is answered whatever has changed since.
        if paused:
            raise errors.paused()
        if by.admit:
            by.admit()
        plan = yield from plan_send(by, draft)
    except errors.ParleyError:
        yield statements.give_key_back(message_id)
        raise
    return (yield from place(by, draft, plan, message_id, now))


def acting(by: Caller) -> store.Steps[bool]:
    """Whether the caller is paused. Raises `CredentialStale` when it may not act as this profile any longer."""
    state = yield statements.sender_state(by.profile_id, by.guard)
    if not state or not state[0][0]:
        raise errors.CredentialStale("This credential no longer stands for this profile.")
    return bool(state[0][1])


def _replay(by: Caller, key: str, draft: Draft) -> store.Steps[Stored]:
    first = yield statements.sent_under_key(by.profile_id, key)
    if not first or bytes(first[0][0]) != draft.content_hash():
        raise errors.Conflict(
            "This idempotency key was already used for another message; nothing was stored. Use a new key for a new message, "
            "and repeat all arguments unchanged when you retry.",
            code="idempotency_key_reused",
        )
    receipt = first[0][1]
    return Stored({**(json.loads(receipt) if isinstance(receipt, str) else receipt), "replayed": True})


def place(by: Caller, draft: Draft, plan: Plan, message_id: UUID, now: datetime) -> store.Steps[Stored]:
    """Stores a planned message at its places. From `hand_out_sequences` on, the streams are locked until the commit."""
    conversation = plan.conversation
    if conversation.channel_id is None:
        conversation = yield from _open_direct(conversation, now)
    assert conversation.channel_id is not None
    assert conversation.stream_id is not None
    inboxes = [candidate.inbox_id for candidate, _ in plan.routing.recipients]
    rows = yield statements.hand_out_sequences([conversation.stream_id, *inboxes])
    sequences: dict[int, int] = dict(rows)
    unread = 0
    if plan.thread_root_id or conversation.pair:
        value = plan.thread_root_id or conversation.channel_id
        column = "thread_root_id" if plan.thread_root_id else "channel_id"
        unread = (yield statements.unread_by(by.profile_id, by.inbox_id, column=column, value=value))[0][0]
    root = plan.thread_root_id or message_id
    receipt: dict[str, Any] = {
        "message_id": str(message_id),
        "thread_root_id": str(root),
        "channel_sequence": sequences[conversation.stream_id],
        "created_at": shapes.iso_time(now),
        "replayed": False,
        "delivered": plan.routing.delivered(),
        "skipped": plan.routing.skipped,
        "unread_in_thread": unread,
        "hints": plan.routing.hints,
    }
    if draft.kind == "question":
        receipt["question_id"] = str(message_id)
    yield statements.insert_message(
        message_id=message_id,
        channel_id=conversation.channel_id,
        channel_sequence=sequences[conversation.stream_id],
        sender_id=by.profile_id,
        thread_root_id=root,
        refers_to=draft.refers_to,
        kind=draft.kind,
        body=draft.body,
        now=now,
        expires_at=now + timedelta(seconds=draft.expires_in_s) if draft.expires_in_s else None,
        receipt=receipt,
    )
    if plan.routing.recipients:
        places = [(c.inbox_id, sequences[c.inbox_id], by_route) for c, by_route in plan.routing.recipients]
        yield statements.insert_deliveries(message_id, places)
    if draft.kind == "question":
        # Those whom a question to a channel mentions are told of it; any person there may answer.
        asked = plan.routing.recipients[0][0].profile_id if plan.routing.recipients and draft.to_handle else None
        yield statements.insert_question(message_id, draft.options, asked)
    return Stored(receipt, (conversation.stream_id, *inboxes))


def _open_direct(conversation: Conversation, now: datetime) -> store.Steps[Conversation]:
    """The rows of a direct conversation that had none; somebody else may make them at the same instant."""
    assert conversation.pair is not None
    low, high = conversation.pair
    stream_id = (yield statements.new_stream())[0][0]
    made = yield statements.new_direct_channel(stream_id, low, high, now)
    if made:
        return replace(conversation, channel_id=made[0][0], stream_id=stream_id)
    yield statements.drop_stream(stream_id)
    rows = yield statements.direct_channel(low, high)
    return replace(conversation, channel_id=rows[0][0], stream_id=rows[0][1])


# --- Waiting --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Offer:
    """What was marked as offered for one answer, so that it can be taken back if the answer is not written."""

    inbox_id: int
    offers: Mapping[int, int]
    cursor: int
    cursor_before: int | None


@dataclass(frozen=True, slots=True)
class Look:
    """One look at an inbox: the page, where counting began, and what was offered."""

    page: shapes.Page
    began_after: int
    offer: Offer | None = None


async def wait_for_messages(
    *,
    by: Caller,
    bell: Bell,
    after_sequence: int | None = None,
    timeout_s: float = MAX_WAIT_S,
    limit: int = 20,
    clock: Callable[[], float] = time.monotonic,
) -> Look:
    """The next messages of an inbox, or an empty page after `timeout_s` seconds or when `bell.ended`.

    `bell` must have been listening on the inbox's stream before this call. With `after_sequence`, what was offered up to it
    is acknowledged, and the page begins there; without it, after what was last offered to this profile. The caller writes
    the answer, or gives the offer back with `take_back` if the client was gone before. Raises `cursor_ahead`,
    `cursor_expired`, `paused`, `CredentialStale`, `Invalid`, `Unavailable`.
    """
    check_wait(after_sequence, timeout_s, limit)
    deadline = clock() + _spread(timeout_s)
    after = after_sequence
    while True:
        # Before reading: what commits after the read then rings.
        bell.clear()
        looked = await store.arun(
            look(by=by, after=after, cursor_given=after_sequence is not None, limit=limit, bell=bell)
        )
        rest = deadline - clock()
        if looked.page["messages"] or bell.ended or rest <= 0:
            break
        # Parallel waits without cursor begin at the same place, whichever of them moves it first.
        after = looked.began_after
        await bell.wait(min(rest, LOOK_AGAIN_S))
    if not looked.page["messages"]:
        looked.page["advice"] = await _advise(by, bell)
    return looked


def check_wait(after_sequence: int | None, timeout_s: float, limit: int) -> None:
    if after_sequence is not None and not 0 <= after_sequence < 2**63:
        raise errors.Invalid("`after_sequence` is the last sequence you processed: 0 or more.")
    if not 0 <= timeout_s <= MAX_WAIT_S:
        raise errors.Invalid(f"`timeout_s` is 0 to {MAX_WAIT_S} seconds.", limit=MAX_WAIT_S)
    if not 1 <= limit <= MAX_PAGE:
        raise errors.Invalid(f"`limit` is 1 to {MAX_PAGE} messages.", limit=MAX_PAGE)


def _spread(timeout_s: float) -> float:
    if timeout_s < SPREAD_FROM_S or doorbell.waiting <= SPREAD_ABOVE:
        return timeout_s
    return timeout_s * (1 - SPREAD * random.random())  # noqa: S311 - spreads load, guards nothing


def look(*, by: Caller, after: int | None, cursor_given: bool, limit: int, bell: Bell) -> store.Steps[Look]:
    """One look: reads without writing; only where there is something, it acknowledges and offers."""
    now = timezone.now()
    rows = yield statements.inbox_page(
        inbox_id=by.inbox_id, profile_id=by.profile_id, after=after, limit=limit + 1, guard=by.guard, now=now
    )
    if not rows or not rows[0][0]:
        raise errors.CredentialStale("This credential no longer stands for this profile.")
    _, paused, tail, offered_through, pruned_through, to_acknowledge = rows[0][:6]
    if paused:
        raise errors.paused()
    began_after = offered_through if after is None else after
    check_cursor(began_after if cursor_given else None, tail, pruned_through)
    if cursor_given and to_acknowledge and after is not None:
        yield from store.atomic(store.one(statements.acknowledge_through(by.inbox_id, after, now)))
    found = [row[6:] for row in rows if row[6] is not None]
    messages = [
        pages.inbox_message(pages.MessageRow(*row[4:]), sequence=row[1], route=row[2], redelivered=row[3] > 0, now=now)
        for row in found
    ]
    kept, has_more = pages.fit_page(messages, limit)
    page: shapes.Page = {
        "messages": kept,
        # The highest sequence examined: beyond the last message there may be some that are skipped.
        "after_sequence": kept[-1]["sequence"] if has_more else max(tail, began_after),
        "has_more": has_more,
        "tail_sequence": tail,
        "oldest_sequence": pruned_through + 1,
        "advice": None,
    }
    # Whoever has gone or cancelled meanwhile is offered nothing.
    if not kept or bell.ended in {"gone", "cancelled"}:
        return Look(
            {**page, "messages": [], "has_more": bool(kept), "after_sequence": began_after} if kept else page,
            began_after,
        )
    return (
        yield from store.atomic(_offer(by, page, {row[1]: row[0] for row in found}, began_after, offered_through, now))
    )


def _offer(
    by: Caller, page: shapes.Page, deliveries: Mapping[int, int], began_after: int, offered_through: int, now: datetime
) -> store.Steps[Look]:
    ids = [deliveries[m["sequence"]] for m in page["messages"]]
    marked = yield statements.mark_offered(ids, now)
    left = {delivery for delivery, _, _ in marked}
    messages = [m for m in page["messages"] if deliveries[m["sequence"]] in left]
    cursor = page["after_sequence"]
    moved = yield statements.move_cursor(by.inbox_id, cursor)
    # An earlier offer has been made, whatever becomes of this one.
    offers = {delivery: count for delivery, count, is_first in marked if is_first}
    offer = Offer(by.inbox_id, offers, cursor, offered_through if moved else None)
    return Look({**page, "messages": messages}, began_after, offer)


def check_cursor(after: int | None, tail: int, pruned_through: int) -> None:
    """A cursor must lie within what the inbox still knows."""
    if after is None:
        return
    if after > tail:
        raise errors.Conflict(
            f"This cursor is ahead of the inbox: its last sequence is {tail}. The hub was restored from a backup, or the cursor "
            "is from another inbox. Continue with after_sequence=tail_sequence, or without after_sequence.",
            code="cursor_ahead",
            tail_sequence=tail,
        )
    if after < pruned_through:
        raise errors.Conflict(
            f"This cursor is older than what is kept: the oldest sequence is {pruned_through + 1}. Reset it once: call with "
            f"after_sequence={pruned_through}, which gives everything still kept.",
            code="cursor_expired",
            oldest_sequence=pruned_through + 1,
        )


async def take_back(looked: Look, *, by: Caller, bell: Bell) -> Look:
    """The answer will not be written: its messages are not offered after all, and will come again, marked as a repeat.

    Returns the empty look that stands instead.
    """
    offer = looked.offer
    if offer is None:
        return looked

    def steps() -> store.Steps[None]:
        for delivery, count in offer.offers.items():
            yield statements.unmark_offered(delivery, expected_offers=count)
        if offer.cursor_before is not None:
            yield statements.move_cursor_back(offer.inbox_id, expected=offer.cursor, to=offer.cursor_before)

    await store.arun(store.atomic(steps()))
    doorbell.ring(stream_key(offer.inbox_id))
    empty: shapes.Page = {**looked.page, "messages": [], "has_more": True, "after_sequence": looked.began_after}
    return Look({**empty, "advice": await _advise(by, bell)}, looked.began_after)


async def _advise(by: Caller, bell: Bell) -> shapes.Advice:
    polls = by.count_empty_poll() if by.count_empty_poll else 0
    if bell.ended == "draining":
        text = "The hub is restarting. Call wait_for_messages again at once; nothing is lost."
        return {"action": "come_back", "message": text, "empty_polls": polls}
    if polls >= PATIENCE_POLLS:
        since = timezone.now() - PATIENCE
        owed, owes = (await store.arun(store.one(statements.open_exchanges(by.profile_id, by.inbox_id, since))))[0]
        if not owed and not owes:
            text = (
                f"{polls} empty answers in a row, and nobody waits for you or owes you an answer. Stop waiting and end your "
                "turn, unless your owner asked you to stay; what is sent to you is kept until you come back."
            )
            return {"action": "stop", "message": text, "empty_polls": polls}
    text = (
        "Nothing has come yet. Call wait_for_messages again if you expect an answer; no pause between calls is needed."
    )
    return {"action": "wait", "message": text, "empty_polls": polls}
