"""Tokens and what they stand for: issuing, looking up, claiming a profile, rotating, revoking.

A token is 256 random bits; only its SHA-256 is stored, so nothing that reads the database or a log can use it. A looked-up
credential may be remembered for five seconds, because every statement that writes or reads a page checks the connection's
row itself (`guard`): the memory saves a query, it never decides.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from django.contrib.auth import get_user_model
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from agents.connections import usage
from agents.connections.models import Connection
from messaging import errors, handles, profiles, store
from messaging.access import Caller
from messaging.doorbell import doorbell, stream_key
from messaging.models import Profile
from messaging.store import Statement

PREFIX = "prl_"
SHOWN = 12  # Characters of a token that may be shown: the prefix and eight more, of 43.
REMEMBERED_S = 5.0
MAX_REMEMBERED = 50_000


@dataclass(frozen=True, slots=True)
class Acting:
    """The profile that a connection has claimed."""

    profile_id: int
    public_id: UUID
    inbox_id: int
    handle: str
    kind: str


@dataclass(frozen=True, slots=True)
class Credential:
    """What a token stands for."""

    connection_pk: int
    connection_id: UUID
    name: str
    owner_id: int
    can_write: bool
    expires_at: datetime | None
    acting: Acting | None
    token_hash: bytes = field(repr=False)

    def scopes(self) -> list[str]:
        return ["read", "write"] if self.can_write else ["read"]

    def caller(self, *, admit: Callable[[], None] | None = None) -> ConnectedCaller:
        """The profile as it may act through this connection. Raises `no_profile` before a claim."""
        if self.acting is None:
            raise errors.no_profile()
        a = self.acting
        return ConnectedCaller(
            profile_id=a.profile_id,
            inbox_id=a.inbox_id,
            handle=a.handle,
            kind=a.kind,
            owner_id=self.owner_id,
            guard=guard(self.connection_pk, self.token_hash, a.profile_id),
            admit=admit,
            count_empty_poll=lambda: usage.count_empty_poll(self.connection_pk),
            credential=self,
        )


@dataclass(frozen=True, slots=True)
class ConnectedCaller(Caller):
    """A caller that came through a connection."""

    credential: Credential | None = None


def guard(connection_pk: int, token_hash: bytes, profile_id: int) -> Statement:
    """Yields a row while the token may act as this profile: not rotated, revoked or expired, its owner active."""
    users = get_user_model()._meta.db_table
    return Statement(
        f"SELECT 1 FROM connection k JOIN {users} u ON u.id = k.owner_id "
        "WHERE k.id = %s AND k.token_hash = %s AND k.profile_id = %s AND k.revoked_at IS NULL "
        "AND (k.expires_at IS NULL OR k.expires_at > CURRENT_TIMESTAMP) AND u.is_active",
        [connection_pk, token_hash, profile_id],
    )


# --- Issuing --------------------------------------------------------------------------------------------------------


def hash_token(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def issue_connection(
    *,
    owner: Any,
    name: str,
    handle: str | None = None,
    can_write: bool = True,
    expires_at: datetime | None = None,
) -> tuple[Connection, str]:
    """A new connection and its token, which is shown this once. With `handle` it acts as that profile from the start.

    Raises what `claim_handle` raises, and `invalid_display_name` for the name.
    """
    token = new_token()
    with transaction.atomic():
        profile = profiles.claim_handle(owner=owner, handle=handle)[0] if handle else None
        connection = Connection.objects.create(
            owner=owner,
            profile=profile,
            name=handles.clean_display_name(name),
            can_write=can_write,
            expires_at=expires_at,
            **_of(token),
        )
    return connection, token


def new_token() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def _of(token: str) -> dict[str, Any]:
    return {"token_hash": hash_token(token), "token_prefix": token[:SHOWN]}


def rotate_token(*, connection: Connection) -> str:
    """Gives the connection another token; the former one is worthless at once, also in open waits. The inbox stays."""
    token = new_token()
    forget(bytes(connection.token_hash))
    with transaction.atomic():
        Connection.objects.filter(pk=connection.pk).update(**_of(token))
        profiles.audit("token_rotated", by=connection.owner, profile=connection.profile, connection=connection.name)
    if connection.profile:
        profiles.look_again(connection.profile)
    return token


def revoke_connection(*, connection: Connection, by: Any = None) -> None:
    """Ends a connection for ever and its open waits at once, in every process."""
    with transaction.atomic():
        if Connection.objects.filter(pk=connection.pk, revoked_at=None).update(revoked_at=timezone.now()):
            profiles.audit("connection_revoked", by=by, profile=connection.profile, connection=connection.name)
    forget(bytes(connection.token_hash))
    if connection.profile:
        profiles.look_again(connection.profile)


def claim_profile(*, credential: Credential, handle: str, display_name: str | None = None) -> tuple[Profile, bool]:
    """The connection acts as its owner's profile of this handle from now on; it is made if it is new.

    Raises what `claim_handle` raises; `CredentialStale` if the token was rotated or revoked, or has expired, meanwhile.
    """
    owner = get_user_model().objects.get(pk=credential.owner_id)
    with transaction.atomic():
        profile, created = profiles.claim_handle(owner=owner, handle=handle, display_name=display_name)
        standing = Q(expires_at=None) | Q(expires_at__gt=timezone.now())
        connections = Connection.objects.filter(
            standing,
            pk=credential.connection_pk,
            token_hash=credential.token_hash,
            revoked_at=None,
            owner__is_active=True,
        )
        if not connections.update(profile=profile):
            raise errors.CredentialStale("This token no longer stands.")
        if credential.acting is None or credential.acting.profile_id != profile.pk:
            profiles.audit("claimed", by=owner, profile=profile, connection=credential.name)
    forget(credential.token_hash)
    if credential.acting and credential.acting.profile_id != profile.pk:
        # Waits of this connection on its former inbox end.
        doorbell.ring(stream_key(credential.acting.inbox_id))
    return profile, created


# --- Looking up -----------------------------------------------------------------------------------------------------

_remembered: dict[bytes, tuple[Credential, float]] = {}


def forget(token_hash: bytes) -> None:
    _remembered.pop(token_hash, None)


def remembered(token_hash: bytes, *, clock: Callable[[], float] = time.monotonic) -> Credential | None:
    """A credential looked up in this process within the last five seconds."""
    known = _remembered.get(token_hash)
    return known[0] if known and clock() - known[1] < REMEMBERED_S else None


def look_up(token_hash: bytes, *, clock: Callable[[], float] = time.monotonic) -> store.Steps[Credential]:
    """The credential of a token. Raises `invalid_token`, `token_revoked`, `token_expired`."""
    users = get_user_model()._meta.db_table
    rows = yield Statement(
        "SELECT k.id, k.connection_id, k.name, k.owner_id, k.can_write, k.expires_at, k.revoked_at, u.is_active, "
        "p.id, p.profile_id, p.inbox_id, p.handle, p.kind "
        f"FROM connection k JOIN {users} u ON u.id = k.owner_id "
        "LEFT JOIN profile p ON p.id = k.profile_id AND p.released_at IS NULL WHERE k.token_hash = %s",
        [token_hash],
    )
    forget(token_hash)
    if not rows:
        raise unauthenticated("invalid_token", "This token is not known here. Ask your owner for a new one")
    pk, public_id, name, owner_id, can_write, expires_at, revoked_at, active, *profile = rows[0]
    if revoked_at is not None or not active:
        raise unauthenticated("token_revoked", "This token was revoked. Ask your owner for a new one")
    expires_at = store.utc(expires_at)
    if expires_at is not None and expires_at <= timezone.now():
        raise unauthenticated("token_expired", "This token has expired. Ask your owner for a new one")
    acting = None
    if profile[0] is not None:
        acting = Acting(profile[0], store.uid(profile[1]), profile[2], profile[3], profile[4])
    found = Credential(pk, store.uid(public_id), name, owner_id, bool(can_write), expires_at, acting, token_hash)
    # Without a profile it is asked each time: the claim that gives it one may come to another process.
    if acting is not None:
        if len(_remembered) >= MAX_REMEMBERED:
            _remembered.clear()
        _remembered[token_hash] = (found, clock())
    return found


def unauthenticated(code: str, what: str) -> errors.Unauthenticated:
    return errors.Unauthenticated(
        f"{what} (the start page of this hub says how), and send it as `Authorization: Bearer <token>`.", code=code
    )
