"""What a door that bypasses Django has to do itself: Host and Origin, the size of the body, the credential, the answer.

The long polls (MCP, and the inbox over HTTP) are bare ASGI applications, because an open Django request holds a thread. They
share these pieces and nothing else. Whatever is refused is refused as JSON, with a stable code.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

from django.conf import settings
from django.http.request import split_domain_port, validate_host

from agents.connections import credentials, usage
from agents.connections.credentials import Credential
from messaging import errors, handles, presence, store
from messaging.doorbell import Bell

logger = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]
T = TypeVar("T")

# The fitting HTTP status of each sort of error, the most particular first.
STATUS: tuple[tuple[type[errors.ParleyError], int], ...] = (
    (errors.TooLarge, 413),
    (errors.Invalid, 400),
    (errors.Unauthenticated, 401),
    (errors.Denied, 403),
    (errors.NotFound, 404),
    (errors.Conflict, 409),
    (errors.RateLimited, 429),
    (errors.Unavailable, 503),
)


def status_of(error: errors.ParleyError) -> int:
    return next((status for sort, status in STATUS if isinstance(error, sort)), 500)


def as_error(failure: BaseException) -> errors.ParleyError:
    """What a client is told of a failure: a named error as it is, anything else without its inside."""
    if isinstance(failure, errors.CredentialStale):
        return credentials.unauthenticated(
            "token_revoked", "This token no longer stands for a profile. Ask for a new one"
        )
    if isinstance(failure, errors.ParleyError):
        return failure
    translation = store.as_parley_error(failure)
    if isinstance(translation, errors.ParleyError):
        return translation
    logger.error("A call failed unexpectedly.", exc_info=failure)
    return errors.ParleyError(
        "The hub failed to do this; the operator finds the cause in the log. If you sent something, repeat it with the same "
        "idempotency key: nothing is sent twice."
    )


def challenge(error: errors.Unauthenticated) -> str:
    """The `WWW-Authenticate` header of a 401 (RFC 6750)."""
    if error.code == "unauthenticated":
        return 'Bearer realm="parley"'
    return f'Bearer realm="parley", error="invalid_token", error_description="{error.code}"'


def error_headers(error: errors.ParleyError) -> Headers:
    headers: Headers = []
    if isinstance(error, errors.Unauthenticated):
        headers.append((b"www-authenticate", challenge(error).encode()))
    if error.retry_after_s is not None:
        headers.append((b"retry-after", str(math.ceil(error.retry_after_s)).encode()))
    return headers


def header(scope: Scope, name: bytes) -> str | None:
    """The value of a header, without the optional white space around it; None if it is absent. Given twice, it is both."""
    values: list[str] = [value.decode("latin-1").strip() for key, value in scope["headers"] if key.lower() == name]
    return ",".join(values) if values else None


# --- Before anything else -------------------------------------------------------------------------------------------


def check_host_and_origin(scope: Scope) -> None:
    """Refuses a page on the web that talks to this hub from somebody's browser (DNS rebinding). Not a proof of identity."""
    host = header(scope, b"host") or ""
    domain, _ = split_domain_port(host)
    if not validate_host(domain, settings.ALLOWED_HOSTS):
        raise errors.Denied(
            "This hub is not reached under this host name. Use its public address, or add the name to ALLOWED_HOSTS.",
            code="host_refused",
        )
    origin = header(scope, b"origin")
    if origin is None:
        return
    public = urlsplit(settings.PUBLIC_URL)
    if origin not in {f"{public.scheme}://{public.netloc}", f"http://{host}", f"https://{host}"}:
        raise errors.Denied("Requests from pages of another origin are refused.", code="origin_refused")


async def read_body(scope: Scope, receive: Receive) -> bytes:
    """The whole body. Raises `too_large` before it is read, where its length is announced, else as soon as it is."""
    announced = header(scope, b"content-length") or "0"
    if not announced.isdigit() or int(announced) > settings.MAX_REQUEST_BYTES:
        raise _too_large()
    parts: list[bytes] = []
    size = 0
    while True:
        event = await receive()
        if event["type"] != "http.request":
            raise ClientGone
        parts.append(event.get("body", b""))
        size += len(parts[-1])
        if size > settings.MAX_REQUEST_BYTES:
            raise _too_large()
        if not event.get("more_body"):
            return b"".join(parts)


class ClientGone(Exception):
    """The client closed the connection: nobody reads an answer."""


def _too_large() -> errors.TooLarge:
    limit = settings.MAX_REQUEST_BYTES
    return errors.TooLarge(f"A request has at most {limit} bytes; nothing was stored.", limit=limit)


# --- The credential -------------------------------------------------------------------------------------------------


def token_hash(scope: Scope) -> bytes | None:
    """The hash of the bearer token; None without an `Authorization` header. Raises `invalid_token` for another scheme."""
    return hash_in(header(scope, b"authorization"))


def hash_in(authorization: str | None) -> bytes | None:
    """The same for the value of that header."""
    if authorization is None:
        return None
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise credentials.unauthenticated("invalid_token", "This hub takes bearer tokens. Ask your owner for one")
    return credentials.hash_token(token.strip())


def no_token() -> errors.Unauthenticated:
    return credentials.unauthenticated("unauthenticated", "This needs a token. Ask your owner for one")


async def authenticate(scope: Scope, hashed: bytes, *, fresh: bool = False) -> Credential:
    """What the token stands for. Raises `Unauthenticated`, and `wrong_profile` if the client takes itself for somebody else."""
    credential = None if fresh else credentials.remembered(hashed)
    if credential is None:
        credential = await store.arun(credentials.look_up(hashed))
    welcome(credential, believed=header(scope, b"parley-handle"))
    return credential


def welcome(credential: Credential, *, believed: str | None) -> None:
    """A call begins under this credential: refused if it stands for somebody else, else noted as its last use."""
    check_believed(believed, credential.acting.handle if credential.acting else None)
    usage.used(credential.connection_pk, credential.acting.profile_id if credential.acting else None)


def check_believed(believed: str | None, handle: str | None) -> None:
    """Whom the client believes to be (`Parley-Handle`) must be whom its credential stands for: tokens get mixed up.

    A connection that has claimed nothing yet stands for nobody; it has to be able to claim.
    """
    if believed is not None and handle is not None and handles.as_addressed(believed) != handle:
        raise errors.Denied(
            "This credential does not stand for the profile named in Parley-Handle. Nothing was done; use that profile's own.",
            code="wrong_profile",
        )


async def with_credential(scope: Scope, hashed: bytes, work: Callable[[Credential], Awaitable[T]]) -> T:
    """Does work as the token's connection. If what was remembered of it has become wrong, looks it up anew, once."""
    try:
        return await work(await authenticate(scope, hashed))
    except errors.CredentialStale:
        return await work(await authenticate(scope, hashed, fresh=True))


def cancel_key(hashed: bytes, request_id: Any) -> str:
    """The bell that cancels one request of one client. Without sessions a client is known by its token only."""
    named = hashed + json.dumps(request_id).encode()
    return "c" + hashlib.sha256(named).hexdigest()[:32]


# --- Waiting and answering ------------------------------------------------------------------------------------------


@contextmanager
def watching(receive: Receive, bell: Bell) -> Iterator[None]:
    """Inside the block `bell` ends as `gone` when the client closes the connection."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        bell.end("gone")

    task = asyncio.get_running_loop().create_task(watch())
    try:
        yield
    finally:
        task.cancel()


@contextmanager
def waiting(credential: Credential, timeout_s: float) -> Iterator[None]:
    """Inside the block the profile is shown as waiting."""
    acting = credential.acting
    assert acting is not None
    presence.begins_to_wait(acting.profile_id, timeout_s)
    try:
        yield
    finally:
        presence.ends_waiting(acting.profile_id, acting.inbox_id)


def render(value: Any) -> bytes:
    """JSON in UTF-8, not escaped to ASCII: a page holds as much of any script. Half a surrogate pair stays an escape."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def rate_headers(credential: Credential | None) -> Headers:
    return allowance_headers(credential.connection_pk) if credential else []


def allowance_headers(key: int | str) -> Headers:
    """What is left of the calls per minute, by the key under which they are counted."""
    left = usage.allowance(key)
    return [
        (b"x-ratelimit-limit", str(left.limit).encode()),
        (b"x-ratelimit-remaining", str(left.remaining).encode()),
        (b"x-ratelimit-reset", str(left.reset_s).encode()),
    ]


async def answer(send: Send, status: int, value: Any | None, headers: Headers | None = None) -> None:
    """One JSON answer, whole. `None` is an answer without a body."""
    body = b"" if value is None else render(value)
    kind: Headers = [] if value is None else [(b"content-type", b"application/json")]
    fixed: Headers = [(b"content-length", str(len(body)).encode()), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": status, "headers": kind + fixed + (headers or [])})
    await send({"type": "http.response.body", "body": body})
