"""What stands before Django at the addresses of programs: the checks of the other doors, and a promise that errors are JSON.

Django would read a body of any size to the disk first, take a body without a length for an empty one, and answer what fails
outside of a view with an HTML page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from agents.connections import door
from agents.connections.door import Receive, Scope, Send
from agents.rest import answers
from messaging import errors

Application = Callable[[Scope, Receive, Send], Awaitable[None]]

FOR_PROGRAMS = frozenset({"api", "mcp", ".well-known", "register"})


def is_for_programs(path: str) -> bool:
    """Whether programs, not browsers, come to this address."""
    return path.lstrip("/").partition("/")[0] in FOR_PROGRAMS


async def serve(django: Application, scope: Scope, receive: Receive, send: Send) -> None:
    """Lets Django answer a request that passes the checks."""
    try:
        door.check_host_and_origin(scope)
        body = await door.read_body(scope, receive)
    except door.ClientGone:
        return
    except errors.ParleyError as error:
        await answers.refuse(send, error)
        return
    await django(with_length(scope, body), read_again(body), only_json_errors(send))


def with_length(scope: Scope, body: bytes) -> Scope:
    told = {b"content-length", b"transfer-encoding"}
    headers = [(name, value) for name, value in scope["headers"] if name.lower() not in told]
    return {**scope, "headers": [*headers, (b"content-length", str(len(body)).encode())]}


def read_again(body: bytes) -> Receive:
    """What Django reads: the body, and never that the client has gone, as it would stop halfway in what was asked for in full."""
    events = [{"type": "http.request", "body": body, "more_body": False}]
    for_ever = asyncio.Event()

    async def again() -> Any:
        if not events:
            await for_ever.wait()
        return events.pop()

    return again


def only_json_errors(send: Send) -> Send:
    replaced = False

    async def checked(event: Any) -> None:
        nonlocal replaced
        if event["type"] == "http.response.start" and event["status"] >= 400 and not is_json(event):
            replaced = True
            await door.answer(send, event["status"], answers.as_body(_unforeseen(event["status"])))
        elif not replaced:
            await send(event)

    return checked


def is_json(event: Any) -> bool:
    return any(k.lower() == b"content-type" and v.startswith(b"application/json") for k, v in event["headers"])


def _unforeseen(status: int) -> errors.ParleyError:
    """Something failed in front of the views; what it was stands in the log."""
    if status >= 500:
        return errors.ParleyError("The hub failed to do this; the operator finds the cause in the log.")
    sort = errors.NotFound if status == 404 else errors.Invalid
    return sort("This request cannot be served as it is. /api/docs describes what can be.")
