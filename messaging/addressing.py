"""Who receives a message, by which route, and who does not and why: a pure rule, without database.

Three routes, the strongest first: `direct` (a direct conversation), `to` (named by the sender), `mention` (an @handle in the
body). Nobody receives a message twice, and nobody their own. A name in `to` that cannot be served is *skipped* with a reason;
one in the body is only a *hint*, because a text may contain any word.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from messaging import shapes
from messaging.handles import MAX_MENTIONS
from messaging.wakes import decide_wake

# How many close handles a refusal names.
MAX_SUGGESTIONS = 3


@dataclass(frozen=True, slots=True)
class Candidate:
    """A live profile that the sender named, as far as the rule needs it."""

    profile_id: int
    inbox_id: int
    handle: str
    kind: str
    paused: bool
    blocks_sender: bool
    may_read: bool


@dataclass(slots=True)
class Routing:
    """The outcome: recipients with their route, and what the sender is told about the others."""

    recipients: list[tuple[Candidate, shapes.Route]] = field(default_factory=list)
    skipped: list[shapes.Skipped] = field(default_factory=list)
    hints: list[shapes.Hint] = field(default_factory=list)

    def delivered(self) -> list[shapes.Delivered]:
        return [
            {"handle": c.handle, "route": route, "state": "stored", "wake": decide_wake()}
            for c, route in self.recipients
        ]


def refusal(candidate: Candidate, sender_id: int) -> shapes.SkipReason | None:
    """Why this candidate does not receive the message, if so."""
    if candidate.profile_id == sender_id:
        return "self"
    if not candidate.may_read:
        return "not_a_member"
    if candidate.paused:
        return "paused"
    if candidate.blocks_sender:
        return "blocked"
    return None


def route(
    *,
    sender_id: int,
    direct: Candidate | None,
    to: Sequence[str],
    mentions: Sequence[str],
    found: Mapping[str, Candidate],
    known: Iterable[str] = (),
) -> Routing:
    """Decides for one message. `found` maps handles to live profiles; `known` are handles to suggest from."""
    routing = Routing()
    suggestions = list(known)

    def receive(candidate: Candidate, by: shapes.Route) -> None:
        if all(candidate.inbox_id != c.inbox_id for c, _ in routing.recipients):
            routing.recipients.append((candidate, by))

    def skip(handle: str, reason: shapes.SkipReason) -> None:
        close = close_matches(handle, suggestions) if reason == "unknown_handle" else []
        routing.skipped.append({"handle": handle, "reason": reason, "did_you_mean": close})

    if direct:
        reason = refusal(direct, sender_id)
        if reason:
            skip(direct.handle, reason)
        else:
            receive(direct, "direct")
    for handle in dict.fromkeys(to):
        candidate = found.get(handle)
        reason = refusal(candidate, sender_id) if candidate else "unknown_handle"
        if candidate and not reason:
            receive(candidate, "to")
        elif reason:
            skip(handle, reason)

    unresolved, cannot_read = [], []
    for handle in mentions[:MAX_MENTIONS]:
        candidate = found.get(handle)
        if not candidate:
            unresolved.append(handle)
        elif candidate.profile_id == sender_id:
            continue
        elif refusal(candidate, sender_id):
            if all(candidate.handle != s["handle"] for s in routing.skipped):
                cannot_read.append(handle)
        else:
            receive(candidate, "mention")
    if unresolved:
        close = dict.fromkeys(c for h in unresolved for c in close_matches(h, suggestions))
        meant = f" Close matches: {', '.join(close)}." if close else ""
        hint(routing, "unresolved_mention", f"Nobody has the handle {_at(unresolved)}.{meant}", unresolved)
    if cannot_read:
        text = f"Mentioned, but not reached in this conversation: {_at(cannot_read)} (not a member, paused, or blocks you)."
        hint(routing, "mention_cannot_read", text, cannot_read)
    if len(mentions) > MAX_MENTIONS:
        text = f"Only the first {MAX_MENTIONS} mentions were looked up. Name the others in a further message."
        hint(routing, "too_many_mentions", text, list(mentions[MAX_MENTIONS:]))
    return routing


def hint(routing: Routing, code: Any, message: str, handles: list[str]) -> None:
    routing.hints.append({"code": code, "message": message, "handles": handles})


def close_matches(handle: str, known: Iterable[str]) -> list[str]:
    """The handles that a mistyped one may have meant, the closest first."""
    return difflib.get_close_matches(handle, list(known), n=MAX_SUGGESTIONS, cutoff=0.6)


def _at(handles: Iterable[str]) -> str:
    return ", ".join(f"@{h}" for h in handles)
