"""Forgetting: what retention removes from inboxes, and the floor it leaves behind.

Only a *prefix* of an inbox is forgotten: everything up to the first delivery that has to stay. What was read, expired or
retracted goes after the soft limit; unread mail stays until the hard one. The floor (`InboxCursor.pruned_through`) makes a
client whose cursor lies below it hear so, instead of taking a part for the whole. The history of channels is not touched.

Nothing vanishes silently: unread mail that is given up expires, which its sender sees, and operators find an audit entry. So
rows are only removed where they were acknowledged; `receipts.message_status` knows that a missing one was.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Min, Q
from django.utils import timezone

from messaging.models import AuditEntry, Delivery, InboxCursor, Message, Profile, SendKey, Stream

# 30 days: an agent that was away over a holiday finds what it had read. 365: nobody comes back to unread mail after that.
SOFT_DAYS = 30
HARD_DAYS = 365
# A key is remembered as long as a retry can sensibly come.
KEY_DAYS = 30


@dataclass(slots=True)
class Pruned:
    deliveries: int = 0
    inboxes: int = 0
    given_up: int = 0
    keys: int = 0


def prune(*, soft_days: int = SOFT_DAYS, hard_days: int = HARD_DAYS, key_days: int = KEY_DAYS) -> Pruned:
    """Removes what may go, an inbox at a time, and says how much. Raises `ValueError` when hard is below soft."""
    if hard_days < soft_days or soft_days < 0:
        raise ValueError("The hard limit cannot be below the soft one.")
    now = timezone.now()
    soft, hard = now - timedelta(days=soft_days), now - timedelta(days=hard_days)
    done = Pruned()
    old = Delivery.objects.filter(message__created_at__lte=soft)
    for inbox_id in list(
        Stream.objects.filter(kind="inbox", deliveries__in=old).distinct().values_list("pk", flat=True)
    ):
        removed, given_up = _prune_inbox(inbox_id, soft, hard, now)
        done.deliveries += removed
        done.inboxes += removed > 0
        done.given_up += given_up
    done.keys = SendKey.objects.filter(created_at__lt=now - timedelta(days=key_days)).delete()[0]
    return done


def _prune_inbox(inbox_id: int, soft: datetime, hard: datetime, now: datetime) -> tuple[int, int]:
    """How many deliveries were removed, and how many messages given up unread."""
    dead = Q(message__expires_at__isnull=False, message__expires_at__lte=now)
    finished = Q(acknowledged_at__isnull=False) | Q(message__retracted_at__isnull=False) | dead
    stays = Q(message__created_at__gt=soft) | (~finished & Q(message__created_at__gt=hard))
    with transaction.atomic():
        # Before the deliveries are looked at: what commits meanwhile lies beyond it, and stays.
        tail = Stream.objects.get(pk=inbox_id).tail
        cursor = InboxCursor.objects.select_for_update().get(pk=inbox_id)
        deliveries = Delivery.objects.filter(inbox=inbox_id)
        first = deliveries.filter(stays).aggregate(first=Min("sequence"))["first"]
        floor = first - 1 if first is not None else tail
        if floor <= cursor.pruned_through:
            return 0, 0
        forgotten = deliveries.filter(sequence__lte=floor)
        given_up = list(forgotten.exclude(finished).values_list("message", flat=True))
        if given_up:
            Message.objects.filter(pk__in=given_up).update(expires_at=now)
            AuditEntry.objects.create(
                action="unread_mail_given_up",
                profile=Profile.objects.get(inbox=inbox_id),
                details={"messages": len(given_up), "through_sequence": floor},
            )
        removed = forgotten.filter(acknowledged_at__isnull=False).delete()[0]
        cursor.pruned_through = floor
        cursor.offered_through = max(cursor.offered_through, floor)
        cursor.save(update_fields=["pruned_through", "offered_through"])
    return removed, len(given_up)
