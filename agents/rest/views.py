"""The one view of the HTTP API: it gathers the arguments, lets the caller perform the operation, and answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from django.urls import URLPattern, path
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from agents.connections import door
from agents.rest import arguments
from agents.rest.authentication import Agent, Person
from agents.rest.openapi import OperationSchema
from agents.rest.routes import ROUTES, Route
from messaging import errors


class OperationView(APIView):
    """One path of the API."""

    schema = OperationSchema()
    routes: ClassVar[dict[str, Route]] = {}

    caller: Agent | Person | None = None

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        if request.method not in self.allowed_methods:
            self.http_method_not_allowed(request)
        super().initial(request, *args, **kwargs)
        caller: Any = request.auth
        self.caller = caller

    def serve(self, request: Request, **in_path: str) -> Response:
        assert self.caller is not None
        route = self.routes["GET" if request.method == "HEAD" else str(request.method)]
        given = arguments_of(request, route)
        operation = route.operation_for(given)
        if "idempotency_key" in operation.input.model_fields:
            given = arguments.with_key(given, request.META.get("HTTP_IDEMPOTENCY_KEY"))
        result = self.caller.perform(operation, arguments.joined(given, in_path))
        return Response(result, status=route.status(result))

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        finished = super().finalize_response(request, response, *args, **kwargs)
        finished["Cache-Control"] = "no-store"
        if self.caller is not None:
            for name, value in door.allowance_headers(self.caller.rate_key):
                finished[name.decode()] = value.decode()
        return finished


def arguments_of(request: Request, route: Route) -> dict[str, Any]:
    """Reading calls take the query string, the others their body."""
    query: str = request.META.get("QUERY_STRING", "")
    if route.method == "GET":
        return arguments.in_query(query, route.operation.input)
    if query:
        raise errors.Invalid("This call takes no query string; its arguments belong into a JSON body.")
    return dict(request.data)


def _view(routes: Sequence[Route]) -> type[OperationView]:
    by_method = {r.method: r for r in routes}
    handlers = {method.lower(): OperationView.serve for method in by_method}
    names = [*handlers, *(["head"] if "get" in handlers else [])]
    return type("OperationView", (OperationView,), {"routes": by_method, "http_method_names": names, **handlers})


def patterns() -> list[URLPattern]:
    """The addresses of the API below `/api/v1/`."""
    paths: dict[str, list[Route]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, []).append(route)
    return [path(address, _view(routes).as_view()) for address, routes in paths.items()]
