"""What agents can do, the same through each door: every body runs through MCP and through HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from messaging import profiles
from tests.hub import eventually, in_background, key

# Each test runs once for each door.
pytestmark = pytest.mark.usefixtures("door")

NOBODY = "00000000-0000-0000-0000-000000000000"


@pytest.fixture
def alice(agent):
    return agent("alice", owner="ann")


@pytest.fixture
def bob(agent):
    return agent("bob", owner="ben")


def codes(hints):
    return [h["code"] for h in hints]


# --- Claiming -------------------------------------------------------------------------------------------------------


def test_before_a_claim_every_other_call_says_what_to_do_first(agent):
    new = agent()
    calls: list[tuple[str, dict]] = [
        ("whoami", {}),
        ("inbox_peek", {}),
        ("wait_for_messages", {"timeout_s": 0}),
        ("send_agent_message", {"to": "alice", "body": "hi", "idempotency_key": key()}),
    ]
    for tool, arguments in calls:
        refused = new.refusal(tool, **arguments)
        assert (refused["code"], "claim_connected_profile" in refused["message"]) == ("no_profile", True)


def test_a_new_handle_is_claimed_once_and_the_same_again_is_fine(agent):
    new = agent()
    first = new.claim("alice", display_name="Alice of the tests")
    assert (first["handle"], first["display_name"], first["created"]) == ("alice", "Alice of the tests", True)
    assert new.claim("alice") == {**first, "created": False}
    assert new.call("whoami")["profile_id"] == first["profile_id"]


def test_a_second_connection_of_the_same_owner_joins_the_profile(agent, alice):
    other = agent(owner="ann")
    joined = other.claim("alice")
    assert joined["created"] is False
    assert joined["profile_id"] == alice.call("whoami")["profile_id"]


def test_the_handle_of_somebody_else_cannot_be_claimed(agent, alice):
    stranger = agent(owner="sam")
    assert stranger.refusal("claim_connected_profile", handle="alice")["code"] == "handle_taken"
    assert stranger.refusal("whoami")["code"] == "no_profile"


def test_a_new_handle_switches_the_connection_and_leaves_the_old_inbox_where_it_is(agent, alice, bob):
    alice.send("bob", "for bob")
    bob.claim("bobby")
    assert bob.bodies() == []
    bob.claim("bob")
    assert bob.bodies() == ["for bob"]


@pytest.mark.fault("A7")
@pytest.mark.fault("A9")
def test_a_handle_that_is_against_the_rule_is_refused(agent):
    new = agent()
    invalid = ["Alice", "a", "-alice", "a" * 32, "аlice"]  # The first letter of the last is Cyrillic.
    reserved = ["everyone", "maestro", "system"]
    told = [new.refusal("claim_connected_profile", handle=handle)["code"] for handle in [*invalid, *reserved]]
    assert told == ["invalid_handle"] * len(invalid) + ["reserved_handle"] * len(reserved)
    assert new.refusal("whoami")["code"] == "no_profile"


@pytest.mark.fault("A7")
@pytest.mark.fault("X12")
def test_a_display_name_that_is_not_one_safe_line_is_refused(agent):
    new = agent()
    for name in ("two\nlines", "zero\u200bwidth", "right\u202eto left", "x" * 65):
        refused = new.refusal("claim_connected_profile", handle="alice", display_name=name)
        assert (refused["code"], name) == ("invalid_display_name", name)
    assert new.refusal("whoami")["code"] == "no_profile"


def test_whoami_tells_the_profile_the_connection_and_what_is_unread(alice, bob):
    alice.send("bob", "one")
    told = bob.call("whoami")
    assert (told["handle"], told["kind"], told["owner"], told["unread"]) == ("bob", "agent", "ben", 1)
    assert told["connection"]["scopes"] == ["read", "write"]
    assert told["cursors"] == {"offered_through": 0, "tail_sequence": 1, "oldest_sequence": 1}
    assert (told["limits"]["body_characters"], told["limits"]["wait_seconds"]) == (20_000, 50)


def test_a_connection_that_may_only_read_cannot_write(agent, alice):
    reader = agent("rita", can_write=False)
    refused = reader.refusal("send_agent_message", to="alice", body="hi", idempotency_key=key())
    assert refused["code"] == "insufficient_scope"
    assert reader.peek()["pending"] == 0
    assert alice.bodies() == []


# --- Sending --------------------------------------------------------------------------------------------------------


def test_a_send_tells_who_gets_it_and_the_recipient_gets_it(alice, bob):
    receipt = alice.send("@Bob", "are the orders in?")
    (delivered,) = receipt["delivered"]
    wake = {"state": "none", "reason": "not_hosted"}
    assert delivered == {"handle": "bob", "route": "direct", "state": "stored", "wake": wake}
    assert (receipt["replayed"], receipt["skipped"], receipt["hints"]) == (False, [], [])
    (message,) = bob.wait()["messages"]
    assert (message["message_id"], message["body"], message["route"]) == (
        receipt["message_id"],
        "are the orders in?",
        "direct",
    )
    assert message["sender"] == {"handle": "alice", "kind": "agent", "verified": True, "display_name": "alice"}


@pytest.mark.fault("S3")
def test_a_key_used_again_gives_the_first_receipt_or_for_other_content_a_conflict(alice, bob):
    again = key()
    first = alice.send("bob", "once", idempotency_key=again)
    assert alice.send("bob", "once", idempotency_key=again) == {**first, "replayed": True}
    refused = alice.refusal("send_agent_message", to="bob", body="twice", idempotency_key=again)
    assert refused["code"] == "idempotency_key_reused"
    assert bob.bodies() == ["once"]


@pytest.mark.fault("L17")
def test_a_mistyped_handle_is_refused_with_close_matches(alice, bob):
    refused = alice.refusal("send_agent_message", to="bobb", body="hi", idempotency_key=key())
    assert (refused["code"], refused["did_you_mean"]) == ("unknown_handle", ["bob"])


@pytest.mark.fault("S7")
def test_nobody_can_write_to_themselves(alice):
    refused = alice.refusal("send_agent_message", to="alice", body="hi", idempotency_key=key())
    assert refused["code"] == "self_send"
    assert alice.peek()["pending"] == 0


@pytest.mark.fault("S6")
@pytest.mark.parametrize("length", [1, 20_000])
def test_a_body_of_allowed_length_arrives_whole(alice, bob, length):
    body = "ü" * length
    alice.send("bob", body)
    (message,) = bob.wait()["messages"]
    read = message["body"]
    while len(read) < length:
        read += bob.call("read_message", message_id=message["message_id"], offset=len(read))["body"]
    assert read == body


@pytest.mark.fault("S6")
@pytest.mark.parametrize("body", ["", "x" * 20_001])
def test_a_body_of_another_length_is_refused_with_the_limit(alice, bob, body):
    refused = alice.refusal("send_agent_message", to="bob", body=body, idempotency_key=key())
    assert (refused["code"], refused["limit"]) == ("invalid_argument", 20_000)
    assert bob.bodies() == []


def test_a_preview_tells_what_a_send_would_do_and_does_nothing(alice, bob):
    direct = alice.call("preview_send", to="bob", body="hi")
    assert [d["handle"] for d in direct["would_deliver"]] == ["bob"]
    alice.call("create_channel", name="orders")
    posted = alice.call("preview_send", channel="orders", to=["bob", "nobody"], body="hi")
    assert [d["handle"] for d in posted["would_deliver"]] == ["bob"]
    assert [(s["handle"], s["reason"]) for s in posted["skipped"]] == [("nobody", "unknown_handle")]
    assert (posted["would_wake"], posted["cost"]) == ([], "0")
    assert bob.bodies() == []
    assert alice.call("read_channel", channel="orders")["messages"] == []


# --- Channels and threads -------------------------------------------------------------------------------------------


def test_a_channel_is_made_joined_and_left(alice, bob):
    made = alice.call("create_channel", name="orders", topic="What came in")
    assert (made["name"], made["kind"], made["topic"], made["member"], made["members"]) == (
        "orders",
        "public",
        "What came in",
        True,
        1,
    )
    joined = bob.call("join_channel", name="#orders")
    assert (joined["member"], joined["members"]) == (True, 2)
    assert bob.call("join_channel", name="orders") == joined
    left = bob.call("leave_channel", name="orders")
    assert (left["member"], left["members"]) == (False, 1)
    assert bob.refusal("create_channel", name="orders")["code"] == "channel_exists"
    assert bob.refusal("create_channel", name="Or ders")["code"] == "invalid_channel_name"


def test_a_private_channel_does_not_exist_for_others(alice, bob):
    alice.call("create_channel", name="secret", private=True)
    alice.post("secret", "between us")
    there = bob.refusal("read_channel", channel="secret")
    nowhere = bob.refusal("read_channel", channel="nowhere")
    assert {**there, "message": "", "channel": ""} == {**nowhere, "message": "", "channel": ""}
    assert there["code"] == "unknown_channel"
    assert bob.refusal("join_channel", name="secret")["code"] == "unknown_channel"
    assert (
        bob.refusal("send_channel_message", channel="secret", body="hi", idempotency_key=key())["code"]
        == "unknown_channel"
    )
    assert bob.call("list_channels")["channels"] == []


@pytest.mark.fault("A6")
def test_a_post_reaches_those_it_names_and_says_when_nobody_is_notified(agent, alice, bob):
    carol = agent("carol")
    alice.call("create_channel", name="orders")
    named = alice.post("orders", "look, @carol", to=["bob"])
    assert {(d["handle"], d["route"]) for d in named["delivered"]} == {("bob", "to"), ("carol", "mention")}
    assert (bob.bodies(), carol.bodies()) == (["look, @carol"], ["look, @carol"])
    nobody = alice.post("orders", "a note")
    assert (nobody["delivered"], codes(nobody["hints"])) == ([], ["nobody_notified"])
    assert (bob.bodies(), carol.bodies()) == ([], [])
    read = bob.call("read_channel", channel="orders")
    assert [m["body"] for m in read["messages"]] == ["look, @carol", "a note"]


def test_a_thread_is_answered_and_read_in_order(alice, bob):
    alice.call("create_channel", name="orders")
    root = alice.post("orders", "question", to=["bob"])
    answer = bob.post("orders", "answer", thread_root_id=root["message_id"], to=["alice"])
    assert answer["thread_root_id"] == root["message_id"]
    read = alice.call("read_thread", thread_root_id=answer["message_id"])
    assert [m["body"] for m in read["messages"]] == ["question", "answer"]


def test_a_thread_of_another_conversation_is_refused_and_the_right_tool_named(alice, bob):
    alice.call("create_channel", name="orders")
    in_channel = alice.post("orders", "question", to=["bob"])["message_id"]
    refused = bob.refusal("send_agent_message", to="alice", body="hi", idempotency_key=key(), thread_root_id=in_channel)
    assert (refused["code"], "send_channel_message" in refused["message"]) == ("thread_elsewhere", True)
    direct = alice.send("bob", "between us")["message_id"]
    refused = bob.refusal(
        "send_channel_message", channel="orders", body="hi", idempotency_key=key(), thread_root_id=direct
    )
    assert (refused["code"], "send_agent_message" in refused["message"]) == ("thread_elsewhere", True)
    refused = bob.refusal("send_agent_message", to="alice", body="hi", idempotency_key=key(), thread_root_id=NOBODY)
    assert refused["code"] == "unknown_thread"
    assert alice.bodies() == []


def test_a_direct_conversation_is_read_by_the_handle_of_the_other(agent, alice, bob):
    carol = agent("carol")
    alice.send("bob", "one")
    bob.send("alice", "two")
    for own, other in [(alice, "@bob"), (bob, "@alice")]:
        read = own.call("read_channel", channel=other)
        assert [(m["sender"]["handle"], m["body"]) for m in read["messages"]] == [("alice", "one"), ("bob", "two")]
    assert carol.refusal("read_channel", channel="@bob")["code"] == "unknown_channel"
    assert carol.call("search_messages", query="one")["messages"] == []


def test_the_policy_of_a_channel_is_the_members_own(alice, bob):
    alice.call("create_channel", name="orders")
    assert bob.refusal("set_channel_policy", name="orders", answers_agents=True)["code"] == "not_a_member"
    assert bob.call("join_channel", name="orders")["answers_agents"] is False
    assert bob.call("set_channel_policy", name="orders", answers_agents=True)["answers_agents"] is True
    mine = {c["name"]: c["answers_agents"] for c in alice.call("list_channels")["channels"]}
    assert mine == {"orders": False}


# --- Reading --------------------------------------------------------------------------------------------------------


@pytest.mark.fault("M11")
@pytest.mark.fault("L4")
def test_looking_changes_nothing_and_acknowledging_does(alice, bob):
    first, second, third = [alice.send("bob", text)["message_id"] for text in ("one", "two", "three")]
    looks = [bob.peek(), bob.peek()]
    for look in looks:
        for message in look["messages"]:
            assert message.pop("age_s") >= 0
    assert looks[0] == looks[1]
    assert [m["message_id"] for m in bob.peek()["messages"]] == [first, second, third]
    assert bob.call("acknowledge", message_ids=[second]) == {"acknowledged": 1, "remaining": 2}
    assert bob.call("acknowledge", message_ids=[second, NOBODY]) == {"acknowledged": 0, "remaining": 2}
    page = bob.wait()
    assert [m["message_id"] for m in page["messages"]] == [first, third]
    assert bob.call("acknowledge", through_sequence=page["after_sequence"]) == {"acknowledged": 2, "remaining": 0}
    assert bob.peek()["messages"] == []
    both = bob.refusal("acknowledge", message_ids=[first], through_sequence=1)
    neither = bob.refusal("acknowledge")
    assert both["code"] == neither["code"] == "invalid_argument"


def test_a_page_that_was_lost_comes_again_for_the_cursor_of_the_page_before(alice, bob):
    alice.send("bob", "one")
    lost = bob.wait(after_sequence=0)
    again = bob.wait(after_sequence=0)
    assert [m["message_id"] for m in again["messages"]] == [m["message_id"] for m in lost["messages"]]
    assert [m["redelivered"] for m in again["messages"]] == [True]
    assert bob.wait(after_sequence=again["after_sequence"])["messages"] == []
    assert bob.peek()["pending"] == 0


def test_a_cursor_beyond_the_inbox_is_refused_with_the_tail(alice, bob):
    alice.send("bob", "one")
    refused = bob.refusal("wait_for_messages", after_sequence=7, timeout_s=50)
    assert (refused["code"], refused["tail_sequence"]) == ("cursor_ahead", 1)


@pytest.mark.fault("L18")
def test_the_status_of_a_message_follows_what_happens_to_it(agent, alice, bob):
    sent = alice.send("bob", "one")["message_id"]

    def state():
        (delivery,) = alice.call("message_status", message_id=sent)["deliveries"]
        return delivery["state"]

    assert state() == "stored"
    page = bob.wait()
    assert state() == "offered"
    bob.wait(after_sequence=page["after_sequence"])
    assert state() == "acknowledged"
    bob.send("alice", "done")
    assert state() == "answered"
    assert agent("carol").refusal("message_status", message_id=sent)["code"] == "unknown_message"


def test_an_edit_and_a_retraction_come_to_those_who_got_the_message(alice, bob):
    sent = alice.send("bob", "wrnog")["message_id"]
    bob.wait()
    edited = alice.call("edit_message", message_id=sent, body="wrong")
    assert (edited["body"], edited["edited_at"] is not None) == ("wrong", True)
    (event,) = bob.wait()["messages"]
    assert (event["kind"], event["refers_to"], event["body"]) == ("edit", sent, "wrong")
    retracted = alice.call("retract_message", message_id=sent)
    assert (retracted["body"], retracted["retracted_at"] is not None) == ("", True)
    (event,) = bob.wait()["messages"]
    assert (event["kind"], event["refers_to"], event["body"]) == ("retraction", sent, "")
    assert alice.refusal("edit_message", message_id=sent, body="again")["code"] == "not_editable"
    assert bob.refusal("retract_message", message_id=sent)["code"] == "not_your_message"
    assert [m["body"] for m in bob.call("read_channel", channel="@alice")["messages"]] == ["", "", ""]


def test_search_finds_all_the_words_and_only_what_one_may_read(alice, bob):
    alice.call("create_channel", name="orders")
    alice.call("create_channel", name="secret", private=True)
    alice.post("orders", "green apples arrived")
    alice.post("orders", "red apples arrived")
    alice.post("secret", "green apples are stolen")
    assert [m["body"] for m in bob.call("search_messages", query="apples green")["messages"]] == [
        "green apples arrived"
    ]
    found = bob.call("search_messages", query="apples", channel="orders", limit=1)
    assert ([m["body"] for m in found["messages"]], found["has_more"]) == (["red apples arrived"], True)
    rest = bob.call("search_messages", query="apples", channel="orders", limit=1, offset=found["offset"])
    assert ([m["body"] for m in rest["messages"]], rest["has_more"]) == (["green apples arrived"], False)
    assert bob.call("search_messages", query='"OR NEAR( *')["messages"] == []


def test_a_search_for_a_number_is_a_search_for_text(alice):
    alice.call("create_channel", name="2024")
    alice.post("2024", "error 404 again")
    assert [m["body"] for m in alice.call("search_messages", query="404")["messages"]] == ["error 404 again"]
    assert len(alice.call("search_messages", query="404", channel="2024")["messages"]) == 1
    assert [c["name"] for c in alice.call("list_channels", query="2024", after="10")["channels"]] == ["2024"]


@pytest.mark.fault("M10")
def test_every_list_says_whether_there_is_more(agent, alice, bob):
    agent("carol")
    for name in ("one", "two", "three"):
        alice.call("create_channel", name=name)
        alice.send("bob", name)
        alice.post("one", name)
    channels = alice.call("list_channels", limit=2)
    assert ([c["name"] for c in channels["channels"]], channels["has_more"]) == (["one", "three"], True)
    channels = alice.call("list_channels", limit=2, after="three")
    assert ([c["name"] for c in channels["channels"]], channels["has_more"]) == (["two"], False)
    peers = alice.call("list_peers", limit=1)
    assert ([p["handle"] for p in peers["peers"]], peers["has_more"]) == (["bob"], True)
    peers = alice.call("list_peers", limit=1, after="bob")
    assert ([p["handle"] for p in peers["peers"]], peers["has_more"]) == (["carol"], False)
    pending = bob.peek(limit=2)
    assert ([m["body"] for m in pending["messages"]], pending["has_more"], pending["pending"]) == (
        ["one", "two"],
        True,
        3,
    )
    assert [m["body"] for m in bob.peek(after_sequence=2)["messages"]] == ["three"]
    page = bob.wait(limit=2)
    assert ([m["body"] for m in page["messages"]], page["has_more"]) == (["one", "two"], True)
    history = bob.call("read_channel", channel="one", limit=2)
    assert ([m["body"] for m in history["messages"]], history["has_more"]) == (["two", "three"], True)
    before = bob.call(
        "read_channel", channel="one", limit=2, before_channel_sequence=history["before_channel_sequence"]
    )
    assert ([m["body"] for m in before["messages"]], before["has_more"]) == (["one"], False)
    after = bob.call("read_channel", channel="one", after_channel_sequence=1, limit=1)
    assert ([m["body"] for m in after["messages"]], after["has_more"]) == (["two"], True)


def test_peers_show_who_is_waiting(alice, bob):
    waiting = bob.waiting()
    (peer,) = alice.call("list_peers", query="bob")["peers"]
    assert (peer["handle"], peer["owner"], peer["waiting"], peer["presence"]["state"]) == (
        "bob",
        "ben",
        True,
        "waiting",
    )
    alice.send("bob", "done")
    assert [m["body"] for m in waiting.result(5)["messages"]] == ["done"]
    eventually(lambda: not alice.call("list_peers", query="bob")["peers"][0]["waiting"], "bob waits no more")


# --- Questions ------------------------------------------------------------------------------------------------------


def test_only_a_person_can_be_asked_and_the_options_are_checked(alice, bob):
    def refusal(**arguments):
        asked = {"question": "Which?", "options": ["a", "b"], "idempotency_key": key()}
        return alice.refusal("ask_person", **asked, **arguments)["code"]

    assert refusal(to="bob") == "not_a_person"
    assert refusal() == "invalid_argument"
    alice.call("create_channel", name="orders")
    one_option = {"question": "Which?", "options": ["a"], "idempotency_key": key(), "channel": "orders"}
    assert alice.refusal("ask_person", **one_option)["code"] == "invalid_argument"
    asked = alice.call("ask_person", **{**one_option, "options": ["a", "b"]})
    assert asked["question_id"] == asked["message_id"]


# --- Arguments ------------------------------------------------------------------------------------------------------


@pytest.mark.fault("S4")
def test_null_for_an_optional_argument_is_the_same_as_leaving_it_out(alice, bob):
    alice.call("create_channel", name="orders", topic=None, private=None)
    alice.send("bob", "one", thread_root_id=None, expires_in_s=None)
    alice.post("orders", "two", to=None, thread_root_id=None, expires_in_s=None)
    assert bob.bodies(after_sequence=None, limit=None) == ["one"]
    assert bob.call("acknowledge", message_ids=None, through_sequence=1)["acknowledged"] == 1
    assert alice.call("preview_send", body="hi", to="bob", channel=None)["would_deliver"] != []
    assert alice.call("list_peers", query=None, limit=None, after=None)["has_more"] is False


ARGUMENTS_OF_NO_USE: list[tuple[str, dict, str]] = [
    ("send_agent_message", {"to": "bob", "body": "hi", "from": "admin"}, "from"),
    ("send_agent_message", {"to": ["bob"], "body": "hi"}, "to"),
    ("send_agent_message", {"to": "bob", "body": 5}, "body"),
    ("send_agent_message", {"to": "bob", "body": "hi", "expires_in_s": "5"}, "expires_in_s"),
    ("send_agent_message", {"to": "bob", "body": "hi", "expires_in_s": True}, "expires_in_s"),
    ("send_agent_message", {"to": "bob", "body": "hi", "thread_root_id": "root"}, "thread_root_id"),
    ("send_agent_message", {"to": "bob"}, "body"),
    ("send_channel_message", {"channel": "orders", "body": "hi", "to": "bob"}, "to"),
    ("create_channel", {"name": "orders", "private": "yes"}, "private"),
    ("acknowledge", {"through_sequence": "1"}, "through_sequence"),
    ("acknowledge", {"message_ids": ["one"]}, "message_ids"),
    ("set_channel_policy", {"name": "orders", "answers_agents": 1}, "answers_agents"),
    ("wait_for_messages", {"timeout_s": "soon"}, "timeout_s"),
    ("wait_for_messages", {"forever": 1}, "forever"),
    ("list_peers", {"limit": "all"}, "limit"),
    ("list_peers", {"limit": 2.5}, "limit"),
    ("list_peers", {"page": 2}, "page"),
    ("message_status", {"message_id": "one"}, "message_id"),
]


@pytest.mark.fault("A9")
def test_an_argument_that_is_unknown_missing_or_of_another_type_is_named(alice, bob):
    for tool, arguments, field in ARGUMENTS_OF_NO_USE:
        keyed = {"idempotency_key": key(), **arguments} if tool.startswith("send") else arguments
        refused = alice.refusal(tool, **keyed)
        told = (tool, refused["code"], [f["field"] for f in refused["fields"]], refused["retry_after_s"])
        assert told == (tool, "invalid_argument", [field], None)
    assert bob.bodies() == []


BEYOND_A_LIMIT: list[tuple[str, dict]] = [
    ("wait_for_messages", {"timeout_s": 51}),
    ("wait_for_messages", {"timeout_s": 0, "limit": 51}),
    ("wait_for_messages", {"timeout_s": 0, "after_sequence": -1}),
    ("list_peers", {"limit": 0}),
    ("list_channels", {"limit": 101}),
    ("inbox_peek", {"limit": 0}),
    ("search_messages", {"query": " "}),
    ("search_messages", {"query": "x" * 201}),
    ("send_agent_message", {"to": "bob", "body": "hi", "idempotency_key": "short"}),
    ("send_agent_message", {"to": "bob", "body": "hi", "idempotency_key": "k" * 129}),
    ("send_agent_message", {"to": "bob", "body": "hi", "idempotency_key": "k" * 9, "expires_in_s": 0}),
]


def test_an_argument_beyond_its_limit_is_refused_at_once(alice, bob):
    for tool, arguments in BEYOND_A_LIMIT:
        assert (tool, alice.refusal(tool, **arguments)["code"]) == (tool, "invalid_argument")


A_KEY = {"idempotency_key": "a key of ours"}
# TEXT is where it stands.
WITH_TEXT: list[tuple[str, dict]] = [
    ("send_agent_message", {"to": "bob", "body": "TEXT", **A_KEY}),
    ("send_agent_message", {"to": "TEXT", "body": "hi", **A_KEY}),
    ("send_agent_message", {"to": "bob", "body": "hi", "idempotency_key": "TEXT and more"}),
    ("send_channel_message", {"channel": "TEXT", "body": "hi", **A_KEY}),
    (
        "send_channel_message",
        {"channel": "orders", "body": "hi", "to": ["TEXT"], **A_KEY},
    ),
    (
        "ask_person",
        {"channel": "orders", "question": "TEXT", "options": ["a", "b"], **A_KEY},
    ),
    (
        "ask_person",
        {"channel": "orders", "question": "?", "options": ["TEXT", "b"], **A_KEY},
    ),
    ("claim_connected_profile", {"handle": "TEXT"}),
    ("claim_connected_profile", {"handle": "alice", "display_name": "TEXT"}),
    ("create_channel", {"name": "TEXT"}),
    ("create_channel", {"name": "news", "topic": "TEXT"}),
    ("join_channel", {"name": "TEXT"}),
    ("preview_send", {"to": "bob", "body": "TEXT"}),
    ("preview_send", {"channel": "TEXT", "body": "hi"}),
    ("send_agent_message", {"to": "bob", "body": "hi", **A_KEY, "TEXT": 1}),
]


@pytest.mark.parametrize("text", ["a\0b", "half \ud800 a pair"])
def test_text_that_cannot_be_stored_is_refused_wherever_it_stands(alice, bob, text):
    alice.call("create_channel", name="orders")
    for tool, arguments in WITH_TEXT:
        # A path cannot carry half a pair.
        there = "half" if tool == "join_channel" and "\ud800" in text else text
        code = alice.refusal(tool, **filled(arguments, there))["code"]
        assert code.startswith("invalid_") or (tool, code) == ("join_channel", "unknown_channel"), tool
    assert bob.bodies() == []
    assert alice.call("whoami")["display_name"] == "alice"


def filled(value, text):
    if isinstance(value, dict):
        return {filled(k, text): filled(v, text) for k, v in value.items()}
    if isinstance(value, list):
        return [filled(v, text) for v in value]
    return value.replace("TEXT", text) if isinstance(value, str) else value


BEYOND_ANY_DATABASE: list[tuple[str, dict]] = [
    ("list_peers", {"query": "a\0b"}),
    ("list_peers", {"after": "a\0b"}),
    ("list_channels", {"query": "a\0b"}),
    ("list_channels", {"after": "a\0b"}),
    ("search_messages", {"query": "a\0b"}),
    ("search_messages", {"query": "word", "channel": "a\0b"}),
    ("read_channel", {"channel": "a\0b"}),
    ("read_channel", {"channel": "@a\0b"}),
    ("inbox_peek", {"after_sequence": 2**70}),
    ("acknowledge", {"through_sequence": 2**70}),
    ("read_message", {"message_id": NOBODY, "offset": 2**70}),
    ("wait_for_messages", {"after_sequence": 2**70, "timeout_s": 0}),
    ("read_channel", {"channel": "orders", "after_channel_sequence": 2**70}),
    ("search_messages", {"query": "word", "offset": 2**70}),
]


def test_a_value_that_no_database_holds_is_no_fault_of_the_hub(alice):
    alice.call("create_channel", name="orders")
    told = {alice.refusal(tool, **arguments)["code"] for tool, arguments in BEYOND_ANY_DATABASE}
    assert told == {"invalid_argument"}


def test_a_replay_is_answered_although_its_sender_is_paused_by_now(alice, bob):
    person = profiles.ensure_person(alice.profile.owner)
    calls: list[tuple[str, dict[str, Any]]] = [
        ("send_agent_message", {"to": "bob", "body": "hi", "idempotency_key": key()}),
        ("ask_person", {"to": person.handle, "question": "?", "options": ["a", "b"], "idempotency_key": key()}),
    ]
    first = [alice.call(tool, **arguments) for tool, arguments in calls]
    profiles.pause_profile(profile=alice.profile, by=None)
    assert [alice.call(tool, **arguments) for tool, arguments in calls] == [{**r, "replayed": True} for r in first]
    for tool, arguments in calls:
        assert alice.refusal(tool, **{**arguments, "idempotency_key": key()})["code"] == "paused"


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("list_peers", {"query": "a" * 60_000}),
        ("list_channels", {"query": "a" * 60_000}),
        ("wait_for_messages", {"timeout_s": 2**63 - 1}),
        ("wait_for_messages", {"timeout_s": 1e308}),
    ],
)
def test_what_is_far_too_much_is_refused_by_name(alice, tool, arguments):
    assert alice.refusal(tool, **arguments)["code"] == "invalid_argument"
    assert alice.call("whoami")["handle"] == "alice"


@pytest.mark.parametrize("tool", ["list_peers", "list_channels", "search_messages"])
def test_half_a_character_is_refused_by_name(hub, agent, tool):
    alice = agent("alice", door="mcp")
    assert alice.refusal(tool, query="@\ud800")["code"] == "invalid_argument"


def test_one_edit_made_three_times_at_once_is_one_edit(alice, bob):
    sent = alice.send("bob", "first")
    tries = [
        in_background(lambda: alice.call("edit_message", message_id=sent["message_id"], body="same")) for _ in range(3)
    ]
    assert [t.result(10)["body"] for t in tries] == ["same"] * 3
    assert [(m["kind"], m["body"]) for m in bob.wait()["messages"]] == [("message", "same"), ("edit", "same")]
