"""When a profile last called, and whether one of its waits is open: gathered in memory, written every few seconds.

An idle poll writes nothing by itself. What is lost when a process dies is some seconds of presence, never a message. A lease
(`waiting_until`) runs out by itself, so that a dead agent does not stay "waiting". Other modules that count per call
(`agents.connections`) gather the same way: they give their own `flush` to `flushers`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from weakref import WeakKeyDictionary

from django.utils import timezone

from messaging import shapes, store
from messaging.doorbell import doorbell, stream_key
from messaging.store import Json, Statement

logger = logging.getLogger(__name__)

FLUSH_EVERY_S = 5.0
ACTIVE_FOR = timedelta(minutes=5)

_lock = threading.Lock()
_seen: dict[int, datetime] = {}
_waiting: dict[int, datetime | None] = {}


def saw(profile_id: int) -> None:
    """The profile called by itself just now."""
    with _lock:
        _seen[profile_id] = timezone.now()


def begins_to_wait(profile_id: int, timeout_s: float) -> None:
    with _lock:
        _waiting[profile_id] = timezone.now() + timedelta(seconds=timeout_s)


def ends_waiting(profile_id: int, inbox_id: int) -> None:
    """A wait has ended; the lease ends with the last one here."""
    if not doorbell.waiters(stream_key(inbox_id)):
        with _lock:
            _waiting[profile_id] = None


def flush() -> None:
    """Writes what was gathered, in one statement."""
    with _lock:
        if not _seen and not _waiting:
            return
        seen, waiting = dict(_seen), dict(_waiting)
        _seen.clear()
        _waiting.clear()
    rows = [
        {
            "id": profile_id,
            "seen": store.as_text(seen.get(profile_id)),
            "until": store.as_text(waiting.get(profile_id)),
            "keep": profile_id not in waiting,
        }
        for profile_id in {*seen, *waiting}
    ]
    store.run(store.one(_write(rows)))


def _write(rows: list[dict[str, Any]]) -> Statement:
    return Statement(
        "UPDATE presence SET last_seen_at = COALESCE(v.seen, last_seen_at), "
        "waiting_until = CASE WHEN v.keep THEN waiting_until ELSE v.until END FROM "
        f"{store.records(id='bigint', seen='timestamptz', until='timestamptz', keep='boolean')} WHERE profile_id = v.id",
        [Json(rows)],
    )


flushers: list[Callable[[], None]] = [flush]
_flushing: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[None]] = WeakKeyDictionary()


def keep_flushing() -> None:
    """Starts the writer of this event loop, once."""
    loop = asyncio.get_running_loop()
    if loop not in _flushing:
        _flushing[loop] = loop.create_task(_flush_forever(), name="parley-presence")


async def _flush_forever() -> None:
    while True:
        await asyncio.sleep(FLUSH_EVERY_S)
        for write in flushers:
            try:
                await store.in_thread(write)
            except Exception:
                logger.warning("Presence could not be written; it is a few seconds late.", exc_info=True)


def describe(
    *, profile_id: int, inbox_id: int, last_seen_at: datetime | None, waiting_until: datetime | None
) -> tuple[shapes.Presence, bool]:
    """Presence as readers see it, and whether the profile waits now: from the row, and from what this process knows since."""
    now = timezone.now()
    with _lock:
        last_seen_at = _seen.get(profile_id, last_seen_at)
        waiting_until = _waiting.get(profile_id, waiting_until)
    waiting = doorbell.waiters(stream_key(inbox_id)) > 0 or (waiting_until is not None and waiting_until > now)
    active = last_seen_at is not None and now - last_seen_at < ACTIVE_FOR
    presence: shapes.Presence = {
        "state": "waiting" if waiting else "active" if active else "away",
        "last_seen_at": shapes.iso(last_seen_at),
    }
    return presence, waiting
