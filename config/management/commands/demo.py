"""`manage.py demo`: the published experiment on this hub, or on one made for it (`agents.demo`).

It stands beside `serve` and `setup`, as it starts one. What the scripted agents need of the hub's inside is done here: tokens
for them, and afterwards an end to what they were given.
"""

from __future__ import annotations

import argparse
import logging
import secrets
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError
from django.db import connection, transaction

from agents.connections import credentials
from agents.connections.models import Connection
from agents.demo import own_hub
from agents.demo.client import Refused, is_parley
from agents.demo.play import FULL_S, IDLE_AGENTS, QUICK_S, play
from agents.demo.stage import GUEST, OWNER, Stage
from messaging import channels, profiles
from messaging.models import Channel, Profile


class Command(BaseCommand):
    help = (
        "Scripted agents claim, mention, wait, lose answers and resend over /mcp, and print what they measured beside published "
        "figures. On the hub at PUBLIC_URL if it runs, else on one of its own that leaves nothing behind. Exit code 1 if a value "
        "that has to hold does not."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--quick", action="store_true", help=f"within {QUICK_S:g} s instead of {FULL_S:g} s")
        parser.add_argument(
            "--url", help="where a process of this hub (same DATABASE_URL) answers, if not at PUBLIC_URL"
        )
        parser.add_argument("--own", action="store_true", help="a hub of its own, even if this one runs")
        parser.add_argument("--seconds", type=float, help="how long the comparison with polling takes")
        parser.add_argument("--agents", type=int, default=IDLE_AGENTS, help="how many idle agents (%(default)s)")

    def handle(self, *args: Any, **options: Any) -> None:
        over_s = options["seconds"] or (QUICK_S if options["quick"] else FULL_S)
        url = options["url"] or settings.PUBLIC_URL
        with every_stop_clears_up():
            if not options["own"] and is_parley(url):
                self.play(url, over_s, options["agents"])
            elif options["url"]:
                raise CommandError(
                    f"No Parley answers at {url}. Start it, or leave out --url for a hub of the demo's own."
                )
            else:
                self.play_on_own_hub(over_s, options["agents"])

    def play(self, url: str, over_s: float, agents: int) -> None:
        for chatty in ("httpx", "mcp"):
            logging.getLogger(chatty).setLevel(logging.WARNING)  # A line for each call, in between the tables.
        self.stdout.write(f"The demo plays at {url} ({connection.display_name}).")
        try:
            with let_in(url) as stage:
                failed = play(stage, over_s=over_s, idle_agents=agents, say=self.say)
        except Refused as refused:
            if refused.status == 401:
                text = f"{url} does not know a token made in this DATABASE_URL: it is another hub. Try --own."
                raise CommandError(text) from None
            raise CommandError(f"The hub refused a call of the demo: {refused}") from refused
        if failed:
            raise CommandError(f"Does not hold: {'; '.join(must.what for must in failed)}.")
        self.say("\nAll of it holds.")

    def play_on_own_hub(self, over_s: float, agents: int) -> None:
        self.say("The demo starts a hub of its own, with a database that is thrown away afterwards.")
        try:
            with own_hub.served(settings.BASE_DIR / "manage.py") as hub:
                code = hub.run("demo", "--url", hub.url, "--seconds", str(over_s), "--agents", str(agents))
        except RuntimeError as failure:
            raise CommandError(str(failure)) from failure
        if code:
            sys.exit(code)

    def say(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()  # Each table as soon as it is there, into a pipe too.


@contextmanager
def every_stop_clears_up() -> Iterator[None]:
    """Inside the block SIGTERM, like Ctrl-C, goes through what clears up, and neither prints where it struck."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def let_in(url: str) -> Iterator[Stage]:
    """A stage on this hub. Afterwards its tokens are revoked, its handles released and its channels archived."""
    issued: list[Connection] = []
    # On a hub that nobody uses yet the handles are those of the published tables.
    suffix = f"-{secrets.token_hex(2)}" if Profile.objects.filter(kind=Profile.Kind.AGENT).exists() else ""
    stage = Stage(url, issuer(issued), suffix)
    try:
        with stage:
            yield stage
    finally:
        clear_up(issued, stage)


def issuer(issued: list[Connection]) -> Callable[[str], str]:
    """Makes tokens for the demo's two owners, accounts with which nobody can sign in."""
    accounts: dict[str, Any] = {}

    def issue(owner: str) -> str:
        if owner not in accounts:
            accounts[owner], made = get_user_model().objects.get_or_create(username=owner)
            if made:
                accounts[owner].set_unusable_password()
                accounts[owner].save()
        made_connection, token = credentials.issue_connection(owner=accounts[owner], name="demo")
        issued.append(made_connection)
        return token

    return issue


@transaction.atomic
def clear_up(issued: list[Connection], stage: Stage) -> None:
    for one in issued:
        credentials.revoke_connection(connection=one, by=one.owner)
    own = Profile.objects.filter(owner__username__in=[OWNER, GUEST], handle__in=stage.handles, released_at=None)
    for profile in own.select_related("owner"):
        for channel in Channel.objects.filter(created_by=profile):
            channels.archive_channel(channel=channel, by=profile.owner)
        profiles.release_handle(profile=profile, by=profile.owner)
