"""Questions to people: which are open, and who answered what. They are answered elsewhere, by those who were asked."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone

from messaging.admin.looking import NOTHING, ByState, OperatorAdmin, conversation, excerpt, text_block, when
from messaging.models import Question


class QuestionState(ByState):
    def conditions(self) -> tuple[tuple[str, str, Q], ...]:
        answered = Q(answered_at__isnull=False)
        expired = ~answered & Q(message__expires_at__lte=timezone.now())
        return (
            ("open", "open", ~answered & ~expired),
            ("answered", "answered", answered),
            ("expired", "expired", expired),
        )


@admin.register(Question)
class QuestionAdmin(OperatorAdmin):
    list_display = ("question", "asker", "where", "asked", "answer", "answered_by", "answered_at")
    list_filter = (QuestionState,)
    list_select_related = ("message__sender", "message__channel__low", "message__channel__high", "asked", "answered_by")
    ordering = ("-message",)
    search_fields = ("message__sender__handle", "asked__handle", "answered_by__handle")
    search_help_text = "Part of a handle: who asked, was asked or answered"
    fields = (
        "whole_question",
        "choices",
        "asker",
        "where",
        "asked",
        "expires_at",
        "answer",
        "answered_by",
        "answered_at",
        "decision",
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).defer("message__former_body", "message__receipt")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        return super().get_search_results(request, queryset, search_term.replace("@", ""))

    @admin.display(description="question")
    def question(self, question: Question) -> str:
        return excerpt(question.message.body)

    @admin.display(description="question")
    def whole_question(self, question: Question) -> str:
        return text_block(question.message.body)

    @admin.display(description="options")
    def choices(self, question: Question) -> str:
        return text_block("\n".join(question.options))

    @admin.display(description="asker", ordering="message__sender__handle")
    def asker(self, question: Question) -> str:
        return str(question.message.sender)

    @admin.display(description="channel")
    def where(self, question: Question) -> str:
        return conversation(question.message.channel)

    @admin.display(description="expires at")
    def expires_at(self, question: Question) -> str:
        return when(question.message.expires_at)

    @admin.display(description="answer")
    def answer(self, question: Question) -> str:
        return NOTHING if question.choice is None else str(question.options[question.choice])
