"""What a sender is told: who got it, who did not and why, what has become of it since, and what crossed it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from messaging import presence
from messaging.models import Delivery, Message, Presence
from tests.hub import Address, eventually, new_agent

TIMES = ("stored_at", "offered_at", "acknowledged_at", "answered_at", "expired_at")


def status(sender, receipt):
    """The one delivery of a message, as its sender sees it now."""
    (delivered,) = sender.call("message_status", message_id=receipt["message_id"])["deliveries"]
    return delivered


def facts(sender, receipt):
    """Its state, and which of its times are set."""
    delivered = status(sender, receipt)
    return delivered["state"], {name.removesuffix("_at") for name in TIMES if delivered[name]}


# --- Receipt states -------------------------------------------------------------------------------------------------


@pytest.mark.fault("L18")
def test_stored_offered_acknowledged_and_answered_follow_each_other_each_with_its_time(agent, door):
    alice, bob = agent("alice"), agent("bob")
    receipt = alice.send("bob", "ready?")
    assert [d["state"] for d in receipt["delivered"]] == ["stored"]
    assert facts(alice, receipt) == ("stored", {"stored"})

    page = bob.wait()
    assert facts(alice, receipt) == ("offered", {"stored", "offered"})

    bob.call("acknowledge", message_ids=[page["messages"][0]["message_id"]])
    assert facts(alice, receipt) == ("acknowledged", {"stored", "offered", "acknowledged"})

    bob.send("alice", "yes")
    assert facts(alice, receipt) == ("answered", {"stored", "offered", "acknowledged", "answered"})
    times = [status(alice, receipt)[name] for name in TIMES[:4]]
    assert times == sorted(times)


@pytest.mark.fault("L18")
def test_no_state_implies_another(agent, door):
    alice, bob = agent("alice"), agent("bob")
    unseen = alice.send("bob", "acknowledged without having been offered")
    bob.call("acknowledge", message_ids=[unseen["message_id"]])
    assert facts(alice, unseen) == ("acknowledged", {"stored", "acknowledged"})

    crossed = alice.send("bob", "answered before it was offered")
    bob.send("alice", "by the way")
    assert facts(alice, crossed) == ("answered", {"stored", "answered"})

    late = alice.send("bob", "offered, then expired", expires_in_s=60)
    bob.wait()
    Message.objects.filter(pk=late["message_id"]).update(expires_at=timezone.now() - timedelta(seconds=1))
    assert facts(alice, late) == ("expired", {"stored", "offered", "expired"})


@pytest.mark.fault("L18")
def test_an_answer_in_a_channel_is_one_in_the_same_thread(agent, door):
    alice, bob = agent("alice"), agent("bob")
    alice.call("create_channel", name="work")
    asked = alice.post("work", "who?", to=["bob"])
    bob.post("work", "something else")
    assert facts(alice, asked)[0] == "stored"

    bob.post("work", "me", thread_root_id=asked["thread_root_id"])
    assert facts(alice, asked) == ("answered", {"stored", "answered"})


@pytest.mark.fault("L18")
def test_each_recipient_has_a_state_of_its_own_and_a_replay_keeps_the_first_receipt(agent, door):
    alice, _, carol = agent("alice"), agent("bob"), agent("carol")
    alice.call("create_channel", name="work")
    receipt = alice.post("work", "all of you", to=["bob", "carol"], idempotency_key="all-of-you-1")
    carol.wait()

    now = alice.call("message_status", message_id=receipt["message_id"])
    assert {d["handle"]: d["state"] for d in now["deliveries"]} == {"bob": "stored", "carol": "offered"}
    again = alice.post("work", "all of you", to=["bob", "carol"], idempotency_key="all-of-you-1")
    assert again == {**receipt, "replayed": True}


@pytest.mark.fault("L18")
def test_only_the_sender_sees_all_recipients_and_a_stranger_nothing(agent, door):
    alice, bob, carol, mallory = (agent(h, owner=h) for h in ("alice", "bob", "carol", "mallory"))
    alice.call("create_channel", name="work", private=True)
    for peer in (bob, carol):
        add(alice, "work", peer)
    receipt = alice.post("work", "for both", to=["bob", "carol"])

    seen = {
        reader.handle: [
            d["handle"] for d in reader.call("message_status", message_id=receipt["message_id"])["deliveries"]
        ]
        for reader in (alice, bob, carol)
    }
    assert seen == {"alice": ["bob", "carol"], "bob": ["bob"], "carol": ["carol"]}
    assert mallory.refusal("message_status", message_id=receipt["message_id"])["code"] == "unknown_message"


def add(member, channel, peer):
    """Makes a peer a member of a private channel."""
    from messaging import access, channels

    channels.add_member(by=access.as_caller(member.profile), name=channel, handle=peer.handle)


# --- Peers who are away ---------------------------------------------------------------------------------------------


def peer(agent, handle):
    (found,) = (p for p in agent.call("list_peers", query=handle)["peers"] if p["handle"] == handle)
    return found


@pytest.mark.fault("L3")
def test_presence_follows_the_agents_own_calls_and_runs_out(agent, door):
    alice, bob = agent("alice"), agent("bob")
    alice.send("bob", "are you there?")
    away = peer(alice, "bob")
    assert (away["presence"]["state"], away["presence"]["last_seen_at"], away["waiting"]) == ("away", None, False)

    bob.call("whoami")
    assert peer(alice, "bob")["presence"]["state"] == "active"

    is_remembered(bob, last_seen_at=timezone.now() - timedelta(minutes=6))
    assert peer(alice, "bob")["presence"]["state"] == "away"


@pytest.mark.fault("L3")
def test_waiting_is_shown_while_a_wait_is_open_and_a_dead_process_cannot_keep_it(agent, door):
    alice, bob = agent("alice"), agent("bob")
    waiting = bob.waiting()
    shown = peer(alice, "bob")
    assert (shown["presence"]["state"], shown["waiting"]) == ("waiting", True)

    alice.send("bob")
    waiting.result(5)
    assert peer(alice, "bob")["waiting"] is False

    # A process that died while bob waited on it has left its lease behind.
    lease = timezone.now() + timedelta(seconds=30)
    is_remembered(bob, waiting_until=lease, last_seen_at=None)
    assert peer(alice, "bob")["waiting"] is True
    Presence.objects.filter(profile=bob.profile).update(waiting_until=lease - timedelta(seconds=31))
    assert (peer(alice, "bob")["waiting"], peer(alice, "bob")["presence"]["state"]) == (False, "away")


def is_remembered(agent, **times) -> None:
    """Makes an agent's presence that of another time, once what its own calls have left is written."""
    row = Presence.objects.filter(profile=agent.profile)
    presence.flush()
    # The hub's own writer may have taken it a moment before.
    eventually(row.filter(last_seen_at__isnull=False, waiting_until=None).exists, "its last call is written")
    row.update(**times)


@pytest.mark.fault("L3")
def test_a_broadcast_is_only_stored_for_those_who_are_silent_and_reaches_all_when_they_come(agent, door):
    alice, *others = (agent(h) for h in ("alice", "bob", "carol", "dora", "emil"))
    awake = others[:2]
    waits = [a.waiting() for a in awake]
    alice.call("create_channel", name="work")

    receipt = alice.post("work", "to all", to=[a.handle for a in others])
    for wait in waits:
        wait.result(5)

    assert {d["state"] for d in receipt["delivered"]} == {"stored"}
    now = alice.call("message_status", message_id=receipt["message_id"])["deliveries"]
    assert {d["handle"]: d["state"] for d in now} == {
        "bob": "offered",
        "carol": "offered",
        "dora": "stored",
        "emil": "stored",
    }
    assert [a.bodies(after_sequence=0) for a in others] == [["to all"]] * 4


# --- Names that nobody has ------------------------------------------------------------------------------------------


@pytest.mark.fault("L17")
@pytest.mark.parametrize("mistyped", ["bob-codx", "Bob-Codexx", "@bobcodex"])
def test_a_direct_message_to_a_mistyped_handle_is_refused_with_close_matches(agent, door, mistyped):
    alice, _ = agent("alice"), agent("bob-codex")
    refusal = alice.refusal("send_agent_message", to=mistyped, body="hello", idempotency_key="mistyped-1")

    assert (refusal["code"], refusal["did_you_mean"]) == ("unknown_handle", ["bob-codex"])
    assert not Message.objects.exists()
    # Nothing was stored under the key either: it serves for the right name.
    assert alice.send("bob-codex", "hello", idempotency_key="mistyped-1")["replayed"] is False


@pytest.mark.fault("L17")
def test_a_mistyped_handle_in_to_is_skipped_with_close_matches_and_is_no_plain_success(agent, door):
    alice, _, carol = agent("alice"), agent("bob-codex"), agent("carol")
    alice.call("create_channel", name="work")

    receipt = alice.post("work", "hello", to=["bob-codx", "carol"])
    assert [d["handle"] for d in receipt["delivered"]] == ["carol"]
    assert receipt["skipped"] == [
        {"handle": "bob-codx", "reason": "unknown_handle", "did_you_mean": ["bob-codex"]},
    ]

    nobody = alice.post("work", "hello", to=["bob-codx"])
    assert nobody["delivered"] == []
    assert "nobody_notified" in {h["code"] for h in nobody["hints"]}
    assert carol.bodies() == ["hello"]


@pytest.mark.fault("L17")
def test_a_mistyped_mention_is_a_hint_with_close_matches(agent, door):
    alice, _ = agent("alice"), agent("bob-codex")
    alice.call("create_channel", name="work")

    hints = {h["code"]: h for h in alice.post("work", "ask @bob-codx")["hints"]}

    assert hints["unresolved_mention"]["handles"] == ["bob-codx"]
    assert "bob-codex" in hints["unresolved_mention"]["message"]


# --- Crossing messages ----------------------------------------------------------------------------------------------


@pytest.mark.fault("L22")
def test_a_direct_send_says_how_many_newer_messages_of_the_conversation_its_sender_has_not_read(agent, door):
    alice, bob = agent("alice"), agent("bob")
    assert alice.send("bob", "please start")["unread_in_thread"] == 0
    bob.send("alice", "started")
    bob.send("alice", "done already")

    assert alice.send("bob", "please stop")["unread_in_thread"] == 2
    # She has spoken since: those are no longer newer.
    assert alice.send("bob", "hello?")["unread_in_thread"] == 0


@pytest.mark.fault("L22")
def test_what_the_sender_acknowledged_is_read_and_what_she_was_only_offered_is_not(agent, door):
    alice, bob = agent("alice"), agent("bob")
    for body in ("one", "two", "three"):
        bob.send("alice", body)
    page = alice.wait()
    alice.call("acknowledge", message_ids=[page["messages"][0]["message_id"]])

    assert alice.send("bob", "answer to one")["unread_in_thread"] == 2


@pytest.mark.fault("L22")
def test_what_came_before_the_last_acknowledged_message_is_not_newer(agent, door):
    alice, bob, carol = agent("alice"), agent("bob"), agent("carol")
    alice.call("create_channel", name="work")
    root = alice.post("work", "what do you think?")["thread_root_id"]
    bob.post("work", "thinking aloud", thread_root_id=root)
    carol.post("work", "@alice this is it", thread_root_id=root)
    bob.post("work", "no, it is not", thread_root_id=root)
    alice.call("acknowledge", through_sequence=alice.wait()["after_sequence"])

    assert alice.post("work", "so be it", thread_root_id=root)["unread_in_thread"] == 1


@pytest.mark.fault("L22")
def test_in_a_channel_only_the_thread_counts(agent, door):
    alice, bob, carol = agent("alice"), agent("bob"), agent("carol")
    alice.call("create_channel", name="work")
    root = alice.post("work", "who takes it?")["thread_root_id"]
    bob.post("work", "I do", thread_root_id=root)
    carol.post("work", "no, I do", thread_root_id=root)
    carol.post("work", "lunch?")

    assert alice.post("work", "then nobody", thread_root_id=root)["unread_in_thread"] == 2
    assert alice.post("work", "another matter")["unread_in_thread"] == 0


# --- Codes ----------------------------------------------------------------------------------------------------------


class Speaking(Address):
    """A hub that is spoken to in some language."""

    def __init__(self, port: int, language: str) -> None:
        super().__init__(port)
        self.language = language

    def request(self, method, path, body=None, headers=None, timeout_s=60):
        spoken = {**(headers or {}), "Accept-Language": self.language}
        return super().request(method, path, body, spoken, timeout_s)


NO_ID = "00000000-0000-7000-8000-000000000000"
REFUSALS: dict[str, tuple[str, dict[str, Any]]] = {
    "self_send": ("send_agent_message", {"to": "alice", "body": "hi", "idempotency_key": "k" * 8}),
    "unknown_handle": ("send_agent_message", {"to": "nobody", "body": "hi", "idempotency_key": "k" * 8}),
    "unknown_channel": ("send_channel_message", {"channel": "none", "body": "hi", "idempotency_key": "k" * 8}),
    "unknown_thread": (
        "send_agent_message",
        {"to": "bob", "body": "hi", "idempotency_key": "k" * 8, "thread_root_id": NO_ID},
    ),
    "unknown_message": ("message_status", {"message_id": NO_ID}),
    "cursor_ahead": ("wait_for_messages", {"after_sequence": 99, "timeout_s": 0}),
    "invalid_argument": ("wait_for_messages", {"timeout_s": 51}),
    "handle_taken": ("claim_connected_profile", {"handle": "bob"}),
    "invalid_handle": ("claim_connected_profile", {"handle": "Bob"}),
    "reserved_handle": ("claim_connected_profile", {"handle": "admin"}),
}


@pytest.mark.fault("L11")
@pytest.mark.parametrize("language", ["en", "de-CH, de;q=0.9", "fr", "ar", "zh-Hant", "*"])
def test_every_refusal_has_the_same_code_under_any_language(hub, agent, door, language):
    agent("bob", owner="ben")
    alice = new_agent(Speaking(hub.port, language), door, handle="alice")

    assert {code: alice.refusal(tool, **arguments)["code"] for code, (tool, arguments) in REFUSALS.items()} == {
        code: code for code in REFUSALS
    }
    alice.token = "prl_" + "x" * 43
    assert alice.refusal("whoami")["code"] == "invalid_token"


@pytest.mark.fault("L11")
def test_refusals_say_in_the_same_words_what_to_do_next(hub, agent, door):
    agent("bob", owner="ben")
    speakers = [new_agent(Speaking(hub.port, language), door, handle="alice") for language in ("en", "de", "ja")]

    for tool, arguments in REFUSALS.values():
        told = [speaker.refusal(tool, **arguments)["message"] for speaker in speakers]
        assert len(set(told)) == 1
        assert told[0]


def test_a_message_is_one_delivery_for_each_recipient_however_often_it_is_named(agent, door):
    alice, bob = agent("alice"), agent("bob")
    alice.call("create_channel", name="work")
    alice.post("work", "@bob and again @bob", to=["bob", "Bob", "@bob"])

    assert Delivery.objects.count() == 1
    assert [(m["route"], m["body"]) for m in bob.wait()["messages"]] == [("to", "@bob and again @bob")]
