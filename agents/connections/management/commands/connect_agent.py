"""`manage.py connect_agent`: a token for an agent, shown this once."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from agents.connections import credentials, snippets
from messaging import errors


class Command(BaseCommand):
    help = "Makes a connection for an agent of this owner and prints its token, once."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--owner", required=True, help="the account that owns the agent")
        parser.add_argument("--handle", help="the profile it acts as; without it the agent claims one itself")
        parser.add_argument("--name", default="", help="what the connection is called in lists")
        parser.add_argument("--read-only", action="store_true", help="without the scope `write`")
        parser.add_argument("--days", type=int, help="valid so many days; without it until revoked")
        parser.add_argument("--token-only", action="store_true", help="print the token alone, for scripts")

    def handle(self, *args: Any, **options: Any) -> None:
        accounts = get_user_model()
        owner = accounts.objects.filter(**{accounts.USERNAME_FIELD: options["owner"]}).first()
        if owner is None:
            raise CommandError(f"There is no account {options['owner']!r}.")
        if options["days"] is not None and options["days"] < 1:
            raise CommandError("--days is 1 or more.")
        try:
            connection, token = credentials.issue_connection(
                owner=owner,
                name=options["name"] or options["handle"] or "agent",
                handle=options["handle"],
                can_write=not options["read_only"],
                expires_at=timezone.now() + timedelta(days=options["days"]) if options["days"] else None,
            )
        except errors.ParleyError as refused:
            raise CommandError(f"{refused.code}: {refused.message}") from None
        if options["token_only"]:
            self.stdout.write(token)
            return
        self.stdout.write(f"Connection {connection.name} ({connection.connection_id}) of {options['owner']}.")
        self.stdout.write(f"Its token, shown only now: {token}\n\n{snippets.for_agent(token)}")
