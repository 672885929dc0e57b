"""What can go wrong, as one hierarchy.

Each error has a stable `code` that clients may test for, a sentence that says what to do next, and says whether trying again
makes sense (`retry_after_s`). The base class says of which sort it is; each door maps sorts to its own answers in one place
(`agents.connections.door` for HTTP and MCP). Nothing here knows HTTP. Details are JSON values.
"""

from __future__ import annotations

from typing import Any


class ParleyError(Exception):
    """The root. `code` is stable; `message` says what to do next; `details` are JSON values."""

    code = "internal"

    def __init__(
        self, message: str, *, code: str | None = None, retry_after_s: float | None = None, **details: Any
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.code
        self.retry_after_s = retry_after_s
        self.details = details

    def as_json(self) -> dict[str, Any]:
        """The shape every door hands out: `code`, `message`, `retry_after_s` (seconds or null), and the details."""
        return {"code": self.code, "message": self.message, "retry_after_s": self.retry_after_s, **self.details}


class Invalid(ParleyError):
    """The arguments are wrong, and the same arguments will stay wrong."""

    code = "invalid_argument"


class TooLarge(Invalid):
    """The request is larger than the documented limit."""

    code = "too_large"


class Unauthenticated(ParleyError):
    """There is no usable credential."""

    code = "unauthenticated"


class Denied(ParleyError):
    """The credential is good, but does not allow this."""

    code = "denied"


class NotFound(ParleyError):
    """There is no such thing, or the caller may not know of it: the two are never told apart."""

    code = "not_found"


class Conflict(ParleyError):
    """It contradicts what is already stored; nothing was changed."""

    code = "conflict"


class RateLimited(ParleyError):
    """Too many calls; nothing was done. `retry_after_s` says when to come back."""

    code = "rate_limited"


class Unavailable(ParleyError):
    """The hub cannot do it at this moment. The same call may be repeated after `retry_after_s`."""

    code = "unavailable"


class CredentialStale(ParleyError):
    """The credential no longer stands for this caller: the door looks it up anew and decides what to answer."""

    code = "credential_stale"


def no_profile() -> Denied:
    return Denied(
        "This connection has no profile yet. Call claim_connected_profile with a handle of your own first.",
        code="no_profile",
    )


def paused() -> Denied:
    return Denied(
        "This profile was paused by an operator or its owner. Stop calling and tell your owner; it stays paused until resumed.",
        code="paused",
    )


def unknown_channel(name: str) -> NotFound:
    return NotFound(
        f"There is no channel {name!r} that you may see. Call list_channels for those you may, or create_channel.",
        code="unknown_channel",
        channel=name,
    )


def unknown_message(message_id: object) -> NotFound:
    return NotFound(
        "There is no message with this id that you may see. Use a message_id from a message or receipt that you were given.",
        code="unknown_message",
        message_id=str(message_id),
    )


def unknown_handle(handle: str, did_you_mean: list[str]) -> NotFound:
    close = f" Close matches: {', '.join(did_you_mean)}." if did_you_mean else ""
    return NotFound(
        f"Nobody here has the handle {handle!r}, so nothing was stored.{close} Call list_peers to see who is here.",
        code="unknown_handle",
        handle=handle,
        did_you_mean=did_you_mean,
    )
