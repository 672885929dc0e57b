"""The arguments of a call, gathered from where HTTP puts them: path, query string, JSON body, and the header `Idempotency-Key`.

They are only brought together here; what is right and what is wrong the input models of the operations say, as for MCP.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, get_args
from urllib.parse import parse_qsl

from messaging import errors
from messaging.inputs import Input


def in_query(text: str, model: type[Input]) -> dict[str, Any]:
    """The arguments in a query string, where everything is text: what `model` takes as a number becomes one."""
    found: dict[str, Any] = {}
    for name, value in parse_qsl(text, keep_blank_values=True):
        if name in found:
            raise errors.Invalid(f"`{name[:64]}` is given twice.")
        found[name] = number(value) if takes_number(model, name) else value
    return found


def takes_number(model: type[Input], name: str) -> bool:
    field = model.model_fields.get(name)
    if field is None:
        return False
    return bool({int, float} & {field.annotation, *get_args(field.annotation)})


def number(text: str) -> Any:
    """A number written in decimals; any other text stays as it is, for the model to refuse."""
    if text.removeprefix("-").isascii() and text.removeprefix("-").isdigit() and len(text) < 20:
        return int(text)
    try:
        return float(text) if text.replace(".", "", 1).isascii() and text.replace(".", "", 1).isdigit() else text
    except ValueError:
        return text


def in_json(body: bytes) -> dict[str, Any]:
    """The object that a body holds. Raises `malformed_json`, and `Invalid` for JSON of another kind."""
    try:
        value = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise errors.Invalid("The body is not JSON (RFC 8259) that can be read.", code="malformed_json") from None
    if not isinstance(value, dict):
        raise errors.Invalid("The body is a JSON object that holds the arguments.")
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def joined(given: Mapping[str, Any], in_path: Mapping[str, str]) -> dict[str, Any]:
    """The given arguments and those that the path names."""
    for name in in_path:
        if given.get(name) is not None:
            raise errors.Invalid(f"`{name}` stands in the path; leave it out here.")
    return {**given, **in_path}


def with_key(arguments: dict[str, Any], header: str | None) -> dict[str, Any]:
    """The arguments with the idempotency key from the header, where a proxy or a library prefers to put it."""
    if header is None:
        return arguments
    field = arguments.get("idempotency_key")
    if field is not None and field != header:
        raise errors.Invalid("The header Idempotency-Key and the field `idempotency_key` differ. Give one of them.")
    return {**arguments, "idempotency_key": header}
