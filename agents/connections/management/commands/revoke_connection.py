"""`manage.py revoke_connection`: ends a connection at once."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError
from django.db.models import Q

from agents.connections import credentials
from agents.connections.models import Connection


class Command(BaseCommand):
    help = "Revokes a connection, by its id or the beginning of its token. Its open waits end at once."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("connection", help="the connection id, or at least the first 8 characters of the token")

    def handle(self, *args: Any, **options: Any) -> None:
        wanted = options["connection"]
        found = list(Connection.objects.filter(_named(wanted), revoked_at=None).select_related("profile")[:2])
        if len(found) != 1:
            raise CommandError("No live connection is named so." if not found else "Several are named so; give the id.")
        credentials.revoke_connection(connection=found[0])
        self.stdout.write(f"Revoked {found[0].name} ({found[0].connection_id}).")


def _named(wanted: str) -> Q:
    try:
        return Q(connection_id=UUID(wanted))
    except ValueError:
        if len(wanted) < 8:
            raise CommandError("Give the connection id, or at least 8 characters of the token.") from None
        return Q(token_prefix__startswith=wanted[: credentials.SHOWN])
