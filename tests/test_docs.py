"""The documentation says what the code does."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path

from django.core.management import call_command

CODE = re.compile(r'\bcode ?= ?"([a-z_]+)"')
# Names of sorts that always carry a more particular code, or never leave the hub.
NEVER_SEEN = {"denied", "conflict", "unavailable", "credential_stale"}

DOCS = Path(__file__).resolve().parent.parent / "docs"


def test_the_tool_reference_is_what_the_hub_serves():
    printed = StringIO()
    call_command("describe_tools", stdout=printed)
    assert (DOCS / "tools.md").read_text() == printed.getvalue(), "run: manage.py describe_tools > docs/tools.md"


def test_each_error_code_is_in_the_protocol():
    protocol = (DOCS / "protocol.md").read_text()
    sources = [p.read_text() for folder in ("messaging", "agents") for p in (DOCS.parent / folder).rglob("*.py")]
    codes = {code for text in sources for code in CODE.findall(text)} - NEVER_SEEN
    assert "idempotency_key_reused" in codes, "the way codes are written has changed"
    assert {c for c in codes if f"`{c}`" not in protocol} == set()
