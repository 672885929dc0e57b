"""The rows of the network. What the database can guarantee stands here as a constraint.

Sequences are handed out by locking `Stream` rows until the commit (see `delivery`), never by the database's own counters:
those are given before the commit, and a reader would skip what commits late. The hot statements on these tables stand in
`statements`; tables have short names of their own, because those statements are read by people.
"""

from __future__ import annotations

import secrets
import time
import uuid
from typing import ClassVar

from django.conf import settings
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from messaging.handles import HANDLE_RULE, MAX_DISPLAY_NAME


def new_id() -> uuid.UUID:
    """A UUID of version 7 (RFC 9562): ordered by time of creation, so that new rows land at one end of the index.

    The order is a courtesy to the index only; nothing in Parley may rely on it.
    """
    ms = time.time_ns() // 1_000_000
    value = (ms & 0xFFFF_FFFF_FFFF) << 80 | 0x7 << 76 | secrets.randbits(12) << 64 | 0b10 << 62 | secrets.randbits(62)
    return uuid.UUID(int=value)


class Stream(models.Model):
    """One ordered sequence of messages: an inbox or a channel. `tail` is the last sequence handed out; 0 for none."""

    class Kind(models.TextChoices):
        INBOX = "inbox"
        CHANNEL = "channel"

    kind = models.CharField(max_length=7, choices=Kind.choices)
    tail = models.BigIntegerField(default=0)

    class Meta:
        db_table = "stream"
        constraints: ClassVar = [
            models.CheckConstraint(condition=Q(kind__in=["inbox", "channel"]), name="stream_kind"),
            models.CheckConstraint(condition=Q(tail__gte=0), name="stream_tail"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} stream {self.pk}"


class InboxCursor(models.Model):
    """Where one inbox stands: `offered_through` for clients that send no cursor; `pruned_through` is the retention floor."""

    inbox = models.OneToOneField(Stream, models.CASCADE, primary_key=True, related_name="cursor")
    offered_through = models.BigIntegerField(default=0)
    pruned_through = models.BigIntegerField(default=0)

    class Meta:
        db_table = "inbox_cursor"

    def __str__(self) -> str:
        return f"cursor of {self.inbox_id}"


class Profile(models.Model):
    """Somebody who can be addressed by a handle: a person, an external agent, or the hub itself.

    A released profile keeps its handle as history only: a newcomer of the same handle is another row with another inbox.
    """

    class Kind(models.TextChoices):
        PERSON = "person"
        AGENT = "agent"
        SYSTEM = "system"

    profile_id = models.UUIDField(unique=True, default=new_id, editable=False)
    handle = models.CharField(max_length=31)
    display_name = models.CharField(max_length=MAX_DISPLAY_NAME, blank=True)
    kind = models.CharField(max_length=6, choices=Kind.choices)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="profiles")
    inbox = models.OneToOneField(Stream, models.PROTECT, related_name="profile")
    created_at = models.DateTimeField(db_default=Now())
    paused_at = models.DateTimeField(null=True, blank=True)
    released_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        db_table = "profile"
        constraints: ClassVar = [
            models.CheckConstraint(condition=Q(handle__regex=HANDLE_RULE), name="profile_handle_rule"),
            models.CheckConstraint(condition=Q(kind__in=["person", "agent", "system"]), name="profile_kind"),
            models.UniqueConstraint(fields=["handle"], condition=Q(released_at=None), name="profile_one_live_handle"),
            models.UniqueConstraint(
                fields=["owner"], condition=Q(kind="person", released_at=None), name="profile_one_person_each"
            ),
        ]

    def __str__(self) -> str:
        return f"@{self.handle}"


class Presence(models.Model):
    """When a profile last called by itself, and until when one of its waits runs at most. Both run out by themselves."""

    profile = models.OneToOneField(Profile, models.CASCADE, primary_key=True, related_name="presence")
    last_seen_at = models.DateTimeField(null=True)
    waiting_until = models.DateTimeField(null=True)

    class Meta:
        db_table = "presence"

    def __str__(self) -> str:
        return f"presence of {self.profile_id}"


class Block(models.Model):
    """`blocker` gets nothing addressed to it by `blocked`."""

    blocker = models.ForeignKey(Profile, models.CASCADE, related_name="blocks")
    blocked = models.ForeignKey(Profile, models.CASCADE, related_name="blocked_by")
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "block"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["blocker", "blocked"], name="block_once"),
            models.CheckConstraint(condition=~Q(blocker=F("blocked")), name="block_another"),
        ]

    def __str__(self) -> str:
        return f"{self.blocker_id} blocks {self.blocked_id}"


class Channel(models.Model):
    """A conversation: a named public or private channel, or the direct conversation of two profiles (no name)."""

    class Kind(models.TextChoices):
        PUBLIC = "public"
        PRIVATE = "private"
        DIRECT = "direct"

    name = models.CharField(max_length=31, null=True, blank=True, unique=True)
    kind = models.CharField(max_length=7, choices=Kind.choices)
    stream = models.OneToOneField(Stream, models.PROTECT, related_name="channel")
    topic = models.CharField(max_length=200, blank=True)
    # Of a direct conversation: its two profiles, the lower id first, so that a pair has one row.
    low = models.ForeignKey(Profile, models.PROTECT, null=True, blank=True, related_name="+")
    high = models.ForeignKey(Profile, models.PROTECT, null=True, blank=True, related_name="+")
    created_by = models.ForeignKey(Profile, models.PROTECT, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(db_default=Now())
    archived_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        db_table = "channel"
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(kind="direct", name=None, low__lt=F("high"))
                | Q(kind__in=["public", "private"], name__regex=HANDLE_RULE, low=None, high=None),
                name="channel_shape",
            ),
            models.UniqueConstraint(fields=["low", "high"], condition=Q(kind="direct"), name="channel_one_direct_each"),
        ]

    def __str__(self) -> str:
        return f"#{self.name}" if self.name else f"direct {self.low_id}-{self.high_id}"


class Membership(models.Model):
    """A profile belongs to a channel. The `answers_*` flags are its owner's consent to be woken there; both start off."""

    channel = models.ForeignKey(Channel, models.CASCADE, related_name="memberships")
    profile = models.ForeignKey(Profile, models.CASCADE, related_name="memberships")
    joined_at = models.DateTimeField(db_default=Now())
    answers_agents = models.BooleanField(default=False)
    answers_people = models.BooleanField(default=False)

    class Meta:
        db_table = "membership"
        constraints: ClassVar = [models.UniqueConstraint(fields=["channel", "profile"], name="membership_once")]

    def __str__(self) -> str:
        return f"{self.profile_id} in {self.channel_id}"


class Message(models.Model):
    """One message at its place (`channel_sequence`) in one channel.

    `thread_root` is the message itself where it starts a thread. `refers_to` is the message that an edit, a retraction or a
    decision is about. `receipt` is the answer that its sender got, kept so that a replay gets the very same. A retraction
    empties the body of the message it is about; an edit replaces it and keeps the former text as `former_body`.
    """

    class Kind(models.TextChoices):
        MESSAGE = "message"
        NOTICE = "notice"
        RESULT = "result"
        QUESTION = "question"
        DECISION = "decision"
        EDIT = "edit"
        RETRACTION = "retraction"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    channel = models.ForeignKey(Channel, models.CASCADE, related_name="messages", db_index=False)
    channel_sequence = models.BigIntegerField()
    sender = models.ForeignKey(Profile, models.PROTECT, related_name="sent", db_index=False)
    thread_root = models.ForeignKey("self", models.CASCADE, related_name="thread", db_index=False)
    refers_to = models.ForeignKey("self", models.SET_NULL, null=True, blank=True, related_name="about")
    kind = models.CharField(max_length=10, choices=Kind.choices)
    body = models.TextField(blank=True)
    former_body = models.TextField(null=True, blank=True)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True, blank=True)
    edited_at = models.DateTimeField(null=True, blank=True)
    retracted_at = models.DateTimeField(null=True, blank=True)
    receipt = models.JSONField()

    class Meta:
        db_table = "message"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["channel", "channel_sequence"], name="message_one_place"),
            models.CheckConstraint(condition=Q(channel_sequence__gte=1), name="message_channel_sequence"),
            models.CheckConstraint(
                condition=Q(kind__in=["message", "notice", "result", "question", "decision", "edit", "retraction"]),
                name="message_kind",
            ),
        ]
        indexes: ClassVar = [
            models.Index(fields=["thread_root", "channel_sequence"], name="message_thread"),
            # What a sender last said in a conversation: unread counts and `answered`.
            models.Index(fields=["channel", "sender", "channel_sequence"], name="message_by_sender"),
            models.Index(fields=["sender", "created_at"], name="message_of_sender"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.pk}"


class Delivery(models.Model):
    """One message for one recipient, at its place (`sequence`) in that recipient's inbox.

    `offered_at`: put into an answer to the recipient. `offers` counts that, so that a repeat can be marked.
    `acknowledged_at`: the recipient said so. Whether it was answered or has expired is computed when asked.
    """

    class Route(models.TextChoices):
        TO = "to"
        MENTION = "mention"
        DIRECT = "direct"

    inbox = models.ForeignKey(Stream, models.PROTECT, related_name="deliveries", db_index=False)
    sequence = models.BigIntegerField()
    message = models.ForeignKey(Message, models.CASCADE, related_name="deliveries", db_index=False)
    route = models.CharField(max_length=7, choices=Route.choices)
    offered_at = models.DateTimeField(null=True, blank=True)
    offers = models.IntegerField(default=0)
    acknowledged_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        db_table = "delivery"
        verbose_name_plural = "deliveries"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["inbox", "sequence"], name="delivery_one_place"),
            models.UniqueConstraint(fields=["message", "inbox"], name="delivery_once"),
            models.CheckConstraint(condition=Q(route__in=["to", "mention", "direct"]), name="delivery_route"),
            models.CheckConstraint(condition=Q(sequence__gte=1), name="delivery_sequence"),
        ]
        indexes: ClassVar = [
            # The pages of an inbox: what is acknowledged is left aside without being read.
            models.Index(fields=["inbox", "sequence"], condition=Q(acknowledged_at=None), name="delivery_pending"),
            # What a cursor acknowledges: each look asks whether there is any, however much lies there that was never offered.
            models.Index(
                fields=["inbox", "sequence"],
                condition=Q(acknowledged_at=None, offered_at__isnull=False),
                name="delivery_offered",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.message_id} for {self.inbox_id}"


class SendKey(models.Model):
    """One intention of one sender: the idempotency key, what was to be sent under it, and the message that came of it."""

    profile = models.ForeignKey(Profile, models.CASCADE, related_name="send_keys", db_index=False)
    key = models.CharField(max_length=128)
    content_hash = models.BinaryField(max_length=32)
    message = models.ForeignKey(Message, models.CASCADE, related_name="send_keys")
    created_at = models.DateTimeField()

    class Meta:
        db_table = "send_key"
        constraints: ClassVar = [models.UniqueConstraint(fields=["profile", "key"], name="send_key_once")]

    def __str__(self) -> str:
        return f"key of {self.profile_id}"


class Question(models.Model):
    """A question to people with options to choose from. It is answered at most once; its answer is a message of its own."""

    message = models.OneToOneField(Message, models.CASCADE, primary_key=True, related_name="question")
    options = models.JSONField()
    # To whom it was put; null where any person who may read the channel may answer.
    asked = models.ForeignKey(Profile, models.PROTECT, null=True, blank=True, related_name="questions")
    answered_at = models.DateTimeField(null=True, blank=True)
    answered_by = models.ForeignKey(Profile, models.PROTECT, null=True, blank=True, related_name="answers")
    choice = models.IntegerField(null=True, blank=True)
    decision = models.OneToOneField(Message, models.SET_NULL, null=True, blank=True, related_name="decides")

    class Meta:
        db_table = "question"
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(answered_at=None, answered_by=None, choice=None)
                | Q(answered_at__isnull=False, answered_by__isnull=False, choice__gte=0),
                name="question_answered_whole",
            )
        ]

    def __str__(self) -> str:
        return f"question {self.message_id}"


class AuditEntry(models.Model):
    """Something that changed who may act as whom, or was done by an operator: by whom, about which profile, when."""

    at = models.DateTimeField(db_default=Now())
    by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    action = models.CharField(max_length=40)
    profile = models.ForeignKey(Profile, models.SET_NULL, null=True, related_name="audit")
    details = models.JSONField(default=dict)

    class Meta:
        db_table = "audit_entry"
        verbose_name_plural = "audit entries"
        indexes: ClassVar = [models.Index(fields=["-at"], name="audit_newest")]

    def __str__(self) -> str:
        return f"{self.action} at {self.at}"
