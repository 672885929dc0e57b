"""Whether this process lives (`/healthz`) and whether it can do its work (`/readyz`): for supervisors, proxies and people.

Bare ASGI applications beside the long polls: they need no thread of Django's, so they still answer when all of those are
busy. They say nothing that a stranger may not know.
"""

from __future__ import annotations

import asyncio
import logging

from agents.connections import door
from messaging import store
from messaging.doorbell import doorbell
from messaging.store import Statement

logger = logging.getLogger(__name__)

# 2 s: a database that takes longer for one row does not answer agents either; proxies commonly ask every 5 s or more.
DATABASE_WITHIN_S = 2.0


async def healthz(scope: door.Scope, receive: door.Receive, send: door.Send) -> None:
    """The process turns its event loop. Nothing else is asked, so a database that is away restarts nobody."""
    if await _only_read(scope, send):
        await door.answer(send, 200, {"status": "alive"})


async def readyz(scope: door.Scope, receive: door.Receive, send: door.Send) -> None:
    """200 if calls sent here will be served; 503 while the database does not answer, or once the process is stopping.

    A `deaf` doorbell is told but is no 503: messages are then late by seconds, and none is lost.
    """
    if not await _only_read(scope, send):
        return
    database = "answers" if await _database_answers() else "unavailable"
    status = "draining" if doorbell.draining else "ready" if database == "answers" else "unavailable"
    body = {"status": status, "database": database, "doorbell": doorbell.state, "open_waits": doorbell.waiting}
    await door.answer(send, 200 if status == "ready" else 503, body)


async def _database_answers() -> bool:
    asked = asyncio.ensure_future(store.arun(_one_row()))
    # Not `asyncio.timeout`: that would wait until the driver has taken its query back from a server that does not answer.
    await asyncio.wait({asked}, timeout=DATABASE_WITHIN_S)
    if not asked.done():
        asked.cancel()
        logger.warning("Not ready: the database has not answered within %s s.", DATABASE_WITHIN_S)
        return False
    failure = asked.exception()
    if failure:
        logger.warning("Not ready: the database does not answer: %s", failure)
    return failure is None


def _one_row() -> store.Steps[None]:
    # A table of ours: a database without tables (not migrated yet) is of no use to anybody.
    yield Statement("SELECT 1 FROM stream LIMIT 1")


async def _only_read(scope: door.Scope, send: door.Send) -> bool:
    """Whether the request may be answered; refuses it otherwise."""
    if scope["method"] in {"GET", "HEAD"}:
        return True
    await door.answer(send, 405, None, [(b"allow", b"GET, HEAD")])
    return False
