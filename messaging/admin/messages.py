"""Messages, and what became of each for each recipient. Nothing here can be changed by anybody."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.db.models.functions import Left
from django.http import HttpRequest
from django.utils import timezone
from django.utils.safestring import SafeString

from messaging import history
from messaging.admin.looking import (
    EXCERPT,
    LARGE,
    NOTHING,
    ByState,
    ByTime,
    OperatorAdmin,
    conversation,
    excerpt,
    rows_link,
    text_block,
    when,
)
from messaging.models import Delivery, Message


def sort_terms(search: str) -> tuple[list[str], list[str], list[str]]:
    """The handles, channel names and other words of a search."""
    words = search.replace("\0", " ").split()
    handles = [w[1:].lower() for w in words if w.startswith("@")]
    names = [w[1:].lower() for w in words if w.startswith("#")]
    return handles, names, [w for w in words if w[:1] not in {"@", "#"}]


@admin.register(Message)
class MessageAdmin(OperatorAdmin):
    list_display = ("created_at", "sender", "where", "kind", "beginning", "edited_at", "retracted_at")
    list_filter = ("kind", ("created_at", ByTime))
    list_select_related = ("sender", "channel__low", "channel__high")
    # By id, the one index that knows (nearly) the order of all channels together. A list for people may be that inexact.
    ordering = ("-id",)
    search_fields = ("body",)
    search_help_text = "Words of the body, @handle of the sender, #channel; all of them have to fit"
    fields = (
        "id",
        "where",
        "channel_sequence",
        "sender",
        "kind",
        "whole_body",
        "body_before_edit",
        "thread_root",
        "refers_to",
        "created_at",
        "expires_at",
        "edited_at",
        "retracted_at",
        "receipt_given",
        "more",
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        found: QuerySet[Any] = super().get_queryset(request).annotate(begins=Left("body", EXCERPT + 1))
        return found.defer(*LARGE)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        handles, names, words = sort_terms(search_term[: history.MAX_QUERY])
        for handle in handles:
            queryset = queryset.filter(sender__handle=handle)
        for name in names:
            queryset = queryset.filter(channel__name=name)
        return queryset.filter(history.contains_all(words)) if words else queryset, False

    @admin.display(description="channel")
    def where(self, message: Message) -> str:
        return conversation(message.channel)

    @admin.display(description="body")
    def beginning(self, message: Any) -> str:
        return excerpt(message.begins)

    @admin.display(description="body")
    def whole_body(self, message: Message) -> str:
        return text_block(message.body)

    @admin.display(description="body before the edit")
    def body_before_edit(self, message: Message) -> str:
        return text_block(message.former_body)

    @admin.display(description="receipt given to the sender")
    def receipt_given(self, message: Message) -> str:
        return text_block(json.dumps(message.receipt, indent=2, ensure_ascii=False))

    @admin.display(description="see also")
    def more(self, message: Message) -> SafeString:
        return rows_link("its deliveries", Delivery, message__id__exact=message.pk)


class DeliveryState(ByState):
    def conditions(self) -> tuple[tuple[str, str, Q], ...]:
        return (
            ("pending", "pending (not acknowledged)", Q(acknowledged_at=None)),
            ("unoffered", "never offered", Q(acknowledged_at=None, offered_at=None)),
            ("offered", "offered, not acknowledged", Q(acknowledged_at=None, offered_at__isnull=False)),
            ("acknowledged", "acknowledged", Q(acknowledged_at__isnull=False)),
        )


@admin.register(Delivery)
class DeliveryAdmin(OperatorAdmin):
    list_display = (
        "recipient",
        "sequence",
        "stored_at",
        "offered_at",
        "offers",
        "acknowledged_at",
        "expired",
        "route",
        "sender",
        "where",
    )
    list_filter = (DeliveryState, "route")
    list_select_related = ("inbox__profile", "message__sender", "message__channel__low", "message__channel__high")
    ordering = ("-id",)
    search_fields = ("inbox__profile__handle",)
    search_help_text = "Part of the recipient's handle"
    fields = (
        "recipient",
        "sequence",
        "message",
        "sender",
        "where",
        "route",
        "stored_at",
        "offered_at",
        "offers",
        "acknowledged_at",
        "expires_at",
        "expired",
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).defer(*(f"message__{column}" for column in LARGE))

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        return super().get_search_results(request, queryset, search_term.replace("@", ""))

    @admin.display(description="recipient")
    def recipient(self, delivery: Delivery) -> str:
        return str(delivery.inbox.profile)

    @admin.display(description="sender")
    def sender(self, delivery: Delivery) -> str:
        return str(delivery.message.sender)

    @admin.display(description="channel")
    def where(self, delivery: Delivery) -> str:
        return conversation(delivery.message.channel)

    @admin.display(description="stored at")
    def stored_at(self, delivery: Delivery) -> str:
        return when(delivery.message.created_at)

    @admin.display(description="expires at")
    def expires_at(self, delivery: Delivery) -> str:
        return when(delivery.message.expires_at)

    @admin.display(description="expired")
    def expired(self, delivery: Delivery) -> str:
        until = delivery.message.expires_at
        gone = delivery.acknowledged_at is None and until is not None and until <= timezone.now()
        return "yes" if gone else NOTHING
