"""Ways to hold one side still while the other moves: a send before its commit, offers kept from being written, bells that
record. Interleavings are proved with these, not hoped for.
"""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from typing import Any

import psycopg
from django.db import connection
from django.utils import timezone

from messaging import delivery, store
from messaging.access import as_caller
from messaging.doorbell import Bell, doorbell, stream_key
from messaging.drafts import Draft
from messaging.models import Channel, InboxCursor, Profile, Stream
from tests.hub import PATIENCE_S, Hub, in_background, key


def in_own_connection(work: Callable[[], Any]) -> Future[Any]:
    """Runs work in a thread, on a connection that is given back afterwards."""

    def call() -> Any:
        try:
            return work()
        finally:
            connection.close()

    return in_background(call)


@contextmanager
def second_connection() -> Iterator[Any]:
    """A connection past Django and the hub, in autocommit: what it sees is committed. Any thread may use it."""
    if store.on_postgres():
        with psycopg.connect(**store.connection_arguments(), autocommit=True) as driver:
            yield driver
    else:
        name = connection.settings_dict["NAME"]
        with closing(sqlite3.connect(name, isolation_level=None, check_same_thread=False)) as driver_:
            yield driver_


# --- Senders and readers, held --------------------------------------------------------------------------------------


class HeldSend:
    """A send that stands before its commit, with all its rows written and its sequences handed out."""

    def __init__(self) -> None:
        self.written = threading.Event()
        self.may_commit = threading.Event()

    def steps(self, of: store.Steps[delivery.Stored]) -> store.Steps[delivery.Stored]:
        """The steps of a send, stopped before the commit that makes its delivery true."""
        rows: Any = None
        while True:
            try:
                statement = of.send(rows)
            except StopIteration as end:
                stored: delivery.Stored = end.value
                return stored
            if "INSERT INTO delivery" in statement.sql:
                self.written.set()
            if statement is store.COMMIT and self.written.is_set():
                self.may_commit.wait(PATIENCE_S)
            rows = yield statement


@contextmanager
def held_send(sender: Profile, draft: Draft) -> Iterator[Callable[[], Any]]:
    """Sends on a connection of its own up to before the commit. The block gets a function that lets it commit and ring, and
    returns the receipt; leaving the block does so too.
    """
    held = HeldSend()
    steps = delivery.send(by=as_caller(sender), draft=draft, key=key(), now=timezone.now())
    sending = in_own_connection(lambda: store.run(held.steps(store.atomic(steps))))

    def commit() -> Any:
        held.may_commit.set()
        stored = sending.result(PATIENCE_S)
        doorbell.ring(*map(stream_key, stored.streams))
        return stored.receipt

    assert held.written.wait(PATIENCE_S), "the send has not written its rows"
    try:
        yield commit
    finally:
        held.may_commit.set()
        sending.result(PATIENCE_S)


@contextmanager
def offers_held(inbox_id: int) -> Iterator[None]:
    """While the block runs, the inbox can be read, but nothing in it can be marked as offered."""
    with second_connection() as other:
        if store.on_postgres():
            other.execute("BEGIN")
            other.execute("SELECT 1 FROM delivery WHERE inbox_id = %s FOR UPDATE", [inbox_id])
        else:
            other.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            other.execute("ROLLBACK")


def is_waiting_for_a_lock() -> bool:
    """Whether somebody waits for a lock in the database of this run; only PostgreSQL tells."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return bool(cursor.fetchone()[0])


# --- Bells ----------------------------------------------------------------------------------------------------------


class RecordingBell(Bell):
    """Notes at each ring what `look` sees at that very moment."""

    def __init__(self, look: Callable[[], Any]) -> None:
        super().__init__()
        self.look = look
        self.seen: list[Any] = []

    def ring(self) -> None:
        self.seen.append(self.look())
        super().ring()


@contextmanager
def listening(hub: Hub, stream_id: int, bell: Bell) -> Iterator[None]:
    """Inside the block the bell is rung in the hub's event loop, like that of a wait."""
    block = doorbell.listen(stream_key(stream_id), bell)
    in_loop(hub, block.__enter__)
    try:
        yield
    finally:
        in_loop(hub, lambda: block.__exit__(None, None, None))


def in_loop(hub: Hub, work: Callable[[], Any] = lambda: None) -> Any:
    """Runs something in the hub's event loop, after everything that was queued there before."""

    async def run() -> Any:
        return work()

    assert hub.loop is not None
    return asyncio.run_coroutine_threadsafe(run(), hub.loop).result(PATIENCE_S)


# --- Rows without sending -------------------------------------------------------------------------------------------


def fill_inbox(
    recipient: Profile, sender: Profile, count: int, *, offered: bool = False, acknowledged: bool = False
) -> None:
    """Puts `count` direct messages into an empty inbox at once, their bodies and sequences counted from 1."""
    low, high = sorted((recipient, sender), key=lambda p: p.pk)
    stream = Stream.objects.create(kind=Stream.Kind.CHANNEL, tail=count)
    channel = Channel.objects.create(kind=Channel.Kind.DIRECT, stream=stream, low=low, high=high)
    start = secrets.token_hex(4)
    if store.on_postgres():
        id_ = f"CAST('{start}-0000-4000-8000-' || lpad(to_hex(i), 12, '0') AS uuid)"
        empty = "CAST('{}' AS jsonb)"
    else:
        id_ = f"'{start}000040008000' || printf('%%012x', i)"
        empty = "'{}'"
    now = timezone.now()
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO message (id, channel_id, channel_sequence, sender_id, thread_root_id, kind, body, created_at, receipt) "
            f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count}) "
            f"SELECT {id_}, %s, i, %s, {id_}, 'message', CAST(i AS text), %s, {empty} FROM n",
            [channel.pk, sender.pk, now],
        )
        cursor.execute(
            "INSERT INTO delivery (message_id, inbox_id, sequence, route, offers, offered_at, acknowledged_at) "
            "SELECT id, %s, channel_sequence, 'direct', %s, %s, %s FROM message WHERE channel_id = %s",
            [recipient.inbox_id, int(offered), now if offered else None, now if acknowledged else None, channel.pk],
        )
        # What autovacuum would find out by itself.
        cursor.execute("ANALYZE")
    Stream.objects.filter(pk=recipient.inbox_id).update(tail=count)
    if offered:
        InboxCursor.objects.filter(pk=recipient.inbox_id).update(offered_through=count)
