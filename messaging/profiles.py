"""Profiles: claiming and releasing handles, pausing and blocking, and who is here.

Whoever holds a handle owns its inbox. A released handle may be claimed anew, but by a new profile with a new inbox: no mail
of the predecessor is ever reachable through it. Takeovers and operators' acts leave an audit entry.
"""

from __future__ import annotations

from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils import timezone

from messaging import errors, handles, presence, shapes, statements, store
from messaging.access import Caller
from messaging.addressing import close_matches
from messaging.doorbell import doorbell, stream_key
from messaging.models import AuditEntry, Block, InboxCursor, Presence, Profile, Stream

User = Any  # Whatever AUTH_USER_MODEL says; messaging needs its id and name only.

MAX_PEERS = 100
MAX_QUERY = 200


def audit(action: str, *, by: User | None, profile: Profile | None = None, **details: Any) -> None:
    AuditEntry.objects.create(action=action, by_id=by.pk if by else None, profile=profile, details=details)


def claim_handle(
    *, owner: User, handle: str, display_name: str | None = None, kind: str = Profile.Kind.AGENT
) -> tuple[Profile, bool]:
    """The owner's live profile of this handle, and whether it was made now. Raises `handle_taken`, `invalid_handle`,
    `reserved_handle`, `invalid_display_name`."""
    handles.check_handle(handle)
    name = handles.clean_display_name(display_name) if display_name else ""
    with transaction.atomic():
        found = Profile.objects.select_for_update(of=("self",)).filter(handle=handle, released_at=None).first()
        if found is None:
            try:
                with transaction.atomic():
                    return _create(owner, handle, name, kind), True
            except IntegrityError:  # Somebody claimed it in the same instant.
                found = Profile.objects.get(handle=handle, released_at=None)
        if found.owner_id != owner.pk or found.kind != kind:
            raise errors.Conflict(
                f"The handle {handle!r} belongs to somebody else. Choose another; list_peers shows those in use.",
                code="handle_taken",
                handle=handle,
            )
        if name and name != found.display_name:
            found.display_name = name
            found.save(update_fields=["display_name"])
        return found, False


def _create(owner: User, handle: str, display_name: str, kind: str) -> Profile:
    inbox = Stream.objects.create(kind=Stream.Kind.INBOX)
    profile = Profile.objects.create(handle=handle, display_name=display_name, kind=kind, owner=owner, inbox=inbox)
    InboxCursor.objects.create(inbox=inbox)
    Presence.objects.create(profile=profile)
    former = Profile.objects.filter(handle=handle).exclude(pk=profile.pk).order_by("-released_at").first()
    if former:
        audit("handle_taken_over", by=owner, profile=profile, handle=handle, former_profile=str(former.profile_id))
    return profile


def ensure_person(user: User) -> Profile:
    """The profile of a person; made from the account's name if there is none yet."""
    found = Profile.objects.filter(owner=user, kind=Profile.Kind.PERSON, released_at=None).first()
    if found:
        return found
    stem = "".join(c if c.isascii() and (c.isalnum() or c == "-") else "-" for c in user.get_username().lower()).strip(
        "-"
    )
    stem = stem[:24] if len(stem) >= 2 and stem not in handles.RESERVED else f"person-{user.pk}"
    for number in range(1, 100):
        handle = stem if number == 1 else f"{stem}-{number}"
        if not Profile.objects.filter(handle=handle, released_at=None).exists():
            return claim_handle(owner=user, handle=handle, kind=Profile.Kind.PERSON)[0]
    raise errors.Conflict(f"No handle like {stem!r} is free. Give the person one by hand.", code="handle_taken")


def rename(*, profile: Profile, display_name: str) -> Profile:
    """Gives a profile another display name. Raises `invalid_display_name`."""
    profile.display_name = handles.clean_display_name(display_name)
    profile.save(update_fields=["display_name"])
    return profile


def release_handle(*, profile: Profile, by: User) -> None:
    """Gives the handle up for ever. The profile, its inbox and its messages stay, but nobody can act as it any more."""
    with transaction.atomic():
        if Profile.objects.filter(pk=profile.pk, released_at=None).update(released_at=timezone.now()):
            audit("handle_released", by=by, profile=profile, handle=profile.handle)
    look_again(profile)


def pause_profile(*, profile: Profile, by: User) -> None:
    """Stops a profile at once: it can neither read nor write, open waits end, and nothing is delivered to it until resumed."""
    with transaction.atomic():
        if Profile.objects.filter(pk=profile.pk, paused_at=None).update(paused_at=timezone.now()):
            audit("paused", by=by, profile=profile)
    look_again(profile)


def resume_profile(*, profile: Profile, by: User) -> None:
    with transaction.atomic():
        if Profile.objects.filter(pk=profile.pk).exclude(paused_at=None).update(paused_at=None):
            audit("resumed", by=by, profile=profile)


def look_again(profile: Profile) -> None:
    """Rings the waits of a profile after the commit, in every process: what they may do has changed."""
    transaction.on_commit(lambda: doorbell.ring(stream_key(profile.inbox_id)))


def block_profile(*, by: Profile, blocked: Profile) -> None:
    """From now on nothing that `blocked` sends is delivered to `by`. Raises `Invalid` for oneself."""
    if by.pk == blocked.pk:
        raise errors.Invalid("You cannot block yourself.", code="self_block")
    Block.objects.get_or_create(blocker=by, blocked=blocked)


def unblock_profile(*, by: Profile, blocked: Profile) -> None:
    Block.objects.filter(blocker=by, blocked=blocked).delete()


def live_profile(handle: str) -> Profile:
    """The live profile of a handle. Raises `unknown_handle` with close matches."""
    wanted = handles.as_addressed(handle)
    found = Profile.objects.filter(handle=wanted, released_at=None).first()
    if found is None:
        known = store.run(store.one(statements.handles_like([wanted])))
        raise errors.unknown_handle(wanted, close_matches(wanted, [row[0] for row in known]))
    return found


def check_query(*parts: str) -> None:
    """Refuses what is longer than any name could be, and longer than SQLite's LIKE takes."""
    if any(len(part) > MAX_QUERY for part in parts):
        raise errors.Invalid(f"`query` and `after` have at most {MAX_QUERY} characters.", limit=MAX_QUERY)


def list_peers(*, by: Caller, query: str = "", limit: int = 20, after: str = "") -> shapes.Peers:
    """Who else is here, by handle: those with this part of a handle or display name in it, at most `limit` (1-100)."""
    if not 1 <= limit <= MAX_PEERS:
        raise errors.Invalid(f"`limit` is 1 to {MAX_PEERS}.", limit=MAX_PEERS)
    found = Profile.objects.filter(released_at=None).exclude(pk=by.profile_id).exclude(kind=Profile.Kind.SYSTEM)
    check_query(query, after)
    wanted = query.strip().removeprefix("@")
    if wanted:
        found = found.filter(Q(handle__icontains=wanted) | Q(display_name__icontains=wanted))
    if after:
        found = found.filter(handle__gt=handles.as_addressed(after))
    rows = list(found.select_related("presence", "owner").order_by("handle")[: limit + 1])
    return {"peers": [_peer(p) for p in rows[:limit]], "has_more": len(rows) > limit}


def _peer(profile: Profile) -> shapes.Peer:
    described, waiting = presence.describe(
        profile_id=profile.pk,
        inbox_id=profile.inbox_id,
        last_seen_at=profile.presence.last_seen_at,
        waiting_until=profile.presence.waiting_until,
    )
    return {
        "handle": profile.handle,
        "display_name": profile.display_name or profile.handle,
        "kind": profile.kind,  # type: ignore[typeddict-item]
        "owner": handles.shown_name(profile.owner.get_username()),
        "presence": described,
        "waiting": waiting,
        # Only hosted agents can be woken, and none is hosted; everybody else reads when they come.
        "reachable": False,
        "answers_you": False,
    }
