"""What the operators' pages have in common, whichever rows they show.

An operator looks, and acts through actions alone, each of which calls one domain function: no page of the admin writes a row
itself, so no rule can be gone round there. Lists stay quick on large tables: the number of their queries does not grow with
the rows, and nothing is counted beyond `MAX_COUNTED`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.paginator import Paginator
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.formats import date_format
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.safestring import SafeString

from messaging.errors import ParleyError
from messaging.models import Channel

# 10,000: nobody turns 200 pages; PostgreSQL and SQLite count that many in milliseconds, and millions in seconds.
MAX_COUNTED = 10_000

# Names in a notice; more are a number.
MAX_NAMED = 10

# Rows in a question before an action.
MAX_SHOWN = 200

# What a page shows where there is nothing; Django's own word for it.
NOTHING = "-"

# Of a body in a list; the rest is on the row's own page.
EXCERPT = 100

# A list does not load what it does not show, and these are a message's large columns.
LARGE = ("body", "former_body", "receipt")


class CappedPaginator(Paginator):  # type: ignore[type-arg]
    """Pages over the first `MAX_COUNTED` rows; what lies beyond is found by searching."""

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        # Neither sorted nor with computed columns: only counted.
        return int(rows.order_by().values("pk")[:MAX_COUNTED].count())


class OperatorAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Rows to look at. Subclasses say what is shown (`list_display`, `fields`) and which actions there are."""

    paginator = CappedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER  # They count, once for each choice of each filter.
    list_per_page = 50

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return self.fields

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Who may run the actions: those with Django's permission to change such rows; to view them is not enough."""
        return request.user.has_perm(f"{self.opts.app_label}.change_{self.opts.model_name}")

    def named(self, row: Any) -> str:
        """What a row is called in notices and questions."""
        return str(row)

    def carry_out(self, request: HttpRequest, rows: Iterable[Any], act: Callable[[Any], None], done: str) -> None:
        """Calls `act` for each row and tells what came of it; `done` is what is then true of them."""
        names = []
        for row in rows:
            try:
                act(row)
            except ParleyError as refused:
                self.message_user(request, f"{self.named(row)}: {refused.message}", messages.ERROR)
            else:
                names.append(self.named(row))
        if names:
            more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
            self.message_user(request, f"{done}: {', '.join(names[:MAX_NAMED])}{more}.", messages.SUCCESS)

    def ask_first(
        self, request: HttpRequest, rows: QuerySet[Any], *, question: str, consequence: str, yes: str
    ) -> HttpResponse | None:
        """A page that asks before what cannot be undone; None once it was answered with yes."""
        if request.POST.get("confirmed") == "yes":
            return None
        # Picked rows fit, as a page has fewer; more than that is "all that match", which is looked up again when answered.
        chosen = list(rows[: MAX_SHOWN + 1])
        context = {
            **self.admin_site.each_context(request),
            "title": question,
            "consequence": consequence,
            "yes": yes,
            "shown": [(row.pk, self.named(row)) for row in chosen[:MAX_SHOWN]],
            "more": len(chosen) > MAX_SHOWN,
            "opts": self.opts,
            "action": request.POST["action"],
            "select_across": request.POST.get("select_across", "0"),
            "checkbox": ACTION_CHECKBOX_NAME,
        }
        return TemplateResponse(request, "admin/ask_first.html", context)


def rows_link(text: str, model: type[Model], **filters: object) -> SafeString:
    """A link to the list of a model's rows that match."""
    where = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")
    query = "&".join(f"{name}={value}" for name, value in filters.items())
    return format_html('<a href="{}?{}">{}</a>', where, query, text)


def when(time: datetime | None) -> str:
    return date_format(time, "DATETIME_FORMAT") if time else NOTHING


def text_block(text: str | None) -> SafeString | str:
    """A text as its author wrote it, escaped: line by line, and unable to turn the direction of what stands around it."""
    return format_html('<pre class="text-block"><bdi>{}</bdi></pre>', text) if text else NOTHING


def excerpt(text: str) -> SafeString:
    """The beginning of a text. It cannot turn the direction of what stands beside it."""
    return format_html("<bdi>{}</bdi>", text[:EXCERPT] + ("…" if len(text) > EXCERPT else ""))


def conversation(channel: Channel) -> str:
    """What a conversation is called here: its name, or its two handles."""
    return f"#{channel.name}" if channel.name else f"{channel.low} and {channel.high}"


class ByState(admin.SimpleListFilter):
    """A filter whose choices are conditions: (value, label, condition)."""

    title = "state"
    parameter_name = "state"

    def conditions(self) -> tuple[tuple[str, str, Q], ...]:
        raise NotImplementedError

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(value, label) for value, label, _ in self.conditions()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        chosen = next((condition for value, _, condition in self.conditions() if value == self.value()), None)
        return queryset if chosen is None else queryset.filter(chosen)


class ByTime(admin.DateFieldListFilter):
    """By the time of the row, whatever its column is called."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.title = "time"
