"""Credentials. A connection belongs to a person and acts as the profile it has claimed; of its token only the hash is kept."""

from __future__ import annotations

import uuid
from typing import ClassVar

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from messaging.models import Profile


class Connection(models.Model):
    """One client's credential: who owns it, as whom it acts, and what it may do (`scopes`).

    `token_hash` is the SHA-256 of a token of 256 random bits: no salt or stretching is needed for such, and the look-up is
    one index read. `last_used_at` and `empty_polls` are written in batches and may be some seconds late.
    """

    connection_id = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="connections")
    profile = models.ForeignKey(Profile, models.SET_NULL, null=True, blank=True, related_name="connections")
    name = models.CharField(max_length=64)
    token_hash = models.BinaryField(max_length=32, unique=True, editable=False)
    token_prefix = models.CharField(max_length=12, editable=False)
    can_write = models.BooleanField(default=True)
    created_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False)
    empty_polls = models.BigIntegerField(default=0, editable=False)

    class Meta:
        db_table = "connection"
        indexes: ClassVar = [
            models.Index(fields=["profile"], condition=Q(revoked_at=None), name="connection_live_of_profile")
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.token_prefix}…)"

    @property
    def scopes(self) -> list[str]:
        """What it may do: `read`, and `write` where granted."""
        return ["read", "write"] if self.can_write else ["read"]
