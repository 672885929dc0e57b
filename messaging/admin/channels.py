"""Channels, and the direct conversations among them: an operator archives here."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Count, IntegerField, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString

from messaging import channels
from messaging.admin.looking import ByState, OperatorAdmin, conversation, rows_link
from messaging.models import Channel, Membership, Message

MAX_MEMBERS_SHOWN = 100


class ChannelState(ByState):
    def conditions(self) -> tuple[tuple[str, str, Q], ...]:
        return (("open", "open", Q(archived_at=None)), ("archived", "archived", Q(archived_at__isnull=False)))


@admin.register(Channel)
class ChannelAdmin(OperatorAdmin):
    list_display = ("called", "kind", "topic", "members", "last_sequence", "created_at", "archived_at")
    list_filter = ("kind", ChannelState)
    list_select_related = ("stream", "low", "high")
    ordering = ("-id",)
    search_fields = ("name", "topic", "low__handle", "high__handle")
    search_help_text = "Part of a name or topic, or a handle of a direct conversation"
    actions = ("archive",)
    fields = (
        "called",
        "kind",
        "topic",
        "created_by",
        "created_at",
        "archived_at",
        "last_sequence",
        "members",
        "who",
        "more",
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        count = Membership.objects.filter(channel=OuterRef("pk")).order_by().values("channel")
        members = Subquery(count.annotate(n=Count("pk")).values("n"), output_field=IntegerField())
        found: QuerySet[Any] = super().get_queryset(request).annotate(members=Coalesce(members, 0))
        return found

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        return super().get_search_results(request, queryset, search_term.replace("@", "").replace("#", ""))

    def named(self, row: Channel) -> str:
        return conversation(row)

    @admin.display(description="channel", ordering="name")
    def called(self, channel: Channel) -> str:
        return conversation(channel)

    @admin.display(description="members", ordering="members")
    def members(self, channel: Any) -> int:
        return 2 if channel.kind == Channel.Kind.DIRECT else int(channel.members)

    @admin.display(description="last sequence", ordering="stream__tail")
    def last_sequence(self, channel: Channel) -> int:
        return channel.stream.tail

    @admin.display(description="who")
    def who(self, channel: Channel) -> str:
        handles = channel.memberships.order_by("profile__handle").values_list("profile__handle", flat=True)
        names = [f"@{handle}" for handle in handles[: MAX_MEMBERS_SHOWN + 1]]
        return ", ".join(names[:MAX_MEMBERS_SHOWN]) + (" and more" if len(names) > MAX_MEMBERS_SHOWN else "")

    @admin.display(description="see also")
    def more(self, channel: Channel) -> SafeString:
        return rows_link("its messages", Message, channel__id__exact=channel.pk)

    @admin.action(description="Archive: readable, but nothing can be added", permissions=["operate"])
    def archive(self, request: HttpRequest, queryset: QuerySet[Channel]) -> HttpResponse | None:
        asked = self.ask_first(
            request,
            queryset,
            question="Archive these channels?",
            yes="Archive them",
            consequence="They can still be read, but nobody will be able to post in them or to join them. This cannot be undone.",
        )
        if asked:
            return asked
        self.carry_out(request, queryset, lambda c: channels.archive_channel(channel=c, by=request.user), "Archived")
        return None
