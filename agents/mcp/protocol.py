"""The rules of the MCP wire, without any input or output: revisions, headers, JSON-RPC messages and their refusals.

Two eras are served on one URL (docs/protocol.md). *Modern* (2026-07-28): no handshake; each request carries its revision and the
client's capabilities in `_meta`, mirrored in headers. *Legacy* (2025-03-26 to 2025-11-25): `initialize` first. Neither has
sessions here, so any process can answer any request, also after a restart.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Any

MODERN = "2026-07-28"
LEGACY = ("2025-11-25", "2025-06-18", "2025-03-26")
SUPPORTED = (MODERN, *LEGACY)

META_VERSION = "io.modelcontextprotocol/protocolVersion"
META_CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
META_SERVER = "io.modelcontextprotocol/serverInfo"

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
HEADER_MISMATCH = -32020
UNSUPPORTED_VERSION = -32022
# Of the range that JSON-RPC leaves to servers; `error.data` carries our own stable code.
REFUSED = -32001


class Refusal(Exception):
    """A JSON-RPC error and its HTTP status."""

    def __init__(self, status: int, code: int, message: str, data: Any = None, *, request_id: Any = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.data, self.request_id = status, code, message, data, request_id

    def as_json(self) -> dict[str, Any]:
        error: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.data is not None:
            error["data"] = self.data
        return {"jsonrpc": "2.0", "id": self.request_id, "error": error}


@dataclass(frozen=True, slots=True)
class Request:
    """A JSON-RPC request or notification (`id` is None) that is well formed."""

    id: Any
    method: str
    params: dict[str, Any]

    @property
    def is_notification(self) -> bool:
        return self.id is None

    @property
    def meta(self) -> dict[str, Any] | None:
        meta = self.params.get("_meta")
        return meta if isinstance(meta, dict) else None


def parse(body: bytes) -> Request | None:
    """The message in a body; None for an answer of the client's, which nobody here has asked for. Raises `Refusal`."""
    try:
        message = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise Refusal(400, PARSE_ERROR, "The body is not JSON (RFC 8259) that can be read.") from None
    if isinstance(message, list):
        raise Refusal(400, INVALID_REQUEST, "Batches are not part of MCP any more: send one message in each request.")
    if not isinstance(message, dict):
        raise Refusal(400, INVALID_REQUEST, "A JSON-RPC message is an object.")
    request_id = message.get("id")
    good_id = isinstance(request_id, str | int) and not isinstance(request_id, bool)
    if "id" in message and not good_id:
        raise Refusal(400, INVALID_REQUEST, "`id` is a string or a whole number.")
    if message.get("jsonrpc") != "2.0":
        raise Refusal(400, INVALID_REQUEST, '`jsonrpc` is "2.0".', request_id=request_id)
    if "method" not in message and ("result" in message or "error" in message):
        return None
    method, params = message.get("method"), message.get("params")
    if not isinstance(method, str):
        raise Refusal(400, INVALID_REQUEST, "`method` is a string.", request_id=request_id)
    if params is None:
        params = {}
    if not isinstance(params, dict):
        raise Refusal(400, INVALID_PARAMS, "`params` is an object.", request_id=request_id)
    return Request(request_id, method, params)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def is_modern(request: Request, version_header: str | None) -> bool:
    """Of which era a request is. Raises `Refusal` for a revision that is not served here."""
    claimed = (request.meta or {}).get(META_VERSION)
    if request.method == "initialize" and version_header != MODERN and claimed is None:
        return False  # The version is negotiated in its parameters.
    if claimed is None and request.method != "server/discover":
        if version_header is None or version_header in LEGACY:
            return False
        if version_header != MODERN:
            raise _unsupported(request, version_header)
    return True


def check_modern(
    request: Request, version_header: str | None, method_header: str | None, name_header: str | None
) -> None:
    """The parts of a modern request that must be there and agree (revision 2026-07-28, "Transports"). Raises `Refusal`."""
    if request.is_notification:
        return
    meta = request.meta or {}
    claimed = meta.get(META_VERSION)
    if not isinstance(claimed, str) or not isinstance(meta.get(META_CAPABILITIES), dict):
        text = f"`params._meta` needs {META_VERSION!r} and {META_CAPABILITIES!r}."
        raise Refusal(400, INVALID_PARAMS, text, request_id=request.id)
    if version_header != claimed:
        raise _mismatch(request, "MCP-Protocol-Version", claimed)
    if claimed not in SUPPORTED:
        raise _unsupported(request, claimed)
    if method_header != request.method:
        raise _mismatch(request, "Mcp-Method", request.method)
    if request.method == "tools/call" and decoded(name_header) != request.params.get("name"):
        raise _mismatch(request, "Mcp-Name", str(request.params.get("name")))


def decoded(value: str | None) -> str | None:
    """A header value that may be wrapped as `=?base64?…?=`, for text that a header cannot hold."""
    if value is None or not (value.startswith("=?base64?") and value.endswith("?=")):
        return value
    try:
        return base64.b64decode(value[9:-2], validate=True).decode()
    except (binascii.Error, ValueError):
        return None


def _mismatch(request: Request, name: str, expected: str) -> Refusal:
    text = f"The header {name} must be {expected[:100]!r}, like the body."
    return Refusal(400, HEADER_MISMATCH, text, request_id=request.id)


def _unsupported(request: Request, requested: str) -> Refusal:
    data = {"supported": list(SUPPORTED), "requested": requested}
    return Refusal(400, UNSUPPORTED_VERSION, "This protocol revision is not served here.", data, request_id=request.id)


def negotiated(offered: Any) -> str:
    """The legacy revision that `initialize` agrees on: the client's, if it is served, else the newest of that era."""
    return offered if offered in LEGACY else LEGACY[0]
