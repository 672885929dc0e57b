"""What became of messages: the receipt as it stands now, acknowledging, and what is still pending.

Stored, offered, acknowledged, answered, expired are facts of their own, each with its time; none is derived from another. An
answer is the recipient's first later message in that thread, or in that direct conversation; it is looked up, not stored, so
that sending has no more to write.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Min, Q
from django.utils import timezone

from messaging import access, errors, pages, shapes
from messaging.access import Caller
from messaging.delivery import MAX_PAGE
from messaging.models import Channel, Delivery, Message, Profile

MAX_IDS = 100


def message_status(*, by: Caller, message_id: UUID, now: datetime | None = None) -> shapes.Status:
    """The receipt of a message as it stands now, for its sender and its recipients. Raises `unknown_message`."""
    now = now or timezone.now()
    message = access.find_message(by=by, message_id=message_id)
    deliveries = list(
        message.deliveries.select_related("inbox__profile").order_by("pk")
        if message.sender_id == by.profile_id
        else message.deliveries.filter(inbox=by.inbox_id).select_related("inbox__profile")
    )
    removed = _removed(message, deliveries) if message.sender_id == by.profile_id else {}
    answers = _answers(message, [*(d.inbox.profile.pk for d in deliveries), *removed])
    return {
        "message_id": str(message.pk),
        "thread_root_id": str(message.thread_root_id),
        "channel_sequence": message.channel_sequence,
        "kind": message.kind,  # type: ignore[typeddict-item]
        "created_at": shapes.iso_time(message.created_at),
        "edited_at": shapes.iso(message.edited_at),
        "retracted_at": shapes.iso(message.retracted_at),
        "expires_at": shapes.iso(message.expires_at),
        "deliveries": [
            *(_delivery(message, d, answers.get(d.inbox.profile.pk), now) for d in deliveries),
            *(_removed_delivery(message, d, answers.get(pk)) for pk, d in removed.items()),
        ],
        "skipped": message.receipt.get("skipped", []) if message.sender_id == by.profile_id else [],
    }


def _answers(message: Message, profile_ids: Sequence[int]) -> dict[int, datetime]:
    """When each of these profiles first answered a message."""
    later = Message.objects.filter(
        channel=message.channel_id, sender__in=profile_ids, channel_sequence__gt=message.channel_sequence
    ).exclude(kind__in=[Message.Kind.EDIT, Message.Kind.RETRACTION])
    if message.channel.kind != Channel.Kind.DIRECT:
        later = later.filter(thread_root=message.thread_root_id)
    return dict(later.values_list("sender").annotate(first=Min("created_at")))


def _removed(message: Message, deliveries: Sequence[Delivery]) -> dict[int, shapes.Delivered]:
    """What a receipt says of recipients whose delivery retention has removed since, by profile."""
    left = {d.inbox.profile.handle for d in deliveries}
    removed = {d["handle"]: d for d in message.receipt.get("delivered", []) if d["handle"] not in left}
    if not removed:
        return {}
    # A handle may have been given up and taken by somebody else since: the first who still bore it is meant.
    then = Q(released_at=None) | Q(released_at__gt=message.created_at)
    bearers = Profile.objects.filter(then, handle__in=removed).order_by("-pk").values_list("handle", "pk")
    return {pk: removed[handle] for handle, pk in dict(bearers).items()}


def _delivery(
    message: Message, delivery: Delivery, answered_at: datetime | None, now: datetime
) -> shapes.DeliveryStatus:
    expired = message.expires_at is not None and message.expires_at <= now and delivery.acknowledged_at is None
    state: shapes.State = "stored"
    if answered_at:
        state = "answered"
    elif delivery.acknowledged_at:
        state = "acknowledged"
    elif expired:
        state = "expired"
    elif delivery.offered_at:
        state = "offered"
    first = next(
        (d for d in message.receipt.get("delivered", []) if d["handle"] == delivery.inbox.profile.handle), None
    )
    return {
        "handle": delivery.inbox.profile.handle,
        "route": delivery.route,  # type: ignore[typeddict-item]
        "state": state,
        "stored_at": shapes.iso_time(message.created_at),
        "offered_at": shapes.iso(delivery.offered_at),
        "acknowledged_at": shapes.iso(delivery.acknowledged_at),
        "answered_at": shapes.iso(answered_at),
        "expired_at": shapes.iso(message.expires_at) if expired else None,
        "wake": first["wake"] if first else {"state": "none", "reason": "not_hosted"},
    }


def _removed_delivery(
    message: Message, delivered: shapes.Delivered, answered_at: datetime | None
) -> shapes.DeliveryStatus:
    """Retention removes only what was acknowledged (`messaging.retention`); when that was is no longer known."""
    return {
        "handle": delivered["handle"],
        "route": delivered["route"],
        "state": "answered" if answered_at else "acknowledged",
        "stored_at": shapes.iso_time(message.created_at),
        "offered_at": None,
        "acknowledged_at": None,
        "answered_at": shapes.iso(answered_at),
        "expired_at": None,
        "wake": delivered["wake"],
    }


def acknowledge(
    *, by: Caller, message_ids: Sequence[UUID] | None = None, through_sequence: int | None = None
) -> shapes.Acknowledged:
    """Marks messages of the own inbox as done: by id (at most 100), or all offered up to a sequence. They never come again.

    Ids that are not in the inbox or were acknowledged before count for nothing. Raises `Invalid` unless exactly one is given.
    """
    if (message_ids is None) == (through_sequence is None):
        raise errors.Invalid("Give either `message_ids` or `through_sequence`.")
    pending = Delivery.objects.filter(inbox=by.inbox_id, acknowledged_at=None)
    if message_ids is not None:
        if not 1 <= len(message_ids) <= MAX_IDS:
            raise errors.Invalid(f"`message_ids` takes 1 to {MAX_IDS} ids.", limit=MAX_IDS)
        chosen = pending.filter(message__in=message_ids)
    else:
        chosen = pending.filter(sequence__lte=through_sequence).exclude(offered_at=None)
    with transaction.atomic():
        done = chosen.update(acknowledged_at=timezone.now())
    return {"acknowledged": done, "remaining": pending_deliveries(by).count()}


def pending_deliveries(by: Caller, now: datetime | None = None) -> Any:
    """What an inbox still holds: neither acknowledged, nor expired, nor retracted."""
    alive = Q(message__expires_at=None) | Q(message__expires_at__gt=now or timezone.now())
    return Delivery.objects.filter(alive, inbox=by.inbox_id, acknowledged_at=None, message__retracted_at=None)


def inbox_peek(*, by: Caller, limit: int = 20, after_sequence: int = 0) -> shapes.Peek:
    """What is pending, oldest first, without changing anything. `limit` is 1 to 50."""
    if not 1 <= limit <= MAX_PAGE:
        raise errors.Invalid(f"`limit` is 1 to {MAX_PAGE}.", limit=MAX_PAGE)
    now = timezone.now()
    pending = pending_deliveries(by, now)
    fields = [f"message__{f}" for f in pages.MESSAGE_FIELDS]
    rows = (
        pending.filter(sequence__gt=after_sequence)
        .order_by("sequence")
        .values_list("sequence", "route", "offers", *fields)[: limit + 1]
    )
    messages = [
        pages.inbox_message(pages.MessageRow(*row), sequence=sequence, route=route, redelivered=offers > 0, now=now)
        for sequence, route, offers, *row in rows
    ]
    kept, has_more = pages.fit_page(messages, limit)
    return {"messages": kept, "has_more": has_more, "pending": pending.count()}
