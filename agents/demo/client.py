"""The smallest client of `/mcp`: one JSON-RPC request at a time on one kept-alive connection, written and read as plain bytes.

The demo measures the hub, so its client must cost next to nothing: the standard library's parser of answers alone would add a
fifth of a millisecond. A call falls into two halves, `begin` and `finish`, so that a message can be written and many connections
be read in the order in which they are answered; `written_at` and `read_at` are when the bytes went and were there.
"""

from __future__ import annotations

import http.client
import json
import time
from contextlib import suppress
from selectors import EVENT_READ, DefaultSelector
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

# 60 s: a wait takes 50 s at most; what takes longer than this hangs.
PATIENCE_S = 60

HEADERS = {
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
    "MCP-Protocol-Version": "2025-06-18",
}


class Refused(Exception):
    """The hub refused a call. `code` and the text are what it said."""

    def __init__(self, error: dict[str, Any], status: int) -> None:
        super().__init__(f"{error.get('code')}: {error.get('message')}")
        self.code = str(error.get("code"))
        self.status = status


class Client:
    """One agent's connection."""

    def __init__(self, url: str, token: str) -> None:
        address = urlsplit(url)
        headers = {"Host": address.netloc, "Authorization": f"Bearer {token}", **HEADERS}
        lines = [f"POST {_path(address)} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        self.head = "\r\n".join([*lines, "Content-Length: "]).encode()
        # It connects, through TLS where the address says so; the rest goes past it.
        self.connection = _connection(address, PATIENCE_S)
        self.calls = 0
        self.written_at = self.read_at = 0.0

    def call(self, tool: str, **arguments: Any) -> Any:
        """What the tool returned. Raises `Refused`."""
        self.begin(tool, **arguments)
        return self.finish()

    def begin(self, tool: str, **arguments: Any) -> None:
        """Writes a call, whole."""
        self.calls += 1
        body = _request(self.calls, "tools/call", {"name": tool, "arguments": arguments})
        request = b"%b%d\r\n\r\n%b" % (self.head, len(body), body)
        if self.connection.sock and _has_ended(self.connection.sock):
            self.connection.close()  # Servers and proxies close what was idle for a while.
        if self.connection.sock is None:
            self.connection.connect()
        self.written_at = time.perf_counter()
        self.connection.sock.sendall(request)

    def finish(self) -> Any:
        """Reads the answer of the call begun, whole. Raises `Refused`."""
        status, body = self._read()
        self.read_at = time.perf_counter()
        message = json.loads(body)
        if "error" in message:
            error = message["error"]
            raise Refused(error.get("data") or error, status)
        result = message["result"]
        if result["isError"]:
            raise Refused(result["structuredContent"], status)
        return result["structuredContent"]

    def _read(self) -> tuple[int, bytes]:
        """Status and body of an answer that says how long it is, as each of the hub's does."""
        received = b""
        while (head_ends := received.find(b"\r\n\r\n")) < 0:
            received += self._some()
        status, *headers = received[:head_ends].decode("latin-1").split("\r\n")
        named = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in headers)}
        whole = head_ends + 4 + int(named["content-length"])
        while len(received) < whole:
            received += self._some()
        if named.get("connection", "").lower() == "close":
            self.connection.close()
        return int(status.split()[1]), received[head_ends + 4 :]

    def _some(self) -> bytes:
        some: bytes = self.connection.sock.recv(65_536)
        if not some:
            raise ConnectionResetError("The hub closed the connection without an answer.")
        return some

    def fileno(self) -> int:
        """For `selectors`: readable once the answer begins to come."""
        return int(self.connection.sock.fileno())

    def hang_up(self) -> None:
        """Ends a call that another thread is in, for both sides."""
        with suppress(AttributeError, OSError):  # It may have no connection just now.
            self.connection.sock.shutdown(2)  # Both directions.

    def close(self) -> None:
        self.connection.close()


def is_parley(url: str) -> bool:
    """Whether a hub of this kind answers at this address."""
    address = urlsplit(url)
    connection = _connection(address, timeout_s=5)
    try:
        request = _request(1, "initialize", {"protocolVersion": "2025-06-18", "capabilities": {}})
        connection.request("POST", _path(address), request, HEADERS)
        answer = json.loads(connection.getresponse().read())
        return bool(answer["result"]["serverInfo"]["name"] == "parley")
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
        return False
    finally:
        connection.close()


def _path(address: SplitResult) -> str:
    return f"{address.path.rstrip('/')}/mcp"


def _connection(address: SplitResult, timeout_s: float) -> http.client.HTTPConnection:
    kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
    return kind(address.hostname or "", address.port, timeout=timeout_s)


def _request(number: int, method: str, params: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode()


def _has_ended(sock: FileDescriptorLike) -> bool:
    """Whether the other side has closed a connection on which no answer is due."""
    with DefaultSelector() as selector:
        selector.register(sock, EVENT_READ)
        return bool(selector.select(timeout=0))
