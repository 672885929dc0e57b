"""The one ASGI application, for daphne and uvicorn alike.

The long polls are taken before Django, by applications that hold no thread while they wait (`agents.mcp.wire`,
`agents.rest.inbox`), and so are the questions after this process's health; everything else is Django's, behind a gate where
programs come (`agents.rest.gate`). Background tasks belong to an event loop and start with its first request, because not
every server runs a lifespan.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import cycle

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

from asgiref.sync import ThreadSensitiveContext
from django.core.asgi import get_asgi_application

django_application = get_asgi_application()

from agents.connections.door import Receive, Scope, Send  # noqa: E402
from agents.mcp import wire  # noqa: E402
from agents.rest import gate, inbox  # noqa: E402
from config import health  # noqa: E402
from messaging import presence  # noqa: E402

DOORS = {
    "/mcp": wire.application,
    "/mcp/": wire.application,
    "/api/v1/inbox": inbox.application,
    "/healthz": health.healthz,
    "/readyz": health.readyz,
}


class Threads:
    """The threads in which Django answers. Left alone it starts one for each request, with a database connection of its own."""

    def __init__(self, number: int) -> None:
        made = [ThreadPoolExecutor(max_workers=1, thread_name_prefix="parley-django") for _ in range(number)]
        self._idle = deque(made)
        self._in_turn = cycle(made)

    @contextmanager
    def one(self) -> Iterator[ThreadPoolExecutor]:
        """An idle thread for the block; when none is idle, one that others share."""
        if not self._idle:
            yield next(self._in_turn)
            return
        executor = self._idle.popleft()
        try:
            yield executor
        finally:
            self._idle.append(executor)


# 4: a page or a call of the HTTP API takes a few milliseconds of the interpreter, which more threads would only share.
threads = Threads(4)


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        await _lifespan(receive, send)
        return
    presence.keep_flushing()
    door = DOORS.get(scope["path"]) if scope["type"] == "http" else None
    if door:
        await door(scope, receive, send)
    elif scope["type"] == "http" and gate.is_for_programs(scope["path"]):
        await gate.serve(_django, scope, receive, send)
    elif scope["type"] == "http":
        await _django(scope, receive, send)
    else:
        await send({"type": "websocket.close", "code": 4404})


async def _django(scope: Scope, receive: Receive, send: Send) -> None:
    with threads.one() as executor:
        async with ThreadSensitiveContext(executor=executor):
            await django_application(scope, receive, send)  # type: ignore[arg-type]


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        event = await receive()
        await send({"type": f"{event['type']}.complete"})
        if event["type"] == "lifespan.shutdown":
            return
