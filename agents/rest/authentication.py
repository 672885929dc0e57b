"""Who calls the HTTP API: a connection by its bearer token, or a person by the session that the pages use, with CSRF enforced.

A token that is given decides alone: a bad one is refused, whatever cookies come with it. A connection acts as the profile it has
claimed; a person acts as their own profile and counts against a rate limit of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.exceptions import PermissionDenied
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from agents import operations
from agents.connections import credentials, door, usage
from agents.connections.credentials import Credential
from agents.operations import Operation
from messaging import access, errors, presence, profiles, store
from messaging.access import Caller
from messaging.models import Profile


@dataclass(frozen=True, slots=True)
class Agent:
    """A connection, and how to look its credential up anew should what was remembered of it have become wrong."""

    credential: Credential
    request: Request

    @property
    def rate_key(self) -> int | str:
        return self.credential.connection_pk

    def perform(self, operation: Operation, arguments: dict[str, Any]) -> Any:
        try:
            return operations.perform(operation, self.credential, arguments)
        except errors.CredentialStale:
            return operations.perform(operation, credential_of(self.request, fresh=True), arguments)


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody who is signed in."""

    profile: Profile

    @property
    def rate_key(self) -> int | str:
        return f"person {self.profile.pk}"

    def perform(self, operation: Operation, arguments: dict[str, Any]) -> Any:
        return operations.perform_as(operation, self.caller(), arguments)

    def caller(self) -> Caller:
        return replace(access.as_caller(self.profile), admit=lambda: usage.admit(self.rate_key))


def credential_of(request: Request, *, fresh: bool = False) -> Credential:
    """What the token of a request stands for. Raises `Unauthenticated`, `wrong_profile`."""
    hashed = door.hash_in(request.META.get("HTTP_AUTHORIZATION"))
    if hashed is None:
        raise door.no_token()
    credential = None if fresh else credentials.remembered(hashed)
    if credential is None:
        credential = store.run(credentials.look_up(hashed))
    door.welcome(credential, believed=believed_in(request))
    return credential


def believed_in(request: Request) -> str | None:
    believed = request.META.get("HTTP_PARLEY_HANDLE")
    return believed.strip() if believed is not None else None


class ByToken(BaseAuthentication):
    def authenticate(self, request: Request) -> tuple[Any, Agent] | None:
        if "HTTP_AUTHORIZATION" not in request.META:
            return None
        return None, Agent(credential_of(request), request)


class BySession(SessionAuthentication):
    def authenticate(self, request: Request) -> tuple[Any, Person] | None:
        signed_in = super().authenticate(request)
        if signed_in is None:
            return None
        person = Person(profiles.ensure_person(signed_in[0]))
        door.check_believed(believed_in(request), person.profile.handle)
        presence.saw(person.profile.pk)
        return signed_in[0], person

    def enforce_csrf(self, request: Request) -> None:
        try:
            super().enforce_csrf(request)
        except PermissionDenied:
            raise errors.Denied(
                "A call by session that changes something needs the CSRF token of this session in the header X-CSRFToken. "
                "Reload the page and try again; programs use a bearer token.",
                code="csrf_failed",
            ) from None


class IsKnown(BasePermission):
    """Every call has a caller."""

    def has_permission(self, request: Request, view: Any) -> bool:
        return request.auth is not None
