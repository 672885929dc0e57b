"""`GET /api/v1/inbox`: the long poll over HTTP, a bare ASGI application like the MCP endpoint, on the same hot path."""

from __future__ import annotations

from agents import operations
from agents.connections import door
from agents.connections.credentials import Credential
from agents.connections.door import Receive, Scope, Send
from agents.rest import answers, arguments
from messaging import errors
from messaging.doorbell import Bell


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers a page of the own inbox; the query takes the arguments of `wait_for_messages`. Bearer tokens only."""
    known: list[Credential] = []

    async def wait(credential: Credential) -> None:
        known[:] = [credential]
        asked = arguments.in_query(scope["query_string"].decode("latin-1"), operations.WAIT.input)
        page = await operations.wait(credential, asked, Bell(), receive)
        await door.answer(send, 200, page, door.rate_headers(credential))

    try:
        door.check_host_and_origin(scope)
        if scope["method"] != "GET":
            error = errors.Invalid(
                "GET waits for messages; POST inbox/acknowledge marks them as done.", code="method_not_allowed"
            )
            await door.answer(send, 405, answers.as_body(error), [(b"allow", b"GET")])
            return
        hashed = door.token_hash(scope)
        if hashed is None:
            raise door.no_token()
        await door.with_credential(scope, hashed, wait)
    except door.ClientGone:
        pass
    except Exception as failure:
        await answers.refuse(send, failure, door.rate_headers(known[0] if known else None))
