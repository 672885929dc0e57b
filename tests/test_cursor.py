"""The cursor: what was handed out comes again until it is acknowledged, in the order of commits, and never after that."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from contextlib import closing
from datetime import timedelta

import pytest
from django.utils import timezone

from agents.connections import credentials
from messaging import store
from messaging.models import Delivery, Message
from tests.hub import Refused, eventually
from tests.interleaving import fill_inbox, in_loop, is_waiting_for_a_lock, offers_held


def state_of(sender, receipt):
    """The one delivery of a message, as its sender sees it now."""
    (delivered,) = sender.call("message_status", message_id=receipt["message_id"])["deliveries"]
    return delivered


def without_age(messages):
    return [{k: v for k, v in m.items() if k != "age_s"} for m in messages]


# --- Lost answers ---------------------------------------------------------------------------------------------------


@pytest.mark.fault("L1")
@pytest.mark.mutant(
    "messaging/statements.py",
    '"UPDATE delivery SET offered_at = COALESCE(offered_at, %s), offers = offers + 1 "',
    '"UPDATE delivery SET acknowledged_at = %s, offers = offers + 1 "',
)
def test_a_message_whose_answer_was_thrown_away_comes_again_with_the_last_processed_sequence(agent, door):
    alice, bob = agent("alice"), agent("bob")
    sent = [alice.send("bob", body)["message_id"] for body in ("one", "two", "three")]
    processed = bob.wait(limit=1)
    assert [m["message_id"] for m in processed["messages"]] == sent[:1]

    bob.wait(after_sequence=processed["after_sequence"])  # And this answer is lost.

    page = bob.wait(after_sequence=processed["after_sequence"])
    assert [m["message_id"] for m in page["messages"]] == sent[1:]


@pytest.mark.fault("L1")
def test_a_receipt_says_no_more_than_what_happened(agent, door):
    alice, bob = agent("alice"), agent("bob")
    receipt = alice.send("bob")
    assert receipt["delivered"][0]["state"] == "stored"
    assert state_of(alice, receipt)["state"] == "stored"

    page = bob.wait(after_sequence=0)  # Thrown away or not: the hub cannot know.
    offered = state_of(alice, receipt)
    assert (offered["state"], offered["acknowledged_at"]) == ("offered", None)

    bob.wait(after_sequence=page["after_sequence"])
    assert state_of(alice, receipt)["state"] == "acknowledged"


@pytest.mark.fault("L1")
@pytest.mark.mutant(
    "agents/operations.py",
    'if look.offer and bell.ended in {"gone", "cancelled"}:',
    'if look.offer and bell.ended == "cancelled":',
    on="postgresql",
)
def test_what_was_marked_for_an_answer_that_found_its_client_gone_is_not_offered(hub, agent, door):
    alice, bob = agent("alice"), agent("bob")
    receipt = alice.send("bob", "still here?")
    a_wait_whose_client_dies_before_the_answer(hub, bob)

    held = eventually(lambda: Delivery.objects.filter(offered_at=None).first(), "the offer is taken back")
    if store.on_postgres():
        assert held.offers == 1
    assert state_of(alice, receipt)["state"] == "stored"
    (message,) = bob.wait()["messages"]
    assert (message["body"], message["redelivered"]) == ("still here?", held.offers > 0)


@pytest.mark.fault("L1")
def test_an_offer_that_is_taken_back_leaves_an_earlier_one_as_it_was(hub, agent, door):
    alice, bob = agent("alice"), agent("bob")
    receipt = alice.send("bob", "read this")
    page = bob.wait(after_sequence=0)
    before = state_of(alice, receipt)
    assert before["state"] == "offered"

    a_wait_whose_client_dies_before_the_answer(hub, bob)

    assert state_of(alice, receipt) == before
    # So the cursor of the answer that did arrive acknowledges it.
    bob.wait(after_sequence=page["after_sequence"])
    assert state_of(alice, receipt)["state"] == "acknowledged"


def a_wait_whose_client_dies_before_the_answer(hub, agent) -> None:
    """Waits from the beginning of an inbox that has messages; the client is gone when they have been marked as offered."""
    with offers_held(agent.profile.inbox_id):
        with closing(socket.create_connection(("127.0.0.1", hub.port))) as client:
            address = client.getsockname()
            client.sendall(raw_wait(agent))
            eventually(agent.waiters, "the wait is open")
            if store.on_postgres():
                eventually(is_waiting_for_a_lock, "the hub has read the page and is about to mark it as offered")
        eventually(lambda: address not in addresses(hub), "the hub has seen the client go")
        in_loop(hub)
    eventually(lambda: not hub.server.server_state.tasks, "the wait is over")


def addresses(hub):
    """From where the hub has open connections."""
    return [connection.client for connection in list(hub.server.server_state.connections)]


def raw_wait(agent) -> bytes:
    """The bytes of a request that waits, through this agent's door."""
    lines = [f"Host: 127.0.0.1:{agent.hub.port}", f"Authorization: Bearer {agent.token}"]
    body = ""
    if agent.door == "mcp":
        params = {"name": "wait_for_messages", "arguments": {"after_sequence": 0}}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        lines = ["POST /mcp HTTP/1.1", *lines, "Content-Type: application/json", f"Content-Length: {len(body)}"]
    else:
        lines = ["GET /api/v1/inbox?after_sequence=0 HTTP/1.1", *lines]
    return "\r\n".join([*lines, "", body]).encode()


CLIENT = """
import http.client, json, sys
port, token = int(sys.argv[1]), sys.argv[2]
connection = http.client.HTTPConnection("127.0.0.1", port)
params = {"name": "wait_for_messages", "arguments": {"timeout_s": 0}}
body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
headers = {"Content-Type": "application/json", "Authorization": "Bearer " + token}
connection.request("POST", "/mcp", body, headers)
page = json.load(connection.getresponse())["result"]["structuredContent"]
print(*[m["body"] for m in page["messages"]], flush=True)
sys.stdin.read()
"""


@pytest.mark.fault("L24")
def test_a_client_killed_between_receiving_and_acknowledging_gets_the_messages_again(hub, agent):
    alice, bob = agent("alice"), agent("bob")
    alice.send("bob", "first")
    alice.send("bob", "second")
    command = [sys.executable, "-c", CLIENT, str(hub.port), bob.token]
    client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with client:
        assert client.stdout is not None
        assert client.stdout.readline().split() == ["first", "second"]
        client.kill()

    again = bob.wait(after_sequence=0)["messages"]
    assert [(m["body"], m["redelivered"]) for m in again] == [("first", True), ("second", True)]


@pytest.mark.fault("L24")
def test_of_1000_unread_messages_all_can_be_read(agent, door):
    alice, bob = agent("alice"), agent("bob")
    fill_inbox(bob.profile, alice.profile, 1_000)
    everything = [str(n) for n in range(1, 1_001)]

    peeked, after = [], 0
    while (part := bob.peek(limit=50, after_sequence=after))["messages"]:
        peeked += part["messages"]
        after = peeked[-1]["sequence"]
    assert [m["body"] for m in peeked] == everything

    read, page = [], bob.wait(after_sequence=0, limit=50)
    while page["messages"]:
        read += [m["body"] for m in page["messages"]]
        assert page["has_more"] == (len(read) < 1_000)
        page = bob.wait(after_sequence=page["after_sequence"], limit=50)
    assert read == everything


@pytest.mark.fault("L2")
def test_mail_for_an_offline_handle_is_there_after_its_token_was_rotated(agent, door):
    alice, bob = agent("alice"), agent("bob")
    alice.send("bob", "when you are back")

    former, bob.token = bob.token, credentials.rotate_token(connection=bob.connection)

    assert bob.bodies() == ["when you are back"]
    bob.token = former
    with pytest.raises(Refused) as refused:
        bob.wait()
    assert (refused.value.status, refused.value.code) == (401, "invalid_token")


@pytest.mark.fault("L2")
def test_mail_stays_when_the_only_connection_of_a_handle_was_revoked_and_another_joins_it(agent, door):
    alice, bob = agent("alice"), agent("bob")
    alice.send("bob", "for whoever is bob")
    credentials.revoke_connection(connection=bob.connection)

    heir = agent()
    heir.claim("bob")

    assert heir.bodies() == ["for whoever is bob"]


# --- Reading changes nothing ----------------------------------------------------------------------------------------


@pytest.mark.fault("L4")
def test_two_identical_looks_at_the_inbox_give_identical_rows(agent, door):
    alice, bob = agent("alice"), agent("bob")
    receipt = alice.send("bob", "one")
    alice.send("bob", "two")

    first, second = bob.peek(), bob.peek()
    assert without_age(first["messages"]) == without_age(second["messages"])
    assert first["pending"] == second["pending"] == bob.call("whoami")["unread"] == 2
    assert state_of(alice, receipt)["state"] == "stored"


@pytest.mark.fault("L4")
def test_two_waits_with_one_cursor_give_identical_rows_until_one_acknowledges(agent, door):
    alice, bob = agent("alice"), agent("bob")
    alice.send("bob", "one")
    alice.send("bob", "two")
    bob.wait(after_sequence=0)

    pages = [bob.wait(after_sequence=0) for _ in range(2)]
    assert without_age(pages[0]["messages"]) == without_age(pages[1]["messages"])
    assert bob.call("whoami")["unread"] == 2

    bob.call("acknowledge", message_ids=[pages[0]["messages"][0]["message_id"]])
    assert bob.bodies(after_sequence=0) == ["two"]
    assert bob.call("whoami")["unread"] == 1


# --- Order ----------------------------------------------------------------------------------------------------------


@pytest.mark.fault("L5")
@pytest.mark.parametrize("step", [timedelta(0), -timedelta(minutes=1)], ids=["equal times", "a clock that goes back"])
def test_order_and_cursor_do_not_depend_on_a_clock(agent, door, step):
    alice, bob = agent("alice"), agent("bob")
    bodies = ["one", "two", "three", "four", "five"]
    now = timezone.now()
    for number, body in enumerate(bodies):
        receipt = alice.send("bob", body)
        Message.objects.filter(pk=receipt["message_id"]).update(created_at=now + number * step)

    got, page = [], bob.wait(after_sequence=0, limit=2)
    while page["messages"]:
        got += page["messages"]
        page = bob.wait(after_sequence=page["after_sequence"], limit=2)
    assert [(m["sequence"], m["body"]) for m in got] == list(enumerate(bodies, start=1))

    read, after = [], 0
    while (part := bob.call("read_channel", channel="@alice", after_channel_sequence=after, limit=2))["messages"]:
        read += [m["body"] for m in part["messages"]]
        after = part["after_channel_sequence"]
    assert read == bodies


@pytest.mark.fault("L7")
@pytest.mark.parametrize("with_cursor", [True, False])
def test_what_is_sent_between_two_waits_is_returned_by_the_next_at_once(agent, door, with_cursor):
    alice, bob = agent("alice"), agent("bob")
    alice.send("bob", "before")
    page = bob.wait(after_sequence=0)
    assert bob.wait(after_sequence=page["after_sequence"])["messages"] == []

    alice.send("bob", "between")

    cursor = {"after_sequence": page["after_sequence"]} if with_cursor else {}
    assert [m["body"] for m in bob.waiting(**cursor).result(5)["messages"]] == ["between"]


# --- Repeats --------------------------------------------------------------------------------------------------------


@pytest.mark.fault("L14")
def test_a_repeat_has_the_same_id_and_sequence_and_says_that_it_is_one(agent, door):
    alice, bob = agent("alice"), agent("bob")
    alice.send("bob", "one")
    alice.send("bob", "two")

    first, again = (bob.wait(after_sequence=0)["messages"] for _ in range(2))

    assert [m["redelivered"] for m in first] == [False, False]
    assert [m["redelivered"] for m in again] == [True, True]
    assert [(m["message_id"], m["sequence"]) for m in first] == [(m["message_id"], m["sequence"]) for m in again]


@pytest.mark.fault("L14")
@pytest.mark.parametrize("how", ["by cursor", "by ids", "through a sequence"])
def test_what_was_acknowledged_never_comes_again(agent, door, how):
    alice, bob = agent("alice"), agent("bob")
    for body in ("one", "two", "three"):
        alice.send("bob", body)
    page = bob.wait(after_sequence=0, limit=2)
    if how == "by cursor":
        bob.wait(after_sequence=page["after_sequence"], limit=1)
    elif how == "by ids":
        bob.call("acknowledge", message_ids=[m["message_id"] for m in page["messages"]])
    else:
        bob.call("acknowledge", through_sequence=page["after_sequence"])

    assert bob.bodies(after_sequence=0) == ["three"]
    assert [m["body"] for m in bob.peek()["messages"]] == ["three"]


@pytest.mark.fault("L14")
def test_what_one_connection_acknowledged_does_not_come_over_another_connection_of_the_profile(agent, door):
    alice, bob = agent("alice"), agent("bob")
    also_bob = agent("bob")
    alice.send("bob", "once")
    page = bob.wait(after_sequence=0)
    bob.call("acknowledge", through_sequence=page["after_sequence"])

    assert also_bob.bodies(after_sequence=0) == []


@pytest.mark.fault("L27")
def test_offering_again_counts_the_offers_and_adds_no_row(agent, door):
    alice, bob = agent("alice"), agent("bob")
    alice.send("bob", "again and again")
    for _ in range(5):
        assert bob.bodies(after_sequence=0) == ["again and again"]

    assert list(Delivery.objects.values_list("sequence", "offers")) == [(1, 5)]
    assert bob.wait(after_sequence=0)["tail_sequence"] == 1


@pytest.mark.fault("L27")
def test_a_message_that_is_never_acknowledged_ends_once_as_expired_and_is_offered_no_more(agent, door):
    alice, bob = agent("alice"), agent("bob")
    receipt = alice.send("bob", "soon pointless", expires_in_s=60)
    for _ in range(3):
        bob.wait(after_sequence=0)
    Message.objects.update(expires_at=timezone.now() - timedelta(seconds=1))

    for _ in range(3):
        assert bob.bodies(after_sequence=0) == []
    assert state_of(alice, receipt)["state"] == "expired"
    assert list(Delivery.objects.values_list("offers", flat=True)) == [3]


# --- Cursors that cannot be ------------------------------------------------------------------------------------------


def test_a_cursor_ahead_of_the_inbox_is_refused_at_once_with_the_tail(agent, door):
    alice, bob = agent("alice"), agent("bob")
    alice.send("bob", "one")

    refusal = bob.refusal("wait_for_messages", after_sequence=7, timeout_s=50)

    assert (refusal["code"], refusal["tail_sequence"]) == ("cursor_ahead", 1)
    alice.send("bob", "two")
    assert bob.bodies(after_sequence=refusal["tail_sequence"]) == ["two"]
