"""What connections use: calls per minute (limited), last use and empty polls (counted, and written every few seconds)."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.utils import timezone
from limits import RateLimitItemPerMinute
from limits.strategies import FixedWindowRateLimiter

from agents.connections.windows import Windows
from messaging import errors, presence, store
from messaging.store import Json, Statement

_limiter = FixedWindowRateLimiter(Windows())
_lock = threading.Lock()
_used: dict[int, Any] = {}
_polls: dict[int, int] = {}
_in_a_row: dict[int, int] = {}


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a connection may still do in this minute: calls in all, calls left, seconds until the next minute."""

    limit: int
    remaining: int
    reset_s: int


def _item() -> RateLimitItemPerMinute:
    return RateLimitItemPerMinute(settings.RATE_LIMIT_PER_MINUTE)


def admit(key: int | str) -> None:
    """Counts a call of a connection (by its primary key) or of whoever else a door names.

    Raises `rate_limited` above the limit; such a call does nothing and may be repeated unchanged.
    """
    if not _limiter.hit(_item(), str(key)):
        wait_s = allowance(key).reset_s
        raise errors.RateLimited(
            f"More than {settings.RATE_LIMIT_PER_MINUTE} calls in a minute. Nothing was done; repeat the same "
            f"call in {wait_s} s.",
            retry_after_s=wait_s,
            limit=settings.RATE_LIMIT_PER_MINUTE,
        )


def allowance(key: int | str) -> Allowance:
    stats = _limiter.get_window_stats(_item(), str(key))
    return Allowance(
        settings.RATE_LIMIT_PER_MINUTE, max(0, stats.remaining), max(1, round(stats.reset_time - time.time()))
    )


def used(connection_pk: int, profile_id: int | None) -> None:
    """The connection made a call just now."""
    with _lock:
        _used[connection_pk] = timezone.now()
    if profile_id is not None:
        presence.saw(profile_id)


def count_empty_poll(connection_pk: int) -> int:
    """Counts an empty answer; returns how many there were in a row in this process."""
    with _lock:
        _polls[connection_pk] = _polls.get(connection_pk, 0) + 1
        _in_a_row[connection_pk] = _in_a_row.get(connection_pk, 0) + 1
        return _in_a_row[connection_pk]


def got_messages(connection_pk: int) -> None:
    """An answer was not empty: the row of empty polls ends."""
    with _lock:
        _in_a_row.pop(connection_pk, None)


def flush() -> None:
    """Writes last use and counts of empty polls, in one statement."""
    with _lock:
        if not _used and not _polls:
            return
        used_at, polls = dict(_used), dict(_polls)
        _used.clear()
        _polls.clear()
    rows = [{"id": pk, "used": store.as_text(used_at.get(pk)), "polls": polls.get(pk, 0)} for pk in {*used_at, *polls}]
    store.run(store.one(_write(rows)))


def _write(rows: list[dict[str, Any]]) -> Statement:
    return Statement(
        "UPDATE connection SET last_used_at = COALESCE(v.used, last_used_at), empty_polls = empty_polls + v.polls FROM "
        f"{store.records(id='bigint', used='timestamptz', polls='bigint')} WHERE connection.id = v.id",
        [Json(rows)],
    )
