"""What time does to mail: nothing while somebody is away, except what its sender or retention has said; and then visibly."""

from __future__ import annotations

from datetime import datetime, timedelta
from io import StringIO

import pytest
from django.core.management import call_command
from django.utils import timezone

from messaging.models import AuditEntry, Delivery, Message

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def prune() -> None:
    call_command("prune", stdout=StringIO())


def made_older(by: timedelta, **which) -> None:
    """Time passes for messages: each was sent so much earlier, and what was to expire does so earlier."""
    for message in Message.objects.filter(**which):
        message.created_at -= by
        message.expires_at = message.expires_at and message.expires_at - by
        message.save(update_fields=["created_at", "expires_at"])


def state_of(sender, receipt):
    """The one delivery of a message, as its sender sees it now."""
    (delivered,) = sender.call("message_status", message_id=receipt["message_id"])["deliveries"]
    return delivered


# --- An addressee who is away ---------------------------------------------------------------------------------------


@pytest.mark.fault("L13")
@pytest.mark.parametrize("away", [2 * HOUR, 40 * DAY], ids=["two hours", "forty days"])
def test_nothing_is_lost_while_an_addressee_is_away(agent, door, away):
    alice, bob = agent("alice"), agent("bob")
    alice.call("create_channel", name="work")
    sent = [alice.send("bob", str(n)) if n % 2 else alice.post("work", str(n), to=["bob"]) for n in range(10)]
    bob.wait(after_sequence=0, limit=3)  # What he was offered and never acknowledged is not given up either.
    made_older(away)
    prune()

    assert bob.bodies(after_sequence=0) == [str(n) for n in range(10)]
    assert {state_of(alice, receipt)["state"] for receipt in sent} == {"offered"}


@pytest.mark.fault("L13")
def test_mail_given_up_after_the_hard_limit_is_expired_for_its_sender_and_noted_for_operators(agent, door):
    alice, bob = agent("alice"), agent("bob")
    unread = alice.send("bob", "never read")
    kept = alice.send("bob", "sent later")
    made_older(400 * DAY, pk=unread["message_id"])
    prune()

    given_up = state_of(alice, unread)
    assert (given_up["handle"], given_up["state"], given_up["acknowledged_at"]) == ("bob", "expired", None)
    assert given_up["expired_at"] is not None
    (entry,) = AuditEntry.objects.filter(action="unread_mail_given_up")
    assert (entry.profile, entry.details["messages"]) == (bob.profile, 1)
    assert state_of(alice, kept)["state"] == "stored"
    assert bob.bodies() == ["sent later"]


@pytest.mark.fault("L13")
def test_a_receipt_still_says_acknowledged_after_the_delivery_was_pruned(agent, door):
    alice, bob = agent("alice"), agent("bob")
    receipt = alice.send("bob", "read and done")
    bob.call("acknowledge", through_sequence=bob.wait()["after_sequence"])
    made_older(400 * DAY)
    prune()

    assert not Delivery.objects.exists()
    assert state_of(alice, receipt)["state"] == "acknowledged"
    assert not AuditEntry.objects.filter(action="unread_mail_given_up").exists()


# --- Expiry ---------------------------------------------------------------------------------------------------------


@pytest.mark.fault("L15")
def test_every_message_carries_its_age_and_when_it_expires(agent, door):
    alice, bob = agent("alice"), agent("bob")
    alice.send("bob", "old news", expires_in_s=86_400)
    alice.send("bob", "fresh")
    made_older(2 * HOUR, body="old news")

    for messages in (bob.peek()["messages"], bob.wait(after_sequence=0)["messages"]):
        old, fresh = messages
        assert 7_200 <= old["age_s"] < 7_300
        assert 0 <= fresh["age_s"] < 100
        expires = datetime.fromisoformat(old["expires_at"]) - datetime.fromisoformat(old["created_at"])
        assert (expires, fresh["expires_at"]) == (DAY, None)


@pytest.mark.fault("L15")
@pytest.mark.parametrize("offered_before", [False, True], ids=["never offered", "offered once"])
def test_an_expired_message_is_skipped_and_its_sender_sees_expired(agent, door, offered_before):
    alice, bob = agent("alice"), agent("bob")
    receipt = alice.send("bob", "do it within the hour", expires_in_s=3_600)
    alice.send("bob", "whenever you like")
    if offered_before:
        bob.wait(after_sequence=0)
    made_older(2 * DAY)

    page = bob.wait(after_sequence=0)
    assert [m["body"] for m in page["messages"]] == ["whenever you like"]
    assert page["after_sequence"] == 2
    assert [m["body"] for m in bob.peek()["messages"]] == ["whenever you like"]
    assert bob.call("whoami")["unread"] == 1

    expired = state_of(alice, receipt)
    assert expired["state"] == "expired"
    assert datetime.fromisoformat(expired["expired_at"]) <= timezone.now()
    assert (expired["offered_at"] is not None) == offered_before
    assert expired["acknowledged_at"] is None


@pytest.mark.fault("L15")
def test_a_page_of_nothing_but_expired_messages_moves_the_cursor_past_them(agent, door):
    alice, bob = agent("alice"), agent("bob")
    for _ in range(3):
        alice.send("bob", "too late", expires_in_s=60)
    made_older(HOUR)

    page = bob.wait(after_sequence=0)
    assert (page["messages"], page["after_sequence"], page["has_more"]) == ([], 3, False)
    alice.send("bob", "in time", expires_in_s=60)
    assert bob.bodies(after_sequence=3) == ["in time"]


@pytest.mark.fault("L15")
def test_what_was_acknowledged_in_time_stays_acknowledged(agent, door):
    alice, bob = agent("alice"), agent("bob")
    receipt = alice.send("bob", "in time", expires_in_s=60)
    bob.call("acknowledge", through_sequence=bob.wait()["after_sequence"])
    made_older(HOUR)

    assert state_of(alice, receipt)["state"] == "acknowledged"


# --- Cursors older than what is kept --------------------------------------------------------------------------------


def old_mail_is_read_and_pruned(alice, bob):
    """Five messages for bob, of which the first three were acknowledged a month ago and are pruned now."""
    for body in ("one", "two", "three", "four", "five"):
        alice.send("bob", body)
    page = bob.wait(after_sequence=0, limit=3)
    bob.call("acknowledge", through_sequence=page["after_sequence"])
    made_older(31 * DAY, body__in=["one", "two", "three"])
    prune()


@pytest.mark.fault("L12")
def test_a_cursor_older_than_retention_is_refused_with_the_oldest_sequence_and_one_reset_goes_on(agent, door):
    alice, bob = agent("alice"), agent("bob")
    old_mail_is_read_and_pruned(alice, bob)

    refusals = [bob.refusal("wait_for_messages", after_sequence=cursor, timeout_s=20) for cursor in (0, 2)]
    assert [(r["code"], r["oldest_sequence"]) for r in refusals] == [("cursor_expired", 4)] * 2

    page = bob.wait(after_sequence=refusals[0]["oldest_sequence"] - 1)
    assert [m["body"] for m in page["messages"]] == ["four", "five"]
    assert page["oldest_sequence"] == 4
    assert bob.wait(after_sequence=page["after_sequence"])["messages"] == []


@pytest.mark.fault("L12")
def test_the_reset_also_works_when_nothing_is_kept(agent, door):
    alice, bob = agent("alice"), agent("bob")
    alice.send("bob", "old")
    bob.call("acknowledge", through_sequence=bob.wait()["after_sequence"])
    made_older(31 * DAY)
    prune()

    oldest = bob.refusal("wait_for_messages", after_sequence=0)["oldest_sequence"]
    assert bob.wait(after_sequence=oldest - 1)["messages"] == []

    alice.send("bob", "new")
    assert bob.bodies(after_sequence=oldest - 1) == ["new"]


@pytest.mark.fault("L12")
def test_without_a_cursor_retention_is_not_noticed(agent, door):
    alice, bob = agent("alice"), agent("bob")
    old_mail_is_read_and_pruned(alice, bob)
    assert bob.bodies() == ["four", "five"]
