"""The smallest client of `/mcp`: one JSON-RPC request at a time on one connection, with nothing but the standard library.

A call falls into two halves, `begin` and `finish`, so that the demo can write a message, look at its clock, and read many
connections in the order in which they are answered.
"""

from __future__ import annotations

import http.client
import json
from selectors import EVENT_READ, DefaultSelector
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

# 60 s: a wait takes 50 s at most; what takes longer than this hangs.
PATIENCE_S = 60


class Refused(Exception):
    """The hub refused a call. `error` is what it said: `code`, `message` and details."""

    def __init__(self, error: dict[str, Any], status: int) -> None:
        super().__init__(f"{error.get('code')}: {error.get('message')}")
        self.code = str(error.get("code"))
        self.status = status


class Client:
    """One agent's connection, kept alive between its calls."""

    def __init__(self, url: str, token: str) -> None:
        address = urlsplit(url)
        self.path = f"{address.path.rstrip('/')}/mcp"
        self.connection = _connection(address)
        self.headers = {**_HEADERS, "Authorization": f"Bearer {token}"}
        self.calls = 0

    def call(self, tool: str, **arguments: Any) -> Any:
        """What the tool returned. Raises `Refused`."""
        self.begin(tool, **arguments)
        return self.finish()

    def begin(self, tool: str, **arguments: Any) -> None:
        """Writes a call, whole."""
        if self.connection.sock and _has_ended(self.connection.sock):
            self.connection.close()  # The next line opens it anew: servers and proxies close what was idle for a while.
        self.calls += 1
        request = _request(self.calls, "tools/call", {"name": tool, "arguments": arguments})
        self.connection.request("POST", self.path, request, self.headers)

    def finish(self) -> Any:
        """Reads the answer of the call begun, whole. Raises `Refused`."""
        answer = self.connection.getresponse()
        message = json.loads(answer.read())
        if "error" in message:
            error = message["error"]
            raise Refused(error.get("data") or error, answer.status)
        result = message["result"]
        if result["isError"]:
            raise Refused(result["structuredContent"], answer.status)
        return result["structuredContent"]

    def fileno(self) -> int:
        """For `selectors`: readable once the answer begins to come."""
        return int(self.connection.sock.fileno())

    def close(self) -> None:
        self.connection.close()


def is_parley(url: str) -> bool:
    """Whether a hub of this kind answers at this address."""
    address = urlsplit(url)
    connection = _connection(address, timeout_s=5)
    try:
        request = _request(1, "initialize", {"protocolVersion": "2025-06-18", "capabilities": {}})
        connection.request("POST", f"{address.path.rstrip('/')}/mcp", request, _HEADERS)
        answer = json.loads(connection.getresponse().read())
        return bool(answer["result"]["serverInfo"]["name"] == "parley")
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
        return False
    finally:
        connection.close()


_HEADERS = {
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
    "MCP-Protocol-Version": "2025-06-18",
}


def _connection(address: SplitResult, timeout_s: float = PATIENCE_S) -> http.client.HTTPConnection:
    kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
    return kind(address.hostname or "", address.port, timeout=timeout_s)


def _has_ended(sock: FileDescriptorLike) -> bool:
    """Whether the other side has closed a connection on which no answer is due."""
    with DefaultSelector() as selector:
        selector.register(sock, EVENT_READ)
        return bool(selector.select(timeout=0))


def _request(number: int, method: str, params: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode()
