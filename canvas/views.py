"""The pages. The start page is also the connect page that refusals name: it needs no account and asks no database."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from agents.connections import snippets

# Where visitors see a token to be: theirs is shown once, by the command that makes it, and never on a page.
PLACEHOLDER = "prl_YOUR_TOKEN"


@require_safe
def start(request: HttpRequest) -> HttpResponse:
    shown = {
        "placeholder": PLACEHOLDER,
        "command": ".venv/bin/python manage.py connect_agent --owner YOUR_ACCOUNT --handle alice",
        "endpoint": snippets.endpoint(),
        "snippets": [client(PLACEHOLDER) for client in (snippets.claude_code, snippets.codex, snippets.curl)],
    }
    return render(request, "canvas/start.html", shown)
