"""Connections as operators see them. They are made by `manage.py connect_agent`, which shows the token once; here they end.

Neither token nor hash is in any page: what is shown is the beginning of the token, by which its owner recognises it.
"""

from __future__ import annotations

import re
from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone

from agents.connections import credentials
from agents.connections.models import Connection
from messaging.admin.looking import ByState, OperatorAdmin

# More of a token than may be shown, as somebody pastes it into the search.
_TOO_MUCH = re.compile(
    rf"({re.escape(credentials.PREFIX)}[\w-]{{{credentials.SHOWN - len(credentials.PREFIX)}}})[\w-]+"
)


class ConnectionState(ByState):
    def conditions(self) -> tuple[tuple[str, str, Q], ...]:
        ended = Q(revoked_at__isnull=False)
        expired = ~ended & Q(expires_at__lte=timezone.now())
        return (
            ("live", "live", ~ended & ~expired),
            ("unused", "live, never used", ~ended & ~expired & Q(last_used_at=None)),
            ("expired", "expired", expired),
            ("revoked", "revoked", ended),
        )


class Scope(ByState):
    title = "scope"
    parameter_name = "scope"

    def conditions(self) -> tuple[tuple[str, str, Q], ...]:
        return (("write", "read and write", Q(can_write=True)), ("read", "read only", Q(can_write=False)))


@admin.register(Connection)
class ConnectionAdmin(OperatorAdmin):
    list_display = (
        "name",
        "owner",
        "profile",
        "token_begins",
        "may",
        "last_used_at",
        "empty_polls",
        "expires_at",
        "revoked_at",
        "created_at",
    )
    list_filter = (ConnectionState, Scope)
    list_select_related = ("owner", "profile")
    ordering = ("-id",)
    search_fields = ("name", "owner__username", "profile__handle", "token_prefix")
    search_help_text = "Part of a name, an owner's name or a handle, or the beginning of a token"
    actions = ("revoke",)
    fields = (
        "name",
        "connection_id",
        "owner",
        "profile",
        "token_begins",
        "may",
        "created_at",
        "last_used_at",
        "empty_polls",
        "expires_at",
        "revoked_at",
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).defer("token_hash")

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        searched = request.GET.get("q", "")
        if _TOO_MUCH.search(searched):
            # The page shows again what was searched for, and no page may show a token.
            query = request.GET.copy()
            query["q"] = _TOO_MUCH.sub(r"\1", searched)
            return HttpResponseRedirect(f"?{query.urlencode()}")
        return super().changelist_view(request, extra_context)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        return super().get_search_results(request, queryset, search_term.replace("@", ""))

    @admin.display(description="token begins", ordering="token_prefix")
    def token_begins(self, connection: Connection) -> str:
        return f"{connection.token_prefix}…"

    @admin.display(description="scopes", ordering="can_write")
    def may(self, connection: Connection) -> str:
        return ", ".join(connection.scopes)

    @admin.action(description="Revoke: end it at once, for ever", permissions=["operate"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[Connection]) -> HttpResponse | None:
        asked = self.ask_first(
            request,
            queryset,
            question="Revoke these connections?",
            yes="Revoke them",
            consequence="Their tokens are worthless from that moment, and their open waits end; the profiles and their mail "
            "stay. This cannot be undone: manage.py connect_agent makes a new connection.",
        )
        if asked:
            return asked
        self.carry_out(
            request, queryset, lambda c: credentials.revoke_connection(connection=c, by=request.user), "Revoked"
        )
        return None
