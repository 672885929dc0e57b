"""How clients of each revision of MCP speak to `/mcp`: what they put into headers and `_meta`, and the first request of each."""

from __future__ import annotations

from typing import Any

from tests.hub import Address, Answer

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
