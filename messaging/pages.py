"""From rows to pages: what a message looks like to a reader, and how much of it fits into one answer.

Real clients hide or cut an answer above about 48,000 characters, without a word to the model; so a page stays under 36,000
bytes of JSON and says that there is more. A body that alone exceeds a page is cut at a character, and says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from messaging import shapes, store

# Codex cuts above 48,000 characters, Claude Code above 50,000 (docs/protocol.md); a quarter is kept for their own framing.
MAX_PAGE_BYTES = 36_000
# What a page carries besides its messages: cursors, advice.
ENVELOPE_BYTES = 1_000

M = TypeVar("M", shapes.Message, shapes.HistoryMessage)


class MessageRow(NamedTuple):
    """The columns that a reader sees of a message, as `MESSAGE_COLUMNS` selects them."""

    id: Any
    kind: Any
    body: str
    thread_root_id: Any
    refers_to_id: Any
    channel_sequence: int
    created_at: Any
    expires_at: Any
    edited_at: Any
    retracted_at: Any
    sender_handle: str
    sender_kind: Any
    sender_display_name: str
    sender_released_at: Any
    channel_name: str | None
    channel_kind: Any


MESSAGE_COLUMNS = """m.id, m.kind, m.body, m.thread_root_id, m.refers_to_id, m.channel_sequence, m.created_at, m.expires_at,
    m.edited_at, m.retracted_at, author.handle, author.kind, author.display_name, author.released_at, c.name, c.kind"""
# The same for the ORM.
MESSAGE_FIELDS = (
    "id", "kind", "body", "thread_root_id", "refers_to_id", "channel_sequence", "created_at", "expires_at", "edited_at",
    "retracted_at", "sender__handle", "sender__kind", "sender__display_name", "sender__released_at", "channel__name",
    "channel__kind",
)  # fmt: skip


def _sender(row: MessageRow) -> shapes.Sender:
    return {
        "handle": row.sender_handle,
        "kind": row.sender_kind,
        "verified": row.sender_released_at is None,
        "display_name": row.sender_display_name or row.sender_handle,
    }


def _channel(row: MessageRow) -> shapes.ChannelRef | None:
    return {"name": row.channel_name, "kind": row.channel_kind} if row.channel_name else None


def age_s(created_at: datetime, now: datetime) -> float:
    return round(max(0.0, (now - created_at).total_seconds()), 1)


def inbox_message(row: MessageRow, *, sequence: int, route: Any, redelivered: bool, now: datetime) -> shapes.Message:
    created_at = store.utc(row.created_at)
    assert created_at is not None
    return {
        "message_id": str(store.uid(row.id)),
        "sequence": sequence,
        "sender": _sender(row),
        "route": route,
        "channel": _channel(row),
        "channel_sequence": row.channel_sequence,
        "thread_root_id": str(store.uid(row.thread_root_id)),
        "kind": row.kind,
        "refers_to": str(store.uid(row.refers_to_id)) if row.refers_to_id else None,
        "body": row.body,
        "body_cut": None,
        "created_at": shapes.iso_time(created_at),
        "age_s": age_s(created_at, now),
        "expires_at": shapes.iso(store.utc(row.expires_at)),
        "redelivered": redelivered,
    }


def history_message(row: MessageRow, *, now: datetime) -> shapes.HistoryMessage:
    created_at = store.utc(row.created_at)
    assert created_at is not None
    return {
        "message_id": str(store.uid(row.id)),
        "channel": _channel(row),
        "channel_sequence": row.channel_sequence,
        "sender": _sender(row),
        "thread_root_id": str(store.uid(row.thread_root_id)),
        "kind": row.kind,
        "refers_to": str(store.uid(row.refers_to_id)) if row.refers_to_id else None,
        "body": row.body,
        "body_cut": None,
        "created_at": shapes.iso_time(created_at),
        "age_s": age_s(created_at, now),
        "edited_at": shapes.iso(store.utc(row.edited_at)),
        "retracted_at": shapes.iso(store.utc(row.retracted_at)),
    }


def size(value: Any) -> int:
    """Bytes of a value as JSON in UTF-8, with the blanks of the default rendering: the larger of the usual two."""
    return len(json.dumps(value, ensure_ascii=False).encode())


def fit(messages: Sequence[M]) -> list[M]:
    """As many of the first messages as one page holds: at least one, which is cut when it does not fit alone."""
    budget = MAX_PAGE_BYTES - ENVELOPE_BYTES
    kept: list[M] = []
    for message in messages:
        needed = size(message) + 2
        if needed > budget:
            if not kept:
                kept.append(_cut(message, budget))
            break
        kept.append(message)
        budget -= needed
    return kept


def fit_page(messages: Sequence[M], limit: int) -> tuple[list[M], bool]:
    """The messages of one page, and whether there are more. Expects one message more than `limit`, if there is one."""
    kept = fit(messages[:limit])
    return kept, len(kept) < len(messages)


def _cut(message: M, budget: int) -> M:
    body = message["body"]
    cut: M = {**message, "body": "", "body_cut": {"shown": len(body), "total": len(body)}}
    room = budget - size(cut) - 2
    shown = longest_prefix(body, lambda part: size(part) - 2 <= room)
    cut["body"] = body[:shown]
    cut["body_cut"] = {"shown": shown, "total": len(body)}
    return cut


def longest_prefix(body: str, fits: Callable[[str], bool]) -> int:
    """How many characters of a text fit, by halving."""
    low, high = 0, len(body)
    while low < high:
        middle = (low + high + 1) // 2
        if fits(body[:middle]):
            low = middle
        else:
            high = middle - 1
    return low
