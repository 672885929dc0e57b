"""The OpenAPI description of the HTTP API, made from what the operations say of themselves.

Request bodies and parameters are the input models, answers the shapes, and the sentences are those of the tools, so nothing here
can drift. drf-spectacular walks the addresses and validates the whole; `complete` adds what it cannot see: the long poll, which
Django does not serve, and the parts that all answers share.
"""

from __future__ import annotations

import re
from typing import Any

from django.conf import settings
from drf_spectacular.openapi import AutoSchema
from pydantic import TypeAdapter
from typing_extensions import TypedDict

from agents import operations
from agents.operations import Operation
from agents.rest.routes import INBOX, ROUTES, Route
from messaging import inputs

Schema = dict[str, Any]

PREFIX = "/api/v1/"
SCHEMAS = "#/components/schemas/"
IN_PATH = re.compile(r"<(\w+)>")
KEY = "idempotency_key"
# Whoever may call an operation: those with a token, and those who are signed in. Some are for one of the two.
BEARER: Schema = {"bearer": []}
SESSION: Schema = {"session": [], "csrf": []}

DESCRIPTION = """\
What the MCP tools do, over plain HTTP: both are the same operations, and an `operationId` is the tool's name wherever there is
one tool. Send `Authorization: Bearer <token>`; the hub's own pages use the session and the header `X-CSRFToken` instead, and
then act as the person who is signed in.

Null for an optional argument means that it is absent; unknown arguments and wrong types are refused. A refusal has a stable
`code`, a `message` that says what to do next, and `retry_after_s`. The header `Parley-Handle` is optional everywhere: it says
whom you take yourself for, and the call is refused (`wrong_profile`) if your credential stands for somebody else.
"""


class Error(TypedDict):
    """Besides these it holds details of the case, like `fields` or `limit`."""

    code: str
    message: str
    retry_after_s: float | None


class OperationSchema(AutoSchema):
    """Tells drf-spectacular of one address what the table says."""

    def get_operation(self, path: str, path_regex: str, path_prefix: str, method: str, registry: Any) -> Schema:
        routes: dict[str, Route] = self.view.routes  # type: ignore[attr-defined]
        return described(routes[method.upper()])


def described(route: Route) -> Schema:
    """The OpenAPI operation of one method of one path."""
    first = route.operation
    names = IN_PATH.findall(route.path)
    operation: Schema = {
        "operationId": route.name or first.name,
        "summary": " / ".join(o.title for o in route.operations),
        "description": _description(route),
        "tags": [route.path.partition("/")[0]],
        "parameters": [_parameter(name, _property(first, name), place="path") for name in names],
        "responses": _responses(route),
        "security": _security(route),
        "x-operations": [o.name for o in route.operations],
    }
    if route.method == "GET":
        schema = inputs.schema(first.input)
        operation["parameters"] += [
            _parameter(name, part, place="query", required=name in schema.get("required", []))
            for name, part in schema["properties"].items()
            if name not in names
        ]
        return operation
    if any(KEY in o.input.model_fields for o in route.operations):
        operation["parameters"].append({"$ref": "#/components/parameters/IdempotencyKey"})
    bodies = [body(o, without=names) for o in route.operations]
    if any(b["properties"] for b in bodies):
        operation["requestBody"] = {
            "required": all(b.get("required") for b in bodies),
            "content": {"application/json": {"schema": bodies[0] if len(bodies) == 1 else {"anyOf": bodies}}},
        }
    return operation


def _description(route: Route) -> str:
    first, other = route.operation, route.other
    if other is None:
        return first.description
    return f"Without `{route.if_given}`: {first.description}\n\nWith `{route.if_given}`: {other.description}"


def _security(route: Route) -> list[Schema]:
    if route is INBOX:
        return [BEARER]
    return [SESSION] if route.operation is operations.ANSWER_QUESTION else [BEARER, SESSION]


def _property(operation: Operation, name: str) -> Schema:
    part: Schema = inputs.schema(operation.input)["properties"][name]
    return part


def _parameter(name: str, part: Schema, *, place: str, required: bool = True) -> Schema:
    schema = dict(part)
    told = {"description": schema.pop("description")} if "description" in schema else {}
    return {"name": name, "in": place, "required": required, **told, "schema": schema}


def body(operation: Operation, *, without: list[str]) -> Schema:
    """The body of a call: its arguments but for those that the path names. The idempotency key may come as a header."""
    schema = inputs.schema(operation.input)
    schema["properties"] = {n: p for n, p in schema["properties"].items() if n not in without}
    required = [n for n in schema.pop("required", []) if n not in without and n != KEY]
    return {**schema, "title": operation.name, **({"required": required} if required else {})}


def _responses(route: Route) -> Schema:
    shape = {"$ref": SCHEMAS + _name(route.operation.output)}
    good = {"description": "Done.", "headers": _headers(), "content": {"application/json": {"schema": shape}}}
    found: Schema = {"200": good}
    if route.creates:
        found["201"] = {**good, "description": "Stored or made by this call."}
        found["200"] = {**good, "description": "A replay: this key had been used before, and nothing was done twice."}
        if KEY not in route.operation.input.model_fields:
            del found["200"]
    codes = ["400", "401", "403", "404", "409", "429", "503"] + ([] if route.method == "GET" else ["413", "415"])
    return found | {code: {"$ref": f"#/components/responses/{REFUSED[code]}"} for code in sorted(codes)}


def _name(shape: Any) -> str:
    name: str = shape.__name__
    return name


RATE = {
    "X-RateLimit-Limit": "Calls that this connection may make in a minute.",
    "X-RateLimit-Remaining": "Calls left in this minute.",
    "X-RateLimit-Reset": "Seconds until the next minute begins.",
}
REFUSED = {
    "400": "Invalid",
    "401": "Unauthenticated",
    "403": "Denied",
    "404": "NotFound",
    "409": "Conflict",
    "413": "TooLarge",
    "415": "NotJson",
    "429": "RateLimited",
    "503": "Unavailable",
}
REFUSED_BECAUSE = {
    "Invalid": "The arguments are wrong: `fields` names each that is.",
    "Unauthenticated": "There is no credential, or none that is good.",
    "Denied": "The credential is good, but does not allow this.",
    "NotFound": "There is no such thing, or you may not know of it.",
    "Conflict": "It contradicts what is stored; nothing was changed.",
    "TooLarge": "The request is larger than the hub takes.",
    "NotJson": "The body is not `application/json`.",
    "RateLimited": "Too many calls; nothing was done.",
    "Unavailable": "Not at this moment: repeat the same call, with the same idempotency key.",
}
MORE_HEADERS: dict[str, Schema] = {
    "Unauthenticated": {"WWW-Authenticate": {"schema": {"type": "string"}}},
    "RateLimited": {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}},
    "Unavailable": {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}},
}


def _headers() -> Schema:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in RATE}


def complete(result: Schema, **_: Any) -> Schema:
    """A hook of drf-spectacular: adds the long poll, and what all answers share."""
    result["info"]["description"] = DESCRIPTION
    result["paths"] = dict(sorted({**result["paths"], PREFIX + INBOX.path: {"get": described(INBOX)}}.items()))
    refusal = {"type": "object", "properties": {"error": {"$ref": SCHEMAS + "Error"}}, "required": ["error"]}
    result["components"] = {
        "schemas": {**_shapes(), "Refusal": refusal},
        "responses": {
            name: {
                "description": told,
                "headers": {**(_headers() if name != "Unauthenticated" else {}), **MORE_HEADERS.get(name, {})},
                "content": {"application/json": {"schema": {"$ref": SCHEMAS + "Refusal"}}},
            }
            for name, told in REFUSED_BECAUSE.items()
        },
        "headers": {name: {"description": told, "schema": {"type": "integer"}} for name, told in RATE.items()},
        "parameters": {"IdempotencyKey": _idempotency_key()},
        "securitySchemes": {
            "bearer": {"type": "http", "scheme": "bearer", "description": "The token of a connection."},
            "session": {
                "type": "apiKey",
                "in": "cookie",
                "name": settings.SESSION_COOKIE_NAME,
                "description": "A person, signed in.",
            },
            "csrf": {
                "type": "apiKey",
                "in": "header",
                "name": "X-CSRFToken",
                "description": "With `session`, to write.",
            },
        },
    }
    return result


def _shapes() -> Schema:
    """The schema of each shape that an answer may have, by its name."""
    shapes = {_name(o.output): o.output for route in (*ROUTES, INBOX) for o in route.operations}
    shapes["Error"] = Error
    adapters = [(name, "serialization", TypeAdapter(shape)) for name, shape in shapes.items()]
    made = TypeAdapter.json_schemas(adapters, ref_template=SCHEMAS + "{model}")  # type: ignore[arg-type]
    inline = {name: schema for (name, _), schema in made[0].items() if "$ref" not in schema}
    return {**made[1].get("$defs", {}), **inline}


def _idempotency_key() -> Schema:
    parameter = _parameter("Idempotency-Key", _property(ROUTES_WITH_KEY[0], KEY), place="header", required=False)
    parameter["description"] += " Give it here or as the field `idempotency_key` of the body; one of them is required."
    return parameter


ROUTES_WITH_KEY = [o for route in ROUTES for o in route.operations if KEY in o.input.model_fields]
