"""The addresses of the HTTP API and its description, and of what clients look for here in vain."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver, include, path, re_path
from django.views.decorators.csrf import csrf_exempt

from agents.rest import answers, docs, views

urlpatterns: list[URLPattern | URLResolver] = [
    path("api/v1/", include(views.patterns())),
    path("api/openapi.json", docs.Description.as_view()),
    path("api/docs", docs.Page.as_view()),
    re_path(r"^api(?:/|$)", csrf_exempt(answers.nothing_here)),
    re_path(r"^(?:\.well-known|mcp)(?:/|$)", csrf_exempt(answers.no_sign_in)),
    re_path(r"^register(?:/|$)", csrf_exempt(answers.no_sign_in)),
]
