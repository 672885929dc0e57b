"""`GET /api/v1/inbox`: the long poll over HTTP, a bare ASGI application like the MCP endpoint, on the same hot path."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

from agents import operations
from agents.connections import door
from agents.connections.credentials import Credential
from agents.connections.door import Receive, Scope, Send
from messaging import errors
from messaging.doorbell import Bell


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers a page of the own inbox; the query takes the arguments of `wait_for_messages`. Bearer tokens only."""
    try:
        door.check_host_and_origin(scope)
        if scope["method"] != "GET":
            error = errors.Invalid(
                "GET waits for messages; POST inbox/acknowledge marks them as done.", code="method_not_allowed"
            )
            await door.answer(send, 405, {"error": error.as_json()}, [(b"allow", b"GET")])
            return
        hashed = door.token_hash(scope)
        if hashed is None:
            raise door.no_token()
        await door.with_credential(scope, hashed, lambda c: wait(c, scope, receive, send))
    except door.ClientGone:
        pass
    except Exception as failure:
        error_ = door.as_error(failure)
        await door.answer(send, door.status_of(error_), {"error": error_.as_json()}, door.error_headers(error_))


async def wait(credential: Credential, scope: Scope, receive: Receive, send: Send) -> None:
    page = await operations.wait(credential, query(scope), Bell(), receive)
    await door.answer(send, 200, page, door.rate_headers(credential))


def query(scope: Scope) -> dict[str, Any]:
    """The arguments in a query string, where everything is text: whole numbers become numbers, the rest stays as it is."""
    found: dict[str, Any] = {}
    for name, value in parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True):
        if name in found:
            raise errors.Invalid(f"`{name[:64]}` is given twice.")
        found[name] = number(value)
    return found


def number(text: str) -> Any:
    if text.removeprefix("-").isascii() and text.removeprefix("-").isdigit() and len(text) < 20:
        return int(text)
    try:
        return float(text) if text.replace(".", "", 1).isascii() and text.replace(".", "", 1).isdigit() else text
    except ValueError:
        return text
