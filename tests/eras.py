"""How clients of each revision of MCP speak to `/mcp`: what they put into headers and `_meta`, and the first request of each."""

from __future__ import annotations

import http.client
import json
from typing import Any

from tests.hub import PATIENCE_S, Address, Answer, McpAgent

MODERN = "2026-07-28"
LEGACY = ("2025-11-25", "2025-06-18", "2025-03-26")
ERAS = (MODERN, *LEGACY)

VERSION = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
CLIENT = "io.modelcontextprotocol/clientInfo"

BOTH_TYPES = "application/json, text/event-stream"


def meta(version: str = MODERN) -> dict[str, Any]:
    """What a modern request carries in `params._meta`."""
    return {VERSION: version, CAPABILITIES: {}, CLIENT: {"name": "test", "version": "1"}}


def message(era: str, method: str, params: dict[str, Any] | None = None, *, request_id: Any = 1) -> dict[str, Any]:
    """A request as its body."""
    more = {"_meta": meta()} if era == MODERN else {}
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": {**(params or {}), **more}}


def headers(era: str, method: str, name: str | None = None, token: str | None = None) -> dict[str, str]:
    """The headers that belong to it. `name` is that of the tool called."""
    all_headers = {"Accept": BOTH_TYPES, "MCP-Protocol-Version": era}
    if era == MODERN:
        all_headers |= {"Mcp-Method": method} | ({"Mcp-Name": name} if name else {})
    return all_headers | ({"Authorization": f"Bearer {token}"} if token else {})


def ask(
    hub: Address, era: str, method: str, params: dict[str, Any] | None = None, *, token: str | None = None, **more: Any
) -> Answer:
    """One request as a client of that revision sends it. `more`: request_id, headers (a header of value None is left out)."""
    body = message(era, method, params, request_id=more.get("request_id", 1))
    name = (params or {}).get("name") if method == "tools/call" else None
    sent = headers(era, method, name, token) | more.get("headers", {})
    return hub.request("POST", "/mcp", body, {k: v for k, v in sent.items() if v is not None})


def call(hub: Address, era: str, token: str, tool: str, **arguments: Any) -> Any:
    """What a tool returned, to a client of that revision."""
    answer = ask(hub, era, "tools/call", {"name": tool, "arguments": arguments}, token=token)
    assert answer.status == 200, answer.body
    result = answer.json["result"]
    assert not result["isError"], result
    return result["structuredContent"]


def begin(hub: Address, era: str, token: str | None = None) -> dict[str, Any]:
    """The first request of a client of that revision, and the notification that follows it in the legacy era."""
    if era == MODERN:
        result: dict[str, Any] = ask(hub, era, "server/discover", token=token).json["result"]
        return result
    offer = {"protocolVersion": era, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    answer = ask(hub, era, "initialize", offer, token=token, headers={"MCP-Protocol-Version": None})
    note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert hub.request("POST", "/mcp", note, headers(era, "notifications/initialized", token=token)).status == 202
    begun: dict[str, Any] = answer.json["result"]
    return begun


class OpenCall:
    """A tool call on a connection of its own, whose answer is read later or never."""

    def __init__(
        self,
        hub: Address,
        token: str,
        tool: str,
        arguments: Any = None,
        *,
        era: str = LEGACY[0],
        request_id: Any = 1,
        patience_s: float = PATIENCE_S,
    ) -> None:
        body = message(era, "tools/call", {"name": tool, "arguments": arguments or {}}, request_id=request_id)
        sent = headers(era, "tools/call", tool, token) | {"Content-Type": "application/json"}
        self.connection = http.client.HTTPConnection("127.0.0.1", hub.port, timeout=patience_s)
        self.connection.request("POST", "/mcp", json.dumps(body), sent)

    def answer(self) -> Answer:
        """The whole answer; raises `TimeoutError` when it does not come in time."""
        got = self.connection.getresponse()
        whole = Answer(got.status, {k.lower(): v for k, v in got.getheaders()}, got.read())
        self.connection.close()
        return whole

    def result(self) -> Any:
        """What the tool returned."""
        return McpAgent.result_of(self.answer())

    def drop(self) -> None:
        """Hangs up."""
        self.connection.close()


def cancel(hub: Address, token: str | None, request_id: Any, era: str = LEGACY[0]) -> Answer:
    """Says that a request is not wanted any more."""
    note = {
        "jsonrpc": "2.0",
        "method": "notifications/cancelled",
        "params": {"requestId": request_id, "reason": "test"},
    }
    return hub.request("POST", "/mcp", note, headers(era, "notifications/cancelled", token=token))
