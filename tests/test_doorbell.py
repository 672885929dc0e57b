"""The doorbell: whoever waits is woken by what commits, and a ring that is lost costs time, never a message."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from django.db import connection
from django.utils import timezone

from agents import operations
from agents.connections import credentials
from messaging import delivery, store
from messaging.access import as_caller
from messaging.doorbell import Bell, Room, SocketBus, doorbell, socket_folder, stream_key
from messaging.drafts import Draft
from tests.hub import PATIENCE_S, Address, eventually, in_background, key, new_agent
from tests.interleaving import in_own_connection
from tests.processes import Site, free_port


@pytest.fixture(scope="module")
def command(running_hub) -> Site:
    """The settings of another process of the hub under test: the same database."""
    known = connection.settings_dict
    if store.on_postgres():
        password = f":{quote(known['PASSWORD'])}" if known["PASSWORD"] else ""
        server = f"{known['USER']}{password}@{known['HOST'] or '127.0.0.1'}:{known['PORT'] or 5432}"
        url = f"postgres://{server}/{known['NAME']}"
    else:
        url = f"sqlite:///{known['NAME']}"
    return Site(
        {
            "PATH": os.environ["PATH"],
            "PARLEY_ENV_FILE": os.devnull,
            "SECRET_KEY": "another-process-of-the-same-hub-" * 3,
            "PUBLIC_URL": "http://127.0.0.1:8000",
            "DATABASE_URL": url,
        }
    )


@pytest.fixture(scope="module")
def second_server(command: Site) -> Iterator[Address]:
    port = free_port()
    with command.served(port=port):
        yield Address(port)


# --- A message between the look and the wait ------------------------------------------------------------------------


@pytest.mark.fault("L8")
@pytest.mark.mutant(
    "messaging/delivery.py", "        rest = deadline - clock()", "        rest = deadline - clock(); bell.clear()"
)
@pytest.mark.mutant("messaging/doorbell.py", "        if self._rung or timeout_s <= 0:", "        if timeout_s <= 0:")
def test_a_message_sent_between_the_look_that_found_nothing_and_the_wait_is_returned_at_once(hub, agent):
    alice, bob = agent("alice"), agent("bob")
    sender, reader = as_caller(alice.profile), as_caller(bob.profile)
    times_asked = 0

    def commit() -> delivery.Stored:
        draft = Draft(body="just now", to_handle="bob")
        return store.run(store.atomic(delivery.send(by=sender, draft=draft, key=key(), now=timezone.now())))

    def clock() -> float:
        """Is asked for the deadline, and after each look for what is left of it: the first time then, the message comes."""
        nonlocal times_asked
        times_asked += 1
        if times_asked == 2:
            stored = in_own_connection(commit).result(5)
            doorbell.ring(*map(stream_key, stored.streams))
        return 0.0

    async def wait() -> delivery.Look:
        bell = Bell()
        with doorbell.listen(stream_key(reader.inbox_id), bell):
            return await delivery.wait_for_messages(by=reader, bell=bell, timeout_s=20, clock=clock)

    waiting = asyncio.run_coroutine_threadsafe(wait(), hub.loop)
    try:
        assert [m["body"] for m in waiting.result(5).page["messages"]] == ["just now"]
    finally:
        waiting.cancel()
    assert times_asked == 3


@pytest.mark.fault("L8")
def test_the_doors_listen_before_they_look(hub, agent):
    bob = agent("bob")
    credential = store.run(credentials.look_up(credentials.hash_token(bob.token)))
    inbox = bob.profile.inbox_id
    listeners: list[int] = []

    class Noting(Bell):
        def clear(self) -> None:
            """Called before each look."""
            listeners.append(doorbell.waiters(stream_key(inbox)))
            super().clear()

    async def wait() -> Any:
        connected = asyncio.Event()

        async def receive() -> Any:
            await connected.wait()

        return await operations.wait(credential, {"timeout_s": 0}, Noting(), receive)

    assert asyncio.run_coroutine_threadsafe(wait(), hub.loop).result(5)["messages"] == []
    assert listeners == [1]


# --- Between processes ----------------------------------------------------------------------------------------------


@pytest.mark.fault("L9")
@pytest.mark.mutant("messaging/doorbell.py", "room.loop.add_reader(receiver, self._receive, receiver, room)", "pass")
@pytest.mark.mutant(
    "messaging/doorbell.py",
    "                        if origin != _origin:",
    "                        if False:",
    on="postgresql",
)
def test_a_send_in_another_server_process_wakes_a_wait(agent, door, second_server):
    alice, bob = new_agent(second_server, door, handle="alice"), agent("bob")
    waiting = bob.waiting()
    eventually(lambda: doorbell.state == "listening", "the hub hears other processes")

    alice.send("bob", "from there")

    assert [m["body"] for m in waiting.result(5)["messages"]] == ["from there"]


SEND = """
from messaging.access import as_caller
from messaging.delivery import send_message
from messaging.drafts import Draft
from messaging.models import Profile
by = as_caller(Profile.objects.get(handle="alice"))
send_message(by=by, draft=Draft(body="from a command", to_handle="bob"), key="from-a-command")
"""


@pytest.mark.fault("L9")
def test_a_command_wakes_a_wait(agent, command):
    agent("alice")
    bob = agent("bob")
    waiting = bob.waiting(timeout_s=50)
    eventually(lambda: doorbell.state == "listening", "the hub hears other processes")

    command.manage("shell", "--no-imports", "-c", SEND)

    assert [m["body"] for m in waiting.result(5)["messages"]] == ["from a command"]


@contextmanager
def rings_lost() -> Iterator[None]:
    """While the block runs, no ring of another process arrives in this one, and it can do nothing about it."""
    with _listeners_refused() if store.on_postgres() else _sockets_gone():
        yield


@contextmanager
def _listeners_refused() -> Iterator[None]:
    """The listening connections are killed, and the database takes no new ones. Those that are open go on."""
    name = connection.settings_dict["NAME"]
    listening = "FROM pg_stat_activity WHERE datname = %s AND application_name = 'parley-doorbell'"
    with psycopg.connect(**{**store.connection_arguments(), "dbname": "postgres"}, autocommit=True) as admin:
        admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        try:
            admin.execute(f"SELECT pg_terminate_backend(pid) {listening}", [name])
            eventually(lambda: admin.execute(f"SELECT count(*) {listening}", [name]).fetchone() == (0,), "all are deaf")
            yield
        finally:
            admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')


@contextmanager
def _sockets_gone() -> Iterator[None]:
    """The folder of sockets is removed, and something else stands in its place."""
    folder = socket_folder()

    def replaced() -> bool:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            folder.touch(exist_ok=False)
        return folder.is_file()

    eventually(replaced, "the sockets are gone")
    try:
        yield
    finally:
        Path(folder).unlink()


@pytest.fixture
def bob_and_alice_elsewhere(agent, door, second_server):
    """Bob, and alice on the second server; each process has spoken to the database through this door."""
    bob, alice = agent("bob"), new_agent(second_server, door, handle="alice")
    waiting = bob.waiting()
    alice.send("bob", "first")
    bob.wait(after_sequence=waiting.result(5)["after_sequence"])
    eventually(lambda: doorbell.state == "listening", "the hub hears other processes")
    return bob, alice


@pytest.mark.fault("L9")
def test_a_message_whose_ring_was_lost_during_a_wait_comes_before_its_time_is_up(bob_and_alice_elsewhere):
    bob, alice = bob_and_alice_elsewhere
    waiting = bob.waiting(timeout_s=3)
    with rings_lost():
        alice.send("bob", "into silence")
        assert [m["body"] for m in waiting.result(8)["messages"]] == ["into silence"]


@pytest.mark.fault("L9")
@pytest.mark.mutant("messaging/doorbell.py", "room.loop.call_later(self.CHECK_EVERY_S, self.start, room)", "pass")
@pytest.mark.mutant(
    "messaging/doorbell.py", "                    room.ring_all()", "                    pass", on="postgresql"
)
def test_when_the_notifier_is_back_a_wait_that_missed_a_ring_is_woken_and_later_ones_wake_at_once(
    bob_and_alice_elsewhere,
):
    bob, alice = bob_and_alice_elsewhere
    waiting = bob.waiting()
    with rings_lost():
        alice.send("bob", "into silence")
    page = waiting.result(5)
    assert [m["body"] for m in page["messages"]] == ["into silence"]

    eventually(lambda: doorbell.state == "listening", "the hub hears other processes")
    waiting = bob.waiting(after_sequence=page["after_sequence"])
    alice.send("bob", "loud and clear")
    assert [m["body"] for m in waiting.result(5)["messages"]] == ["loud and clear"]


# --- Bursts ---------------------------------------------------------------------------------------------------------


@pytest.mark.fault("L10")
@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_a_slow_reader_gets_all_300_messages_of_a_burst(hub, agent, door, second_server, where):
    bob = agent("bob")
    through = hub if where == "here" else second_server
    senders = [new_agent(through, door, handle=f"sender-{n}") for n in range(3)]

    def burst(sender) -> list[str]:
        return [sender.send("bob", f"{sender.handle}: {n}")["message_id"] for n in range(100)]

    waiting = bob.waiting()
    sending = [in_background(partial(burst, sender)) for sender in senders]
    got, page = [], waiting.result(5)
    sent = [s.result(60) for s in sending]  # While he looks at his first page, all the rest comes.
    while page["messages"]:
        got += page["messages"]
        page = bob.wait(after_sequence=page["after_sequence"])

    assert [m["sequence"] for m in got] == list(range(1, 301))
    assert {m["message_id"] for m in got} == {message for of in sent for message in of}


@pytest.mark.fault("L10")
def test_a_reader_who_waits_through_a_burst_from_another_process_is_never_left_waiting(agent, second_server):
    alice, bob = new_agent(second_server, "mcp", handle="alice"), agent("bob")
    waiting = bob.waiting()
    eventually(lambda: doorbell.state == "listening", "the hub hears other processes")
    sending = in_background(lambda: [alice.send("bob", str(n)) for n in range(100)])
    got: list[str] = []
    while True:
        page = waiting.result(5)
        got += [m["body"] for m in page["messages"]]
        if len(got) == 100:
            break
        waiting = bob.waiting(after_sequence=page["after_sequence"])
    sending.result(5)
    assert got == [str(n) for n in range(100)]


@pytest.mark.sqlite
@pytest.mark.mutant("messaging/doorbell.py", "if loop and tries <= self.MAX_TRIES:", "if loop:")
def test_processes_that_hang_are_given_up_and_told_nothing_twice_over(tmp_path):
    deaf = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)]

    async def ring_often() -> None:
        bus = SocketBus(tmp_path)
        bus.RETRY_AFTER_S = 0.001
        bus.start(Room(asyncio.get_running_loop(), bus))
        for number, peer in enumerate(deaf):
            peer.bind(str(tmp_path / f"deaf-{number}"))
        for number in range(100):
            bus.publish([str(number)])
        assert set(bus.late) == {"deaf-0", "deaf-1"}, "their queues are full by now"
        async with asyncio.timeout(PATIENCE_S):
            while bus.late:  # noqa: ASYNC110 - its timers are what is being tested
                await asyncio.sleep(0.01)

    try:
        in_background(lambda: asyncio.run(ring_often())).result(2 * PATIENCE_S)
    finally:
        for peer in deaf:
            peer.close()
