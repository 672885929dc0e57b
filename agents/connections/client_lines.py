"""The lines that connect a client: shown by `make run`, by `manage.py connect_agent` and on the start page.

They stand once, here, so that no page teaches what another has unlearnt. What each client needs is its own affair: Codex
asks before every call that writes to others, and `codex exec`, which cannot ask, refuses; hence its approval line.
"""

from __future__ import annotations

from django.conf import settings

# The variable from which Codex reads the token: its own command line and configuration never hold it.
CODEX_VARIABLE = "PARLEY_TOKEN"

CODEX_APPROVAL = 'default_tools_approval_mode = "approve"'


def mcp_url() -> str:
    """Where agents reach the hub."""
    return f"{settings.PUBLIC_URL}/mcp"


def claude_code(token: str) -> list[str]:
    """What to paste into a shell, so that Claude Code has the hub's tools."""
    return [f'claude mcp add --transport http parley {mcp_url()} --header "Authorization: Bearer {token}"']


def codex(token: str) -> list[str]:
    """What to paste into a shell, so that Codex has them; the first line in each shell that starts Codex.

    `CODEX_APPROVAL` belongs under `[mcp_servers.parley]` in `~/.codex/config.toml`, which the second line makes.
    """
    return [
        f"export {CODEX_VARIABLE}={token}",
        f"codex mcp add parley --url {mcp_url()} --bearer-token-env-var {CODEX_VARIABLE}",
    ]
