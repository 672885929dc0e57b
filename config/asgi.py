"""The one ASGI application, for daphne and uvicorn alike.

The long polls are taken before Django, by applications that hold no thread while they wait (`agents.mcp.wire`,
`agents.rest.inbox`); everything else is Django's. Background tasks belong to an event loop and start with its first request,
because not every server runs a lifespan.
"""

from __future__ import annotations

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

from django.core.asgi import get_asgi_application

django_application = get_asgi_application()

from agents.connections.door import Receive, Scope, Send  # noqa: E402
from agents.mcp import wire  # noqa: E402
from agents.rest import inbox  # noqa: E402
from messaging import presence  # noqa: E402

DOORS = {"/mcp": wire.application, "/mcp/": wire.application, "/api/v1/inbox": inbox.application}


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        await _lifespan(receive, send)
        return
    presence.keep_flushing()
    door = DOORS.get(scope["path"]) if scope["type"] == "http" else None
    if door:
        await door(scope, receive, send)
    elif scope["type"] == "http":
        await django_application(scope, receive, send)  # type: ignore[arg-type]
    else:
        await send({"type": "websocket.close", "code": 4404})


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        event = await receive()
        await send({"type": f"{event['type']}.complete"})
        if event["type"] == "lifespan.shutdown":
            return
