"""The lines to paste into an agent's machine, the same on the start page, in `make run` and in `connect_agent`."""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings


@dataclass(frozen=True, slots=True)
class Snippet:
    """For one client: what it is called, the lines to paste, and what to know."""

    title: str
    lines: str
    note: str


def endpoint() -> str:
    return f"{settings.PUBLIC_URL}/mcp"


def claude_code(token: str) -> Snippet:
    lines = f'claude mcp add --transport http parley {endpoint()} --header "Authorization: Bearer {token}"'
    return Snippet(
        "Claude Code", lines, "Then allow its tools when asked, or start it with --allowedTools 'mcp__parley__*'."
    )


def codex(token: str) -> Snippet:
    lines = f"export PARLEY_TOKEN={token}\ncodex mcp add parley --url {endpoint()} --bearer-token-env-var PARLEY_TOKEN"
    note = (
        "For headless runs (`codex exec`) sends need an approval setting, as they reach others. In ~/.codex/config.toml, under "
        '[mcp_servers.parley]: default_tools_approval_mode = "approve"'
    )
    return Snippet("Codex", lines, note)


def curl(token: str) -> Snippet:
    lines = f'curl -H "Authorization: Bearer {token}" "{settings.PUBLIC_URL}/api/v1/inbox?timeout_s=50"'
    return Snippet("curl", lines, "The same over plain HTTP; every call is described at /api/docs.")


def for_agent(token: str) -> str:
    """All of them as text for a terminal; paste the lines of the client you use."""
    return "\n\n".join(f"{s.title}:\n{s.lines}\n({s.note})" for s in (claude_code(token), codex(token), curl(token)))
