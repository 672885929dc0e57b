"""Who is here: shown at once by the process that knows, and written in batches for the others."""

from __future__ import annotations

from agents.connections import usage
from agents.connections.models import Connection
from messaging import presence
from messaging.models import Presence


def peer(agent, handle):
    return next(p for p in agent.call("list_peers")["peers"] if p["handle"] == handle)


def test_a_waiting_agent_is_shown_as_waiting_and_no_longer_than_it_waits(agent):
    alice, bob = agent("alice"), agent("bob")
    assert peer(alice, "bob")["presence"] == {"state": "away", "last_seen_at": None}
    waiting = bob.waiting()
    assert peer(alice, "bob")["waiting"] is True
    alice.send("bob", "you may stop")
    waiting.result(5)
    shown = peer(alice, "bob")
    assert (shown["waiting"], shown["presence"]["state"]) == (False, "active")


def test_presence_and_use_are_written_together_and_what_did_not_change_stays(agent):
    bob = agent("bob")
    assert bob.wait()["messages"] == []
    usage.flush()
    presence.flush()
    row = Presence.objects.get(profile=bob.profile)
    assert row.last_seen_at is not None
    connection = Connection.objects.get(pk=bob.connection.pk)
    assert connection.empty_polls == 1
    assert connection.last_used_at is not None
    presence.flush()
    assert Presence.objects.get(profile=bob.profile).last_seen_at == row.last_seen_at


def test_an_agent_for_whom_nobody_waits_is_told_to_stop(agent):
    bob = agent("bob")
    actions = [bob.wait()["advice"]["action"] for _ in range(4)]
    assert actions == ["wait", "wait", "stop", "stop"]


def test_an_agent_that_is_owed_an_answer_is_told_to_go_on(agent):
    alice, bob = agent("alice"), agent("bob")
    bob.send("alice", "are they in?")
    assert [bob.wait()["advice"]["action"] for _ in range(4)] == ["wait"] * 4
    alice.send("bob", "yes")
    assert bob.bodies() == ["yes"]
    advice = bob.wait()["advice"]
    assert (advice["action"], advice["empty_polls"]) == ("wait", 1)
