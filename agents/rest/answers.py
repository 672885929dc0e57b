"""What the HTTP API answers: JSON and nothing else, refusals included, all through one place."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from rest_framework.exceptions import APIException, MethodNotAllowed, NotAuthenticated, UnsupportedMediaType
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.parsers import BaseParser
from rest_framework.renderers import BaseRenderer
from rest_framework.response import Response

from agents.connections import door
from agents.connections.door import Headers, Send
from agents.rest import arguments
from messaging import errors


class Json(BaseRenderer):
    media_type = "application/json"
    format = "json"
    charset = None

    def render(self, data: Any, accepted_media_type: Any = None, renderer_context: Any = None) -> bytes:
        return door.render(data)


class JsonObject(BaseParser):
    media_type = "application/json"

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> dict[str, Any]:
        return arguments.in_json(stream.read())


class AlwaysJson(DefaultContentNegotiation):
    """Whatever a client would rather have: there is only JSON, and a refusal to answer would help nobody."""

    def select_renderer(self, request: Any, renderers: Any, format_suffix: Any = None) -> Any:
        return renderers[0], renderers[0].media_type


def refused(failure: Exception, context: Any = None) -> Response:
    """The exception handler of the API: the answer to everything that raises in a view."""
    error, status = of_framework(failure) if isinstance(failure, APIException) else (door.as_error(failure), None)
    response = Response(as_body(error), status=status or door.status_of(error))
    for name, value in door.error_headers(error):
        response[name.decode()] = value.decode()
    return response


def of_framework(failure: APIException) -> tuple[errors.ParleyError, int | None]:
    """What the framework refuses by itself, in our shape."""
    match failure:
        case MethodNotAllowed():
            return errors.Invalid(
                "This address does not take this method; the header Allow names those it does.",
                code="method_not_allowed",
            ), 405
        case UnsupportedMediaType():
            return errors.Invalid(
                "The body must be `Content-Type: application/json`.", code="unsupported_media_type"
            ), 415
        case NotAuthenticated():
            return door.no_token(), None
    return errors.Invalid("This request cannot be served as it is."), failure.status_code


def as_body(error: errors.ParleyError) -> dict[str, Any]:
    return {"error": error.as_json()}


async def refuse(send: Send, failure: BaseException, headers: Headers | None = None) -> None:
    """The same answer where there is no Django."""
    error = door.as_error(failure)
    await door.answer(send, door.status_of(error), as_body(error), door.error_headers(error) + (headers or []))


def nothing_here(request: HttpRequest, **_: Any) -> HttpResponse:
    """An address under which the API has nothing."""
    return not_found("There is nothing at this address. /api/docs describes what there is.")


def no_sign_in(request: HttpRequest, **_: Any) -> HttpResponse:
    """Where clients look for OAuth: a JSON 404, whatever method and headers, lets them stop looking (docs/protocol.md)."""
    return not_found(
        "This hub has no sign-in for programs: they use a token. The connect page of this hub, at /, says how to get one, and "
        "how to give it to your client."
    )


def not_found(message: str) -> HttpResponse:
    error = errors.NotFound(message)
    return HttpResponse(door.render(as_body(error)), status=door.status_of(error), content_type="application/json")
