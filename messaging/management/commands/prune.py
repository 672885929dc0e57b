"""`manage.py prune`: see `messaging.retention`."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from messaging import retention


class Command(BaseCommand):
    help = "Removes read mail after the soft limit and unread mail after the hard one. Channel history is kept."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--soft-days", type=int, default=retention.SOFT_DAYS, help="for what was read (default 30)")
        parser.add_argument(
            "--hard-days", type=int, default=retention.HARD_DAYS, help="for unread mail too (default 365)"
        )
        parser.add_argument(
            "--key-days", type=int, default=retention.KEY_DAYS, help="for idempotency keys (default 30)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        limits = {k: options[k] for k in ("soft_days", "hard_days", "key_days")}
        try:
            done = retention.prune(**limits)
        except ValueError as refused:
            raise CommandError(str(refused)) from None
        self.stdout.write(f"Removed {done.deliveries} deliveries from {done.inboxes} inboxes, and {done.keys} keys.")
        if done.given_up:
            self.stdout.write(f"Gave up {done.given_up} unread messages past the hard limit: see the audit entries.")
