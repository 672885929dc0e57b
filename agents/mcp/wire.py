"""The MCP endpoint: a bare ASGI application beside Django, so that a wait holds neither a thread nor a database connection.

Checks come in this order, each with its own refusal: Host and Origin, method and size, JSON, revision and headers, unknown
method, credential, tool. Anyone may list the tools; calling one needs a token, and a token that is present but bad is refused
whatever the method. What a tool refuses is a tool result with `isError`, so that the model reads what to do next.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from agents import operations
from agents.connections import door
from agents.connections.credentials import Credential
from agents.connections.door import Headers, Receive, Scope, Send
from agents.mcp import protocol
from agents.mcp.mcp import registry
from agents.mcp.protocol import Refusal, Request
from messaging import errors
from messaging.doorbell import Bell, doorbell

logger = logging.getLogger(__name__)


def _version() -> str:
    try:
        return version("parley")
    except PackageNotFoundError:
        return "0.1.0"


SERVER = {"name": "parley", "title": "Parley", "version": _version()}
CAPABILITIES: dict[str, Any] = {"tools": {}}
# The tools change only with a release: five minutes spare clients a call and are soon over after one.
TTL_MS = 300_000
CACHE = {"ttlMs": TTL_MS, "cacheScope": "public"}


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Serves `/mcp`."""
    with suppress(door.ClientGone):
        await Exchange(scope, receive, send).serve()


class Exchange:
    """One HTTP request and its answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope, self.receive, self.send = scope, receive, send
        self.request_id: Any = None
        self.modern = False

    async def serve(self) -> None:
        try:
            await self._serve()
        except Refusal as refusal:
            await door.answer(self.send, refusal.status, refusal.as_json())
        except door.ClientGone:
            raise
        except Exception as failure:
            await self.refuse(door.as_error(failure))

    async def _serve(self) -> None:
        door.check_host_and_origin(self.scope)
        if self.scope["method"] != "POST":
            error = errors.Invalid(
                "This endpoint takes POST: it opens no streams and keeps no sessions.", code="method_not_allowed"
            )
            await self.refuse(error, status=405, headers=[(b"allow", b"POST")])
            return
        content_type = (door.header(self.scope, b"content-type") or "").partition(";")[0].strip().lower()
        if content_type != "application/json":
            error = errors.Invalid("The body must be `Content-Type: application/json`.", code="unsupported_media_type")
            await self.refuse(error, status=415)
            return
        request = protocol.parse(await door.read_body(self.scope, self.receive))
        if request is None:
            await door.answer(self.send, 202, None)
            return
        self.request_id = request.id
        header = door.header(self.scope, b"mcp-protocol-version")
        self.modern = protocol.is_modern(request, header)
        if self.modern:
            method, name = (door.header(self.scope, h) for h in (b"mcp-method", b"mcp-name"))
            protocol.check_modern(request, header, method, name)
        await self._dispatch(request)

    async def _dispatch(self, request: Request) -> None:
        handlers: dict[str, Callable[[Request], Awaitable[None]]] = {
            "tools/list": self.list_tools,
            "tools/call": self.call_tool,
        }
        if self.modern:
            handlers["server/discover"] = self.discover
        else:
            handlers |= {"initialize": self.initialize, "ping": self.ping}
        hashed = door.token_hash(self.scope)
        if request.is_notification:
            await self._notified(request, hashed)
            return
        handler = handlers.get(request.method)
        if handler is None:
            text = f"There is no method {request.method[:100]!r} here."
            raise Refusal(404 if self.modern else 200, protocol.METHOD_NOT_FOUND, text, request_id=request.id)
        if hashed is None and request.method == "tools/call":
            raise door.no_token()
        if hashed is not None and request.method != "tools/call":
            await door.authenticate(self.scope, hashed)
        await handler(request)

    async def _notified(self, request: Request, hashed: bytes | None) -> None:
        if hashed is not None:
            await door.authenticate(self.scope, hashed)
            if request.method == "notifications/cancelled":
                doorbell.ring(door.cancel_key(hashed, request.params.get("requestId")))
        await door.answer(self.send, 202, None)

    # --- Methods ----------------------------------------------------------------------------------------------------

    async def discover(self, request: Request) -> None:
        instructions = registry.instructions
        await self.result(
            {
                "supportedVersions": list(protocol.SUPPORTED),
                "capabilities": CAPABILITIES,
                "instructions": instructions,
                **CACHE,
            }
        )

    async def initialize(self, request: Request) -> None:
        await self.result(
            {
                "protocolVersion": protocol.negotiated(request.params.get("protocolVersion")),
                "capabilities": CAPABILITIES,
                "serverInfo": SERVER,
                "instructions": registry.instructions,
            }
        )

    async def ping(self, request: Request) -> None:
        await self.result({})

    async def list_tools(self, request: Request) -> None:
        tools = [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in await registry.list_tools()]
        await self.result({"tools": tools, **(CACHE if self.modern else {})})

    async def call_tool(self, request: Request) -> None:
        name, arguments = request.params.get("name"), request.params.get("arguments")
        operation = operations.BY_NAME.get(name) if isinstance(name, str) else None
        hashed = door.token_hash(self.scope)
        assert hashed is not None
        if operation is None or not isinstance(arguments, dict | None):
            # A bad token is refused before a bad call; a good call is authenticated where it is done.
            await door.authenticate(self.scope, hashed)
            text = f"There is no tool {str(name)[:100]!r}. tools/list names those there are."
            text = "`arguments` is an object." if operation else text
            raise Refusal(200, protocol.INVALID_PARAMS, text, request_id=request.id)
        if operation is operations.WAIT:
            # Listening for the cancellation begins before anything is awaited, so that none can come too early.
            with doorbell.cancellable(door.cancel_key(hashed, request.id)) as bell:
                await self._tool(hashed, lambda c: self.wait(c, arguments or {}, bell))
        else:
            await self._tool(hashed, lambda c: self.perform(operation, c, arguments or {}))

    async def _tool(self, hashed: bytes, work: Callable[[Credential], Awaitable[None]]) -> None:
        seen: list[Credential] = []

        async def do(credential: Credential) -> None:
            seen[:] = [credential]
            await work(credential)

        try:
            await door.with_credential(self.scope, hashed, do)
        except (errors.Unauthenticated, errors.CredentialStale, door.ClientGone):
            raise
        except Exception as failure:
            error = door.as_error(failure)
            if not seen or isinstance(error, errors.Unavailable):
                raise error from failure
            await self.tool_result(error.as_json(), seen[0], is_error=True)

    async def perform(self, operation: operations.Operation, credential: Credential, arguments: dict[str, Any]) -> None:
        await self.tool_result(await operations.aperform(operation, credential, arguments), credential)

    async def wait(self, credential: Credential, arguments: dict[str, Any], bell: Bell) -> None:
        page = await operations.wait(credential, arguments, bell, self.receive)
        await self.tool_result(page, credential)

    # --- Answers ----------------------------------------------------------------------------------------------------

    async def result(self, result: dict[str, Any], headers: Headers | None = None) -> None:
        if self.modern:
            result = {**result, "resultType": "complete", "_meta": {protocol.META_SERVER: SERVER}}
        await door.answer(self.send, 200, {"jsonrpc": "2.0", "id": self.request_id, "result": result}, headers)

    async def tool_result(self, value: Any, credential: Credential, *, is_error: bool = False) -> None:
        """Structured and text content are the same JSON: some clients show the one, some the other."""
        content = [{"type": "text", "text": door.render(value).decode()}]
        result = {"content": content, "structuredContent": value, "isError": is_error}
        await self.result(result, door.rate_headers(credential))

    async def refuse(
        self, error: errors.ParleyError, *, status: int | None = None, headers: Headers | None = None
    ) -> None:
        refusal = Refusal(
            status or door.status_of(error),
            protocol.REFUSED,
            error.message,
            error.as_json(),
            request_id=self.request_id,
        )
        await door.answer(self.send, refusal.status, refusal.as_json(), door.error_headers(error) + (headers or []))
