"""Who acts, and what they may see. Nobody gets a channel or a message from a manager; they ask here.

A refusal never tells whether the thing exists. Anyone may read a public channel; a private one is for its members; a direct
conversation for its two profiles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from django.db.models import Q, QuerySet

from messaging import errors, handles
from messaging.models import Channel, Message, Profile
from messaging.store import Statement


@dataclass(frozen=True, slots=True)
class Caller:
    """A profile that acts, as its credential says; nothing the client claims goes into it.

    `guard` yields a row as long as the credential still stands for this profile; it becomes part of the statements that
    write or read pages, so that a revocation acts at once. `admit` raises `RateLimited`; it is called once a send is known to
    be no replay. `count_empty_poll` counts an empty answer and returns how many there were in a row.
    """

    profile_id: int
    inbox_id: int
    handle: str
    kind: str
    owner_id: int
    guard: Statement | None = None
    admit: Callable[[], None] | None = None
    count_empty_poll: Callable[[], int] | None = None


def as_caller(profile: Profile) -> Caller:
    """A profile acting on its own account: a person on the canvas, a command, an admin action."""
    return Caller(profile.pk, profile.inbox_id, profile.handle, profile.kind, profile.owner_id)


def is_direct_of(profile_id: int, *, prefix: str = "") -> Q:
    return Q(**{f"{prefix}kind": "direct"}) & (Q(**{f"{prefix}low": profile_id}) | Q(**{f"{prefix}high": profile_id}))


def may_read(profile_id: int, *, prefix: str = "") -> Q:
    """The condition on channels that this profile may read them. `prefix` leads to the channel, like `channel__`."""
    return (
        Q(**{f"{prefix}kind": "public"})
        | Q(**{f"{prefix}kind": "private", f"{prefix}memberships__profile": profile_id})
        | is_direct_of(profile_id, prefix=prefix)
    )


def readable_channels(by: Caller) -> QuerySet[Channel]:
    return Channel.objects.filter(may_read(by.profile_id)).distinct()


def readable_messages(by: Caller) -> QuerySet[Message]:
    channels = Channel.objects.filter(may_read(by.profile_id)).values("pk")
    return Message.objects.filter(channel__in=channels)


def find_channel(*, by: Caller, name: str) -> Channel:
    """The channel of this name (a leading # is accepted), or the direct conversation with `@handle`. Raises `unknown_channel`."""
    written = name.strip()
    if written.startswith("@"):
        other = Profile.objects.filter(handle=handles.as_addressed(written), released_at=None).first()
        pair = sorted((by.profile_id, other.pk)) if other else [0, 0]
        found = Channel.objects.filter(kind="direct", low=pair[0], high=pair[1]).select_related("stream").first()
    else:
        wanted = channel_name(written)
        found = readable_channels(by).filter(name=wanted).select_related("stream").first()
    if found is None:
        raise errors.unknown_channel(name)
    return found


def find_message(*, by: Caller, message_id: UUID) -> Message:
    """A message that the caller may read. Raises `unknown_message`."""
    found = readable_messages(by).filter(pk=message_id).select_related("channel", "sender").first()
    if found is None:
        raise errors.unknown_message(message_id)
    return found


def channel_name(written: str) -> str:
    """The name meant by what somebody wrote: a leading # and upper case are accepted."""
    return written.strip().removeprefix("#").lower()
