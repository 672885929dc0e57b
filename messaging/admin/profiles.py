"""Profiles and what was done to them: an operator pauses, resumes and releases here."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from messaging import presence, profiles
from messaging.admin.looking import ByState, ByTime, OperatorAdmin, rows_link, when
from messaging.models import AuditEntry, Delivery, Message, Profile


class ProfileState(ByState):
    def conditions(self) -> tuple[tuple[str, str, Q], ...]:
        return (
            ("live", "live", Q(released_at=None, paused_at=None)),
            ("paused", "paused", Q(released_at=None, paused_at__isnull=False)),
            ("released", "released", Q(released_at__isnull=False)),
        )


class PresenceState(ByState):
    title = "presence"
    parameter_name = "presence"

    def conditions(self) -> tuple[tuple[str, str, Q], ...]:
        now = timezone.now()
        waiting = Q(presence__waiting_until__gt=now)
        active = Q(presence__last_seen_at__gt=now - presence.ACTIVE_FOR)
        return (
            ("waiting", "waiting", waiting),
            ("active", "active", active & ~waiting),
            ("away", "away", ~active & ~waiting),
        )


@admin.register(Profile)
class ProfileAdmin(OperatorAdmin):
    list_display = (
        "at_handle",
        "display_name",
        "kind",
        "owner",
        "presence_now",
        "last_seen",
        "paused_at",
        "released_at",
    )
    list_filter = (ProfileState, PresenceState, "kind")
    list_select_related = ("owner", "presence")
    ordering = ("handle", "id")
    search_fields = ("handle", "display_name", "owner__username")
    search_help_text = "Part of a handle, a display name or an owner's name"
    actions = ("pause", "resume", "release")
    fields = (
        "at_handle",
        "display_name",
        "kind",
        "owner",
        "profile_id",
        "presence_now",
        "last_seen",
        "created_at",
        "paused_at",
        "released_at",
        "inbox_stands",
        "more",
    )

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        return super().get_search_results(request, queryset, search_term.replace("@", ""))

    @admin.display(description="handle", ordering="handle")
    def at_handle(self, profile: Profile) -> str:
        return str(profile)

    @admin.display(description="presence")
    def presence_now(self, profile: Profile) -> str:
        described, _ = presence.describe(
            profile_id=profile.pk,
            inbox_id=profile.inbox_id,
            last_seen_at=profile.presence.last_seen_at,
            waiting_until=profile.presence.waiting_until,
        )
        return described["state"]

    @admin.display(description="last seen", ordering="presence__last_seen_at")
    def last_seen(self, profile: Profile) -> str:
        return when(profile.presence.last_seen_at)

    @admin.display(description="inbox")
    def inbox_stands(self, profile: Profile) -> str:
        cursor = profile.inbox.cursor
        pending = Delivery.objects.filter(inbox=profile.inbox_id, acknowledged_at=None).count()
        return (
            f"{pending} pending; last sequence {profile.inbox.tail}, offered through {cursor.offered_through}, "
            f"pruned through {cursor.pruned_through}"
        )

    @admin.display(description="see also")
    def more(self, profile: Profile) -> SafeString:
        return format_html(
            "{} · {} · {}",
            rows_link("what it sent", Message, sender__id__exact=profile.pk),
            rows_link("what it got", Delivery, inbox__id__exact=profile.inbox_id),
            rows_link("its audit trail", AuditEntry, profile__id__exact=profile.pk),
        )

    @admin.action(description="Pause: end its waits, let it neither read nor write", permissions=["operate"])
    def pause(self, request: HttpRequest, queryset: QuerySet[Profile]) -> None:
        self.carry_out(request, queryset, lambda p: profiles.pause_profile(profile=p, by=request.user), "Paused")

    @admin.action(description="Resume", permissions=["operate"])
    def resume(self, request: HttpRequest, queryset: QuerySet[Profile]) -> None:
        self.carry_out(request, queryset, lambda p: profiles.resume_profile(profile=p, by=request.user), "Resumed")

    @admin.action(description="Release: free its handle for others, for ever", permissions=["operate"])
    def release(self, request: HttpRequest, queryset: QuerySet[Profile]) -> HttpResponse | None:
        asked = self.ask_first(
            request,
            queryset,
            question="Release these handles?",
            yes="Release them",
            consequence="Nobody will be able to act as these profiles or to read their mail again, and others may claim their "
            "handles. This cannot be undone; to stop a profile for a while, pause it.",
        )
        if asked:
            return asked
        self.carry_out(request, queryset, lambda p: profiles.release_handle(profile=p, by=request.user), "Released")
        return None


@admin.register(AuditEntry)
class AuditEntryAdmin(OperatorAdmin):
    list_display = ("at", "action", "profile", "by", "what")
    list_display_links = ("at",)
    list_filter = (("at", ByTime), "action")
    list_select_related = ("profile", "by")
    ordering = ("-at", "-id")
    search_fields = ("profile__handle", "by__username", "action")
    search_help_text = "Part of a handle, of an account's name or of an action"
    fields = ("at", "action", "profile", "by", "what")

    @admin.display(description="details")
    def what(self, entry: AuditEntry) -> str:
        return ", ".join(f"{name}: {value}" for name, value in entry.details.items())
