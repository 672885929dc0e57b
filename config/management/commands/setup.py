"""`manage.py setup`: tables, and on a fresh hub the first account and the lines that connect two agents. Safe to repeat.

It stands in `config` beside `serve`, as it brings all parts of a hub together.
"""

from __future__ import annotations

import os
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand

from agents.connections import snippets
from agents.connections.first_account import FirstAccount, create_first_account

FRESH = """
Parley is ready.

  Address    {url}
  Account    {account.name}
  Password   {account.password}   (shown only now; sign in at {url}/admin/)

Connect Claude Code; paste into a shell:

  {claude_code}

Connect Codex; paste into a shell:

  {codex}

and add this line under [mcp_servers.parley] in ~/.codex/config.toml, as Codex would otherwise ask before each message:

  {approval}

These two tokens are shown only now. Then tell each of the two agents: "Claim a handle on parley, and wait for messages."
"""

AGAIN = """
Parley is set up at {url}; its accounts and tokens are as they were.

  Another agent      .venv/bin/python manage.py connect_agent --owner {name}
  A new password     .venv/bin/python manage.py changepassword {name}
"""


class Command(BaseCommand):
    help = "Makes or updates the tables and, on a fresh hub, the first account, its channel and two agents' tokens."

    def handle(self, *args: Any, **options: Any) -> None:
        call_command("migrate", verbosity=0, stdout=self.stdout)
        account = create_first_account(wish=os.environ.get("USER", ""))
        if account:
            self.stdout.write(fresh(account))
        else:
            first = get_user_model().objects.filter(is_superuser=True).order_by("pk").first()
            self.stdout.write(AGAIN.format(url=settings.PUBLIC_URL, name=first.get_username() if first else "NAME"))


def fresh(account: FirstAccount) -> str:
    claude_code, codex = snippets.claude_code(account.claude_code_token), snippets.codex(account.codex_token)
    return FRESH.format(
        url=settings.PUBLIC_URL,
        account=account,
        claude_code=claude_code.lines,
        codex=codex.lines.replace("\n", "\n  "),
        approval=codex.further,
    )
