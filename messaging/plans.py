"""What a send would do, worked out without writing: which conversation, which thread, who receives it.

`delivery.send` carries a plan out inside its transaction; `preview_send` only shows it, so the two cannot differ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from uuid import UUID

from messaging import addressing, errors, handles, shapes, statements, store
from messaging.access import Caller
from messaging.addressing import Candidate, Routing
from messaging.drafts import Draft


@dataclass(frozen=True, slots=True)
class Conversation:
    """Where a message goes. A direct conversation that has no rows yet has no ids, but its pair."""

    channel_id: int | None
    stream_id: int | None
    pair: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What a send would do: where it goes, in which thread, who receives it."""

    conversation: Conversation
    thread_root_id: UUID | None
    routing: Routing


def plan_send(by: Caller, draft: Draft) -> store.Steps[Plan]:
    if draft.to_handle is not None:
        plan = yield from _plan_direct(by, draft, draft.to_handle)
    else:
        plan = yield from _plan_channel(by, draft)
    if draft.thread_root_id:
        root = yield from _thread_root(by, draft, draft.thread_root_id, plan.conversation)
        plan = replace(plan, thread_root_id=root)
    return plan


def _plan_direct(by: Caller, draft: Draft, handle: str) -> store.Steps[Plan]:
    if handle == by.handle:
        raise errors.Invalid(
            "You cannot send a message to yourself. Name another handle; list_peers shows who is here.",
            code="self_send",
        )
    rows = yield statements.direct_target(handle, by.profile_id)
    if not rows:
        known = yield statements.handles_like([handle])
        raise errors.unknown_handle(handle, addressing.close_matches(handle, [r[0] for r in known]))
    profile_id, inbox_id, known_as, kind, paused, blocks, channel_id, stream_id = rows[0]
    target = Candidate(profile_id, inbox_id, known_as, kind, bool(paused), bool(blocks), may_read=True)
    if draft.kind == "question" and target.kind != "person":
        raise errors.Invalid(
            f"@{handle} is not a person. Ask a person, or write to it with send_agent_message.", code="not_a_person"
        )
    # Nobody else reads a direct conversation, so further names in its body reach nobody.
    others = [h for h in handles.mentioned(draft.body) if h not in {by.handle, target.handle}]
    routing = addressing.route(sender_id=by.profile_id, direct=target, to=(), mentions=(), found={})
    if others:
        text = "Only the two of you read this conversation: those mentioned do not get it. Write to them, or use a channel."
        addressing.hint(routing, "mention_cannot_read", text, others[: handles.MAX_MENTIONS])
    if not routing.recipients:
        addressing.hint(routing, "nobody_notified", f"@{handle} does not get this: see `skipped`.", [])
    pair = (min(by.profile_id, target.profile_id), max(by.profile_id, target.profile_id))
    return Plan(Conversation(channel_id, stream_id, pair), None, routing)


def _plan_channel(by: Caller, draft: Draft) -> store.Steps[Plan]:
    rows = yield statements.named_channel(draft.channel or "", by.profile_id)
    if not rows:
        raise errors.unknown_channel(draft.channel or "")
    channel_id, stream_id, kind, archived = rows[0]
    if archived:
        raise errors.Conflict("This channel is archived: it can be read, but nothing can be added.", code="archived")
    mentions = handles.mentioned(draft.body)
    found: dict[str, Candidate] = {}
    known: list[str] = []
    named = list(dict.fromkeys([*draft.to, *mentions[: handles.MAX_MENTIONS]]))
    if named:
        rows = yield statements.candidates(named, by.profile_id, channel_id)
        for profile_id, inbox_id, handle, profile_kind, paused, blocks, member in rows:
            readable = kind == "public" or bool(member)
            found[handle] = Candidate(profile_id, inbox_id, handle, profile_kind, bool(paused), bool(blocks), readable)
        missing = [h for h in named if h not in found]
        if missing:
            known = [r[0] for r in (yield statements.handles_like(missing))]
    routing = addressing.route(
        sender_id=by.profile_id, direct=None, to=draft.to, mentions=mentions, found=found, known=known
    )
    if not routing.recipients and draft.kind in {"message", "question"}:
        asks = draft.kind == "question"
        members = yield statements.other_members(channel_id, by.profile_id, 5, people_only=asks)
        text = "Nobody is notified: only those who open the channel read this. Name someone "
        text += "as @handle, or ask one person with `to`." if asks else "in `to` or as @handle."
        addressing.hint(routing, "nobody_notified", text, [r[0] for r in members])
    return Plan(Conversation(channel_id, stream_id), None, routing)


def _thread_root(by: Caller, draft: Draft, message_id: UUID, conversation: Conversation) -> store.Steps[UUID]:
    """The root of the thread that a message of this conversation belongs to."""
    rows = yield statements.message_place(message_id, by.profile_id)
    if not rows:
        raise errors.NotFound(
            "There is no thread of this id that you may see. Pass the thread_root_id of a message that you were given, or leave "
            "it out to start a new thread.",
            code="unknown_thread",
        )
    channel_id, name, _, root, low, high = rows[0]
    if channel_id != conversation.channel_id:
        other = high if low == by.handle else low
        there = f"Answer it with send_channel_message with channel {name!r}"
        if not name:
            there = f"Answer it with send_agent_message to @{other}"
        if not name and other == draft.to_handle:
            there = f"It was with a former bearer of the handle @{other}, so start a new thread"
        raise errors.Invalid(
            f"That thread belongs to another conversation. {there}; nothing was stored.", code="thread_elsewhere"
        )
    return store.uid(root)


def preview_send(*, by: Caller, draft: Draft) -> shapes.Preview:
    """Who would receive a message, be skipped and be woken, without sending it. Raises what `send_message` would raise."""
    plan = store.run(plan_send(by, draft.checked()))
    delivered = plan.routing.delivered()
    return {
        "would_deliver": delivered,
        "skipped": plan.routing.skipped,
        "hints": plan.routing.hints,
        "would_wake": [d["handle"] for d in delivered if d["wake"]["state"] != "none"],
        "cost": "0",
    }
