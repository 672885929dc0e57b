"""`manage.py describe_tools`: the reference of all tools, made from the registry that also answers `tools/list`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core.management.base import BaseCommand

from agents import operations
from messaging import inputs

HEAD = """# Tools

Made by `manage.py describe_tools > docs/tools.md`; a test compares. Bold arguments are required, null means absent, and
unknown arguments or other types are refused. The HTTP twin of each tool takes the same arguments (see `/api/docs`).
"""


class Command(BaseCommand):
    help = "Prints the reference of all tools as Markdown: docs/tools.md."

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write("\n".join([HEAD, *described()]), ending="")


def described() -> Iterator[str]:
    for operation in operations.OPERATIONS:
        world = "open world" if operation.open_world else "closed world"
        scope = "read-only" if operation.scope == "read" else f"writes, {world}"
        yield f"## `{operation.name}`\n\n{operation.description}\n\nScope `{operation.scope}`; {scope}.\n"
        schema = inputs.schema(operation.input)
        if schema["properties"]:
            yield "| argument | type | meaning |\n|---|---|---|"
            yield from (
                row(name, field, name in schema.get("required", [])) for name, field in schema["properties"].items()
            )
            yield ""


def row(name: str, field: dict[str, Any], required: bool) -> str:
    default = f" Default: {field['default']}." if field.get("default") not in (None, "", []) else ""
    return f"| {f'**{name}**' if required else name} | {type_of(field)} | {field.get('description', '')}{default} |"


def type_of(field: dict[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(type_of(option) for option in field["anyOf"])
    if field["type"] == "array":
        return f"list of {type_of(field['items'])}"
    return "UUID" if field.get("format") == "uuid" else str(field["type"])
