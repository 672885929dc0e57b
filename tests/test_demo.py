"""The demo's experiments against the test hub, without its clock: how fast they are is for `make demo` to say."""

from __future__ import annotations

import io
import os
import re
import secrets
import subprocess
import sys

import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command

from agents.connections import credentials
from agents.connections.models import Connection
from agents.demo import latencies, promises
from agents.demo.client import is_parley
from agents.demo.stage import Stage
from agents.demo.tables import aligned
from messaging.models import Channel, Profile
from tests.processes import ROOT, free_port


def issue(owner):
    account, _ = get_user_model().objects.get_or_create(username=owner)
    return credentials.issue_connection(owner=account, name="demo")[1]


@pytest.fixture
def stage(hub):
    with Stage(f"http://127.0.0.1:{hub.port}", issue) as made:
        yield made


def not_held(result):
    return [(must.what, must.ours) for must in result.musts if not must.holds]


@pytest.mark.parametrize("experiment", [promises.claims, promises.mentions, promises.drops, promises.keys])
def test_what_the_demo_promises_holds(stage, experiment):
    result = experiment(stage)
    assert result.rows
    assert not_held(result) == []


def test_without_a_cursor_the_thrown_away_answers_are_what_is_left_in_the_inbox(stage):
    (_, with_cursor), (_, without) = ((row[0], row[3:]) for row in promises.drops(stage, messages=10, every=5).rows)
    assert with_cursor == ("10/10", "2 came again, marked redelivered")
    assert without == ("8/10", "2/2 in inbox_peek")


def test_each_way_of_asking_gets_every_message(stage):
    result = latencies.polling(stage, over_s=0.5)
    assert [row[0] for row in result.rows] == ["long poll", "polling every 2 s", "polling every 10 s"]
    assert all(int(row[4]) for row in result.rows)


def test_the_official_client_gets_every_message(stage):
    assert len(latencies.official_client(stage, over_s=0.3).rows) == 1


def test_a_message_to_one_of_many_idle_agents_is_answered_to_nobody_else(stage):
    (row,) = latencies.idle(stage, agents=7, over_s=0.3).rows
    assert (row[0], row[-1]) == ("7", "0")


def test_the_instants_are_the_same_in_each_run_and_leave_time_to_arrive():
    assert latencies.instants(60) == latencies.instants(60)
    assert all(0 < instant < 59 for instant in latencies.instants(60))


def play(hub):
    """Runs the command; returns what it printed and what it said does not hold, if anything (a busy machine may be slow)."""
    printed = io.StringIO()
    try:
        call_command("demo", url=f"http://127.0.0.1:{hub.port}", seconds=0.3, agents=3, stdout=printed)
    except CommandError as raised:
        return printed.getvalue(), str(raised)
    return printed.getvalue(), ""


def test_the_command_plays_beside_others_says_what_does_not_hold_and_takes_back_what_it_gave(hub, agent):
    # Somebody has a name of the published tables already.
    bob = agent("bob-codex")
    printed, refusal = play(hub)
    verdicts = re.findall(r"  (yes|NO)$", printed, re.MULTILINE)
    assert len(verdicts) == 11
    assert refusal.startswith("Does not hold: ") == ("NO" in verdicts)
    assert bob.call("whoami")["unread"] == 0
    assert [one.pk for one in Connection.objects.filter(revoked_at=None)] == [bob.connection.pk]
    assert [one.handle for one in Profile.objects.filter(released_at=None)] == ["bob-codex"]
    assert not Channel.objects.exclude(kind="direct").filter(archived_at=None).exists()


def test_an_address_without_a_hub_is_said_so(db):
    url = f"http://127.0.0.1:{free_port()}"
    assert not is_parley(url)
    with pytest.raises(CommandError, match="No Parley answers at"):
        call_command("demo", url=url)


@pytest.mark.sqlite
def test_a_hub_of_its_own_leaves_nothing_behind(tmp_path):
    environment = {
        "PATH": os.environ["PATH"],
        "TMPDIR": str(tmp_path),
        "PARLEY_ENV_FILE": os.devnull,
        "SECRET_KEY": secrets.token_urlsafe(48),
        "PUBLIC_URL": f"http://127.0.0.1:{free_port()}",
        "DATABASE_URL": f"sqlite:///{tmp_path}/own.sqlite3",
    }
    command = [sys.executable, "manage.py", "demo", "--seconds", "0.1", "--agents", "2"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    printed = done.stdout
    assert "What has to hold" in printed, done.stderr
    assert done.returncode == (1 if "  NO\n" in printed else 0)
    assert list(tmp_path.iterdir()) == []
    played_at = re.search(r"plays at (\S+)", printed)
    assert played_at
    assert not is_parley(played_at[1])


def test_figures_end_flush_and_words_begin_flush():
    assert aligned(("what", "how much"), [("some", "1.0 ms"), ("more", "1,000.0 ms")]) == [
        "  what    how much",
        "  ----  ----------",
        "  some      1.0 ms",
        "  more  1,000.0 ms",
    ]
