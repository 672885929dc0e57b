"""Sends of one moment share a transaction, and nobody notices but the disk."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import DataError
from django.utils import timezone

from messaging import batches, channels, delivery, errors, profiles, receipts, store
from messaging.access import Caller, as_caller
from messaging.drafts import Draft
from messaging.models import Delivery, Message, SendKey
from messaging.store import Statement
from tests.hub import in_background, key

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def callers() -> list[Caller]:
    owner = get_user_model().objects.create(username="owner")
    return [as_caller(profiles.claim_handle(owner=owner, handle=f"agent-{n}")[0]) for n in range(6)]


def send(by: Caller, draft: Draft, used: str | None = None) -> store.Steps[delivery.Stored]:
    return delivery.send(by=by, draft=draft, key=used or key(), now=timezone.now())


def in_transaction(sends: list[store.Steps[Any]]) -> store.Steps[list[Any]]:
    return store.atomic(batches.together(sends))


def in_one_transaction(*sends: store.Steps[Any]) -> list[Any]:
    return store.run(in_transaction(list(sends)))


def counted(steps: store.Steps[Any]) -> tuple[list[str], Any]:
    """The first words of the statements that steps yield, and their result."""
    seen: list[str] = []

    def spied() -> store.Steps[Any]:
        rows: Any = None
        while True:
            try:
                statement = steps.send(rows)
            except StopIteration as end:
                return end.value
            seen.append(statement.sql.split()[0])
            rows = yield statement

    return seen, store.run(spied())


def test_each_send_gets_a_place_of_its_own_in_a_shared_inbox(callers):
    alice, bob, carol, *_ = callers
    stored = in_one_transaction(
        *(send(who, Draft(body=f"{n}", to_handle=carol.handle)) for n, who in enumerate([alice, bob] * 5))
    )
    assert len({s.receipt["message_id"] for s in stored}) == 10
    rows = Delivery.objects.filter(inbox=carol.inbox_id).order_by("sequence").values_list("sequence", "message__body")
    assert list(rows) == [(n + 1, f"{n}") for n in range(10)]
    for who in (alice, bob):
        of = [s.receipt["channel_sequence"] for s, by in zip(stored, [alice, bob] * 5, strict=True) if by is who]
        assert of == [1, 2, 3, 4, 5]


def test_direct_messages_channel_posts_and_threads_go_together(callers):
    alice, bob, carol, *_ = callers
    channels.create_channel(by=alice, name="room")
    root = delivery.send_message(by=alice, draft=Draft(body="root", channel="room"), key=key())
    answers = in_one_transaction(
        send(alice, Draft(body="to bob", to_handle=bob.handle)),
        send(bob, Draft(body="hello @agent-2", channel="room", to=(alice.handle,))),
        send(carol, Draft(body="in the thread", channel="room", thread_root_id=Message.objects.get(body="root").pk)),
    )
    assert [a.receipt["channel_sequence"] for a in answers] == [1, 2, 3]
    assert [(d["handle"], d["route"]) for d in answers[1].receipt["delivered"]] == [
        ("agent-0", "to"),
        ("agent-2", "mention"),
    ]
    assert answers[2].receipt["thread_root_id"] == root["message_id"]
    assert receipts.inbox_peek(by=carol)["messages"][0]["body"] == "hello @agent-2"


@pytest.mark.mutant("messaging/delivery.py", "        yield statements.give_key_back(message_id)", "        pass")
def test_who_is_refused_leaves_the_others_alone_and_its_key_free(callers):
    alice, bob, *_ = callers
    used = key()
    good, refused, also_good = in_one_transaction(
        send(alice, Draft(body="one", to_handle=bob.handle)),
        send(alice, Draft(body="two", to_handle="nobody-here"), used),
        send(bob, Draft(body="three", to_handle=alice.handle)),
    )
    assert isinstance(refused, errors.NotFound)
    assert refused.code == "unknown_handle"
    assert [good.receipt["channel_sequence"], also_good.receipt["channel_sequence"]] == [1, 2]
    assert not SendKey.objects.filter(key=used).exists()
    assert delivery.send_message(by=alice, draft=Draft(body="two", to_handle=bob.handle), key=used)["replayed"] is False


def test_a_replay_among_new_sends_gives_the_first_receipt(callers):
    alice, bob, *_ = callers
    used, draft = key(), Draft(body="once", to_handle=bob.handle)
    first = delivery.send_message(by=alice, draft=draft, key=used)
    again, new = in_one_transaction(send(alice, draft, used), send(alice, Draft(body="new", to_handle=bob.handle)))
    assert again.receipt == {**first, "replayed": True}
    assert again.streams == ()
    assert new.receipt["replayed"] is False


@pytest.mark.postgresql
def test_the_number_of_statements_does_not_grow_with_the_number_of_sends(callers):
    target = callers[-1].handle
    for who in callers[:-1]:
        delivery.send_message(by=who, draft=Draft(body="hi", to_handle=target), key=key())
    few, _ = counted(in_transaction([send(who, Draft(body="x", to_handle=target)) for who in callers[:2]]))
    many, _ = counted(in_transaction([send(who, Draft(body="x", to_handle=target)) for who in callers[:-1] * 8]))
    assert few == many
    assert Counter(few) == {"BEGIN": 1, "SELECT": 3, "INSERT": 3, "WITH": 1, "COMMIT": 1}


def test_sends_under_one_key_do_not_share_a_transaction(callers):
    alice, bob, *_ = callers
    draft, used = Draft(body="once", to_handle=bob.handle), key()

    async def race() -> list[Any]:
        try:
            return await asyncio.gather(*(delivery.asend_message(by=alice, draft=draft, key=used) for _ in range(20)))
        finally:
            await store.close_pool()

    receipts_ = in_background(lambda: asyncio.run(race())).result(20)
    assert sorted(r["replayed"] for r in receipts_) == [False] + [True] * 19
    assert len({r["message_id"] for r in receipts_}) == 1
    assert Message.objects.count() == 1


def test_a_send_that_breaks_the_transaction_breaks_only_its_own(callers):
    alice, bob, *_ = callers

    def broken() -> store.Steps[delivery.Stored]:
        yield Statement("SELECT no_such_column FROM profile")
        raise AssertionError("unreachable")

    async def both() -> list[Any]:
        writer: batches.Writer[delivery.Stored] = batches.Writer()
        good = writer.write(lambda: send(alice, Draft(body="good", to_handle=bob.handle)), alone=1)
        bad = writer.write(broken, alone=2)
        try:
            return list(await asyncio.gather(good, bad, return_exceptions=True))
        finally:
            await store.close_pool()

    good, bad = in_background(lambda: asyncio.run(both())).result(20)
    assert good.receipt["channel_sequence"] == 1
    assert isinstance(bad, Exception)
    assert not isinstance(bad, DataError | errors.ParleyError)
    assert list(Message.objects.values_list("body", flat=True)) == ["good"]


def test_a_send_goes_on_when_whoever_asked_has_gone(callers):
    alice, bob, *_ = callers

    async def leave() -> None:
        asked = asyncio.create_task(
            delivery.asend_message(by=alice, draft=Draft(body="kept", to_handle=bob.handle), key=key())
        )
        await asyncio.sleep(0)  # It has begun.
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        # The next send comes after it, in a transaction of its own.
        await delivery.asend_message(by=alice, draft=Draft(body="next", to_handle=bob.handle), key=key())
        await store.close_pool()

    in_background(lambda: asyncio.run(leave())).result(20)
    assert list(Message.objects.order_by("channel_sequence").values_list("body", flat=True)) == ["kept", "next"]
