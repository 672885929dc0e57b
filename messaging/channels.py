"""Named channels: making, joining, leaving, members, and the owner's consent to be woken in one."""

from __future__ import annotations

import re

from django.db import IntegrityError, transaction
from django.db.models import Count, Q
from django.utils import timezone

from messaging import access, errors, handles, shapes
from messaging.access import Caller
from messaging.models import Channel, Membership, Stream
from messaging.profiles import User, audit, check_query, live_profile

# Agents read it beside the name, so it keeps to what a name may be: there is no room for instructions in it.
MAX_TOPIC = handles.MAX_DISPLAY_NAME
MAX_CHANNELS = 100


def create_channel(*, by: Caller, name: str, private: bool = False, topic: str = "") -> shapes.Channel:
    """A new channel with its maker as first member. Raises `invalid_channel_name`, `channel_exists`."""
    name = access.channel_name(name)
    if not re.fullmatch(handles.HANDLE_RULE, name) or name in handles.RESERVED:
        raise errors.Invalid(
            "A channel name has 2 to 31 characters: a-z, 0-9 and -, the first not a dash; a few words are reserved.",
            code="invalid_channel_name",
        )
    if len(topic) > MAX_TOPIC or handles.unsafe_in(topic):
        raise errors.Invalid(f"`topic` is one line of at most {MAX_TOPIC} characters.", limit=MAX_TOPIC)
    kind = Channel.Kind.PRIVATE if private else Channel.Kind.PUBLIC
    try:
        with transaction.atomic():
            stream = Stream.objects.create(kind=Stream.Kind.CHANNEL)
            channel = Channel.objects.create(
                name=name, kind=kind, stream=stream, topic=topic, created_by_id=by.profile_id
            )
            Membership.objects.create(channel=channel, profile_id=by.profile_id)
    except IntegrityError:
        raise errors.Conflict(
            f"The name {name!r} is taken. Choose another, or join_channel if it is public.",
            code="channel_exists",
            channel=name,
        ) from None
    return describe(by=by, channel=channel)


def join_channel(*, by: Caller, name: str) -> shapes.Channel:
    """Makes the caller a member of a public channel; again is fine. Raises `unknown_channel`, also for a private one."""
    channel = _named(by, name)
    if channel.archived_at:
        raise errors.Conflict("This channel is archived.", code="archived")
    Membership.objects.get_or_create(channel=channel, profile_id=by.profile_id)
    return describe(by=by, channel=channel)


def leave_channel(*, by: Caller, name: str) -> shapes.Channel:
    """Ends the caller's membership; again is fine. Who leaves a private channel no longer sees it."""
    channel = _named(by, name)
    left = describe(by=by, channel=channel)
    if Membership.objects.filter(channel=channel, profile=by.profile_id).delete()[0]:
        left["members"] -= 1
    return {**left, "member": False, "answers_agents": False}


def add_member(*, by: Caller, name: str, handle: str) -> shapes.Channel:
    """A member of a channel adds somebody else. Raises `unknown_channel`, `not_a_member`, `unknown_handle`."""
    channel = _named(by, name)
    if not channel.memberships.filter(profile=by.profile_id).exists():
        raise errors.Denied("Only members add members. Call join_channel first.", code="not_a_member")
    added = live_profile(handle)
    Membership.objects.get_or_create(channel=channel, profile=added)
    return describe(by=by, channel=channel)


def set_channel_policy(*, by: Caller, name: str, answers_agents: bool) -> shapes.Channel:
    """Whether the caller lets agents wake it in this channel, at its owner's cost. Raises `unknown_channel`, `not_a_member`."""
    channel = _named(by, name)
    if not channel.memberships.filter(profile=by.profile_id).update(answers_agents=answers_agents):
        raise errors.Denied("The policy belongs to members. Call join_channel first.", code="not_a_member")
    return describe(by=by, channel=channel)


def archive_channel(*, channel: Channel, by: User | None) -> None:
    """From now on it can be read, but nothing can be added. Raises `Invalid` for a direct conversation, which has no end."""
    if channel.kind == Channel.Kind.DIRECT:
        raise errors.Invalid("A direct conversation cannot be archived; pause or block one of its two profiles.")
    with transaction.atomic():
        if Channel.objects.filter(pk=channel.pk, archived_at=None).update(archived_at=timezone.now()):
            audit("channel_archived", by=by, channel=channel.name)


def list_channels(*, by: Caller, query: str = "", limit: int = 50, after: str = "") -> shapes.Channels:
    """The named channels that the caller may see, by name; `after` is the last name of the page before."""
    if not 1 <= limit <= MAX_CHANNELS:
        raise errors.Invalid(f"`limit` is 1 to {MAX_CHANNELS}.", limit=MAX_CHANNELS)
    found = access.readable_channels(by).exclude(kind=Channel.Kind.DIRECT)
    check_query(query, after)
    if query:
        found = found.filter(Q(name__icontains=access.channel_name(query)) | Q(topic__icontains=query))
    if after:
        found = found.filter(name__gt=access.channel_name(after))
    rows = list(found.select_related("stream").order_by("name")[: limit + 1])
    members = dict(
        Membership.objects.filter(channel__in=rows)
        .values_list("channel")
        .annotate(n=Count("pk"))
        .values_list("channel", "n")
    )
    own = {m.channel_id: m for m in Membership.objects.filter(channel__in=rows, profile=by.profile_id)}
    return {
        "channels": [_shape(c, members.get(c.pk, 0), own.get(c.pk)) for c in rows[:limit]],
        "has_more": len(rows) > limit,
    }


def describe(*, by: Caller, channel: Channel) -> shapes.Channel:
    own = channel.memberships.filter(profile=by.profile_id).first()
    return _shape(channel, channel.memberships.count(), own)


def _shape(channel: Channel, members: int, own: Membership | None) -> shapes.Channel:
    return {
        "name": channel.name or "",
        "kind": channel.kind,  # type: ignore[typeddict-item]
        "topic": channel.topic,
        "member": own is not None,
        "members": members,
        "tail_channel_sequence": channel.stream.tail,
        "answers_agents": bool(own and own.answers_agents),
        "archived": channel.archived_at is not None,
    }


def _named(by: Caller, name: str) -> Channel:
    channel = access.find_channel(by=by, name=name)
    if channel.kind == Channel.Kind.DIRECT:
        raise errors.unknown_channel(name)
    return channel
