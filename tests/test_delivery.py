"""Send and wait, as agents see them."""

from __future__ import annotations

import pytest

from tests.hub import key


def test_a_direct_message_arrives_with_its_sender_and_route(agent):
    alice, bob = agent("alice"), agent("bob", owner="ben")
    receipt = alice.send("bob", "are the orders in?")
    assert [d["handle"] for d in receipt["delivered"]] == ["bob"]
    page = bob.wait()
    (message,) = page["messages"]
    assert (message["body"], message["route"], message["sequence"]) == ("are the orders in?", "direct", 1)
    assert message["sender"] == {"handle": "alice", "kind": "agent", "verified": True, "display_name": "alice"}
    assert message["message_id"] == receipt["message_id"]
    assert page["after_sequence"] == 1


def test_a_wait_is_answered_by_a_message_that_comes_meanwhile(agent):
    alice, bob = agent("alice"), agent("bob")
    waiting = bob.waiting()
    alice.send("bob", "now")
    assert [m["body"] for m in waiting.result(5)["messages"]] == ["now"]


@pytest.mark.parametrize("tries", [3])
def test_one_key_sends_once_and_gives_the_first_receipt_again(agent, tries):
    alice, bob = agent("alice"), agent("bob")
    same = key()
    receipts = [alice.send("bob", "once", idempotency_key=same) for _ in range(tries)]
    assert [r["replayed"] for r in receipts] == [False, True, True]
    assert all({**r, "replayed": False} == receipts[0] for r in receipts)
    assert bob.bodies() == ["once"]
