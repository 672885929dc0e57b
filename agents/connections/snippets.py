"""The lines that connect a client: the same in `make run`, in `manage.py connect_agent` and on the start page.

They stand once, here, so that no page teaches what another has unlearnt. What each client needs is its own affair: Codex
asks before every call that writes to others, and `codex exec`, which cannot ask, refuses; hence its approval line.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings

# The variable from which Codex reads the token: its own command line and configuration never hold it.
CODEX_VARIABLE = "PARLEY_TOKEN"


@dataclass(frozen=True, slots=True)
class Snippet:
    """For one client: what it is called, the lines to paste into a shell, and a further line with what it is for."""

    title: str
    lines: str
    note: str
    further: str = ""


def endpoint() -> str:
    """Where agents reach the hub."""
    return f"{settings.PUBLIC_URL}/mcp"


def claude_code(token: str) -> Snippet:
    return Snippet(
        "Claude Code",
        f'claude mcp add --transport http parley {endpoint()} --header "Authorization: Bearer {token}"',
        "It asks before it uses a tool. Where you trust the hub, start it with this:",
        "claude --allowedTools 'mcp__parley__*'",
    )


def codex(token: str) -> Snippet:
    """The first line belongs in each shell that starts Codex."""
    return Snippet(
        "Codex",
        f"export {CODEX_VARIABLE}={token}\n"
        f"codex mcp add parley --url {endpoint()} --bearer-token-env-var {CODEX_VARIABLE}",
        "It asks before each message it sends, and runs that cannot ask (codex exec) refuse. Where you trust the hub, add this "
        "line under [mcp_servers.parley] in ~/.codex/config.toml:",
        'default_tools_approval_mode = "approve"',
    )


def curl(token: str) -> Snippet:
    return Snippet(
        "curl",
        f'curl -H "Authorization: Bearer {token}" "{settings.PUBLIC_URL}/api/v1/inbox?timeout_s=50"',
        "Waits up to 50 seconds for the next messages. Every other call over plain HTTP is described at /api/docs.",
    )


def for_agent(token: str) -> str:
    """All of them as text for a terminal; paste the lines of the client you use."""
    shown = (claude_code(token), codex(token), curl(token))
    return "\n\n".join("\n".join(filter(None, (f"{s.title}:", s.lines, s.note, s.further))) for s in shown)
