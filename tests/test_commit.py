"""The commit is the instant of truth: sequences appear in their order, an answered send is stored, nothing rings before."""

from __future__ import annotations

import os
import random
import threading
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction
from psycopg import sql

from agents.connections.models import Connection
from messaging import delivery, store
from messaging.access import as_caller
from messaging.drafts import Draft
from messaging.models import Message, SendKey, Stream
from tests.hub import DOORS, Address, Refused, eventually, in_background, key
from tests.interleaving import (
    RecordingBell,
    held_send,
    in_loop,
    is_waiting_for_a_lock,
    listening,
    second_connection,
)
from tests.processes import free_port, own_database, site

# How long writers and readers run beside each other: the row of the list asks for a minute, the suite takes a taste.
SOAK_S = float(os.environ.get("PARLEY_SOAK_S", "3"))


# --- Sequences ------------------------------------------------------------------------------------------------------

COMMITS_THE_COUNTER_FIRST = (
    "messaging/delivery.py",
    "    sequences: dict[int, int] = dict(rows)",
    "    sequences: dict[int, int] = dict(rows); yield store.COMMIT; yield store.BEGIN",
)


@pytest.mark.fault("L6")
@pytest.mark.mutant(*COMMITS_THE_COUNTER_FIRST)
@pytest.mark.mutant(*COMMITS_THE_COUNTER_FIRST, on="postgresql")
def test_a_reader_does_not_pass_over_a_sequence_whose_sender_has_not_committed(agent, door):
    first, second, bob = agent("first"), agent("second"), agent("bob")
    with held_send(first.profile, Draft(body="commits last", to_handle="bob")) as commit:
        later = in_background(lambda: second.send("bob", "began later"))
        if store.on_postgres():
            eventually(lambda: later.done() or is_waiting_for_a_lock(), "the later sender has come to the inbox")
        # On SQLite it waits for the one writer's lock.
        page = bob.wait(after_sequence=0)
        assert (page["messages"], page["after_sequence"], page["tail_sequence"]) == ([], 0, 0)

        commit()
        later.result(5)

    page = bob.wait(after_sequence=page["after_sequence"])
    assert [(m["sequence"], m["body"]) for m in page["messages"]] == [(1, "commits last"), (2, "began later")]


@pytest.mark.fault("L6")
def test_a_send_that_rolls_back_leaves_no_gap(agent, door):
    alice, bob = agent("alice"), agent("bob")
    alice.send("bob", "one")
    with saving_fails():
        assert alice.refusal("send_agent_message", to="bob", body="lost", idempotency_key=key())["code"] == "internal"
    alice.send("bob", "two")

    assert [(m["sequence"], m["body"]) for m in bob.wait()["messages"]] == [(1, "one"), (2, "two")]


@pytest.mark.fault("L6")
@pytest.mark.timeout(120 + 2 * SOAK_S)
def test_eight_writers_and_four_readers_lose_nothing_and_keep_the_order(agent, settings):
    settings.RATE_LIMIT_PER_MINUTE = 10**9
    doors = sorted(DOORS)
    readers = [agent(f"reader-{n}", door=doors[n % 2]) for n in range(4)]
    writers = [agent(f"writer-{n}", door=doors[n % 2]) for n in range(8)]
    everybody = [r.handle for r in readers]
    writers[0].call("create_channel", name="work")
    time_is_up, all_is_sent = threading.Event(), threading.Event()

    def write(writer) -> list[tuple[str, list[str], int | None]]:
        """(message, its recipients, its place in the channel) of each send, in order."""
        chance = random.Random(writer.handle)
        sent = []
        while not time_is_up.is_set():
            if chance.random() < 0.5:
                receipt, place = writer.send(chance.choice(everybody)), None
            else:
                receipt = writer.post("work", to=chance.sample(everybody, chance.randint(1, 4)))
                place = receipt["channel_sequence"]
            sent.append((receipt["message_id"], [d["handle"] for d in receipt["delivered"]], place))
        return sent

    def read(reader) -> list[tuple[int, str]]:
        """(sequence, message) of each message received, in order. Polls and waits by turns, and sometimes loses an answer."""
        chance = random.Random(reader.handle)
        got, cursor = [], 0
        while True:
            last_round = all_is_sent.is_set()
            page = reader.wait(after_sequence=cursor, timeout_s=chance.choice([0, 0.2]), limit=50)
            if chance.random() < 0.1:
                continue
            got += [(m["sequence"], m["message_id"]) for m in page["messages"]]
            cursor = page["after_sequence"]
            if last_round and not page["messages"]:
                return got

    reading = [in_background(partial(read, r)) for r in readers]
    writing = [in_background(partial(write, w)) for w in writers]
    time_is_up.wait(SOAK_S)
    time_is_up.set()
    sent = [w.result(30) for w in writing]
    all_is_sent.set()
    received = [r.result(30) for r in reading]

    place_of = {message: place for of in sent for message, _, place in of if place is not None}
    for reader, got in zip(readers, received, strict=True):
        assert [sequence for sequence, _ in got] == list(range(1, len(got) + 1))
        messages = [message for _, message in got]
        for of in sent:
            own = {message for message, _, _ in of}
            expected = [message for message, to, _ in of if reader.handle in to]
            assert [m for m in messages if m in own] == expected
        places = [place_of[m] for m in messages if m in place_of]
        assert places == sorted(places)
    assert sum(map(len, received)) == sum(len(to) for of in sent for _, to, _ in of) > 0


# --- What an answer means -------------------------------------------------------------------------------------------


@pytest.mark.fault("L25")
def test_when_a_send_is_answered_another_connection_to_the_database_sees_it(agent, door):
    alice, bob = agent("alice"), agent("bob")
    alice.call("create_channel", name="work")
    mark = "%s" if store.on_postgres() else "?"
    with second_connection() as other:
        for number in range(1, 11):
            receipt = alice.send("bob", f"no. {number}") if number % 2 else alice.post("work", "@bob")
            message_id = receipt["message_id"] if store.on_postgres() else receipt["message_id"].replace("-", "")
            found = other.execute(
                "SELECT d.sequence, k.id IS NOT NULL FROM message m JOIN delivery d ON d.message_id = m.id "
                f"JOIN send_key k ON k.message_id = m.id WHERE m.id = {mark}",
                [message_id],
            ).fetchall()
            assert [(sequence, bool(has_key)) for sequence, has_key in found] == [(number, True)]
    assert len(bob.wait()["messages"]) == 10


@contextmanager
def connections_refused(database_url: str):
    """While the block runs, the database has no connections and takes none."""
    server, _, name = database_url.rpartition("/")
    with psycopg.connect(f"{server}/postgres", autocommit=True) as admin:

        def allow(how: str) -> None:
            admin.execute(sql.SQL(f"ALTER DATABASE {{}} ALLOW_CONNECTIONS {how}").format(sql.Identifier(name)))

        allow("false")
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
        try:
            yield
        finally:
            allow("true")


@pytest.mark.postgresql
@pytest.mark.fault("L25")
def test_while_the_database_is_away_nothing_is_answered_as_done_and_it_recovers_by_itself(tmp_path):
    port = free_port()
    with own_database(tmp_path) as url:
        parley = site(tmp_path, public_url=f"http://127.0.0.1:{port}", database_url=url)
        tokens = {handle: parley.token("owner", "--handle", handle) for handle in ("alice", "bob")}
        with parley.served(port=port):
            alice, bob = (
                {door: of(Address(port), token, Connection(), handle) for door, of in DOORS.items()}
                for handle, token in tokens.items()
            )
            for door in DOORS:
                alice[door].send("bob", "before")
            bob["mcp"].wait()
            waiting = [in_background(partial(a.wait, timeout_s=2)) for a in bob.values()]
            eventually(lambda: alice["mcp"].call("list_peers")["peers"][0]["waiting"], "bob waits")
            keys = {door: key() for door in DOORS}
            with connections_refused(url):
                for door in DOORS:
                    with pytest.raises(Refused) as refused:
                        alice[door].send("bob", f"through {door}", idempotency_key=keys[door])
                    assert (refused.value.status, refused.value.code) == (503, "database_unavailable")
                    assert alice[door].answers[-1].headers["retry-after"]
                for wait in waiting:
                    with pytest.raises(Refused) as refused:
                        wait.result(10)
                    assert (refused.value.status, refused.value.code) == (503, "database_unavailable")

            def sent(door) -> Any:
                try:
                    return alice[door].send("bob", f"through {door}", idempotency_key=keys[door])
                except Refused as still:
                    if still.code != "database_unavailable":
                        raise
                    return None

            for door in DOORS:
                assert eventually(partial(sent, door), "the hub has recovered")["replayed"] is False
            assert bob["http"].bodies() == [f"through {door}" for door in DOORS]


# --- What is announced ----------------------------------------------------------------------------------------------


@contextmanager
def saving_fails():
    """While the block runs, a delivery can be written, but its transaction cannot commit."""
    on_postgres = [
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not today'; END $$",
        "CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON delivery DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION refuse()",
    ]
    on_sqlite = [
        "CREATE TRIGGER refuse AFTER INSERT ON delivery BEGIN "
        "INSERT INTO block (blocker_id, blocked_id, created_at) VALUES (-1, -2, '2000-01-01'); END"
    ]
    after = (
        ["DROP TRIGGER refuse ON delivery", "DROP FUNCTION refuse"] if store.on_postgres() else ["DROP TRIGGER refuse"]
    )
    with connection.cursor() as cursor:
        for statement in on_postgres if store.on_postgres() else on_sqlite:
            cursor.execute(statement)
        try:
            yield
        finally:
            for statement in after:
                cursor.execute(statement)


def tail_of(other: Any, stream_id: int) -> int:
    """The last sequence of a stream, as a second connection sees it."""
    return int(other.execute(f"SELECT tail FROM stream WHERE id = {stream_id}").fetchone()[0])


@pytest.mark.fault("L26")
def test_each_ring_finds_what_it_rings_for_committed(hub, agent, door):
    alice, bob = agent("alice"), agent("bob")
    inbox = bob.profile.inbox_id
    with second_connection() as other:
        bell = RecordingBell(lambda: tail_of(other, inbox))
        with listening(hub, inbox, bell):
            receipt = alice.send("bob", "sent")
            eventually(lambda: bell.seen == [1], "the send rings")
            alice.call("edit_message", message_id=receipt["message_id"], body="edited")
            eventually(lambda: bell.seen == [1, 2], "the edit rings")
            alice.call("retract_message", message_id=receipt["message_id"])
            eventually(lambda: bell.seen == [1, 2, 3], "the retraction rings")


@pytest.mark.fault("L26")
def test_a_send_whose_commit_fails_announces_nothing_and_stores_nothing(hub, agent, door):
    alice, bob = agent("alice"), agent("bob")
    inbox, same = bob.profile.inbox_id, key()
    waiting = bob.waiting()
    bell = RecordingBell(lambda: None)
    with listening(hub, inbox, bell):
        with saving_fails():
            assert alice.refusal("send_agent_message", to="bob", body="boo", idempotency_key=same)["code"] == "internal"
        in_loop(hub)
        assert bell.seen == []
        assert not waiting.done()
        assert not Message.objects.exists()
        assert not SendKey.objects.exists()
        assert Stream.objects.get(pk=inbox).tail == 0

        assert alice.send("bob", "boo", idempotency_key=same)["replayed"] is False
    assert [m["body"] for m in waiting.result(5)["messages"]] == ["boo"]


@pytest.mark.fault("L26")
@pytest.mark.mutant(
    "messaging/delivery.py", "transaction.on_commit(lambda: doorbell.ring(*keys))", "doorbell.ring(*keys)"
)
def test_a_send_within_a_larger_transaction_rings_after_its_commit_and_not_at_all_if_it_fails(hub, agent):
    alice, bob = agent("alice"), agent("bob")
    inbox = bob.profile.inbox_id

    def send() -> Any:
        draft = Draft(body="hello", to_handle="bob")
        return delivery.send_message(by=as_caller(alice.profile), draft=draft, key=key())

    with second_connection() as other:
        bell = RecordingBell(lambda: tail_of(other, inbox))
        with listening(hub, inbox, bell):
            with suppress(ZeroDivisionError), transaction.atomic():
                send()
                raise ZeroDivisionError
            in_loop(hub)
            assert bell.seen == []

            with transaction.atomic():
                send()
                in_loop(hub)
                assert bell.seen == []
            eventually(lambda: bell.seen == [1], "the commit rings")


@pytest.mark.postgresql
@pytest.mark.fault("L26")
def test_other_processes_hear_of_a_send_after_its_commit_only(agent, door):
    alice, bob = agent("alice"), agent("bob")
    inbox = bob.profile.inbox_id
    with second_connection() as listener, second_connection() as other, second_connection() as holder:
        listener.execute("LISTEN parley_doorbell")
        holder.execute("BEGIN")
        holder.execute("SELECT 1 FROM stream WHERE id = %s FOR NO KEY UPDATE", [inbox])
        sending = in_background(lambda: alice.send("bob", "not yet"))
        eventually(is_waiting_for_a_lock, "the send has begun and waits for the inbox")
        assert heard(listener, timeout_s=0) == []

        holder.execute("COMMIT")
        sending.result(5)
        (keys,) = heard(listener, timeout_s=5)
        assert str(inbox) in keys
        assert tail_of(other, inbox) == 1


def heard(listener: Any, *, timeout_s: float) -> list[list[str]]:
    """The keys of what a listening connection is told, the first at most."""
    return [n.payload.split()[1:] for n in listener.notifies(timeout=timeout_s, stop_after=1)]
