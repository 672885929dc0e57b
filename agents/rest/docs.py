"""The description of the API for programs (`/api/openapi.json`) and for people (`/api/docs`, with nothing from elsewhere)."""

from __future__ import annotations

from functools import cache
from typing import Any

from django.http import HttpResponse
from django.shortcuts import render
from drf_spectacular.generators import SchemaGenerator
from rest_framework.request import Request
from rest_framework.views import APIView

from agents.connections import door


class Public(APIView):
    """What anyone may read: it says what the hub can do, and nothing of what is in it."""

    schema = None
    authentication_classes = ()
    permission_classes = ()
    http_method_names = ["get", "head"]  # noqa: RUF012 - as the framework declares it


class Description(Public):
    def get(self, request: Request) -> HttpResponse:
        return HttpResponse(description(), content_type="application/json")


class Page(Public):
    def get(self, request: Request) -> HttpResponse:
        return render(request, "api/docs.html")


@cache
def description() -> bytes:
    """The OpenAPI document. It changes only with the program."""
    generator: Any = SchemaGenerator
    return door.render(generator().get_schema(request=None, public=True))
