"""What ends a wait: a client that is gone or has cancelled, and time."""

from __future__ import annotations

import asyncio
import http.client
import logging
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from django.db import connection

from messaging import store
from messaging.access import as_caller
from messaging.delivery import wait_for_messages
from messaging.doorbell import Bell, doorbell
from tests.eras import LEGACY, MODERN, OpenCall, cancel
from tests.hub import eventually, in_background
from tests.interleaving import is_waiting_for_a_lock, offers_held

WAITS = 200


@pytest.fixture
def tracebacks(caplog: pytest.LogCaptureFixture) -> Iterator[Any]:
    """What has been logged with a traceback or as an error since the test began."""
    uvicorn = logging.getLogger("uvicorn")  # Its records do not reach the root.
    uvicorn.addHandler(caplog.handler)
    yield lambda: [r.getMessage() for r in caplog.records if r.exc_info or r.levelno >= logging.ERROR]
    uvicorn.removeHandler(caplog.handler)


def nothing_is_held() -> bool:
    """Whether no connection to the database is in use, neither for reading nor for writing."""
    if store.on_postgres():
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
                "AND backend_type = 'client backend' AND state <> 'idle'"
            )
            return cursor.fetchone() == (0,)
    with sqlite3.connect(connection.settings_dict["NAME"], timeout=0) as another:
        # It waits for each reader and writer to be done, here for no time at all; 0: there was none.
        busy: int = another.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    another.close()
    return busy == 0


# --- Gone -----------------------------------------------------------------------------------------------------------


@pytest.mark.fault("M2")
@pytest.mark.mutant("agents/connections/door.py", 'bell.end("gone")', "bell.clear()")
@pytest.mark.parametrize("era", [MODERN, LEGACY[0]])
def test_200_waits_whose_clients_hang_up_are_over_and_hold_nothing(hub, agent, tracebacks, era):
    alice = agent("alice")
    waits = [OpenCall(hub, alice.token, "wait_for_messages", era=era, request_id=n) for n in range(WAITS)]
    eventually(lambda: doorbell.waiting == WAITS, "all are waiting")
    eventually(nothing_is_held, "a wait holds no connection")
    for wait in waits:
        wait.drop()
    eventually(lambda: doorbell.waiting == 0, "nobody waits any more")
    eventually(nothing_is_held, "nothing is held")
    assert tracebacks() == []


@pytest.mark.fault("M2")
def test_200_waits_over_http_whose_clients_hang_up_are_over(hub, agent, tracebacks):
    alice = agent("alice")
    waits = [http.client.HTTPConnection("127.0.0.1", hub.port, timeout=5) for _ in range(WAITS)]
    for wait in waits:
        wait.request("GET", "/api/v1/inbox?timeout_s=50", headers={"Authorization": f"Bearer {alice.token}"})
    eventually(lambda: doorbell.waiting == WAITS, "all are waiting")
    for wait in waits:
        wait.close()
    eventually(lambda: doorbell.waiting == 0, "nobody waits any more")
    eventually(nothing_is_held, "nothing is held")
    assert tracebacks() == []


@pytest.mark.fault("M2")
def test_a_message_sent_after_the_client_hung_up_comes_to_its_next_wait_as_new(hub, agent):
    alice, bob = agent("alice"), agent("bob")
    gone = OpenCall(hub, alice.token, "wait_for_messages")
    eventually(alice.waiters)
    gone.drop()
    eventually(lambda: not alice.waiters())
    bob.send("alice", "are you back?")
    (message,) = alice.wait()["messages"]
    assert (message["body"], message["redelivered"]) == ("are you back?", False)


# --- Cancelled ------------------------------------------------------------------------------------------------------


@pytest.mark.fault("M3")
@pytest.mark.mutant("agents/mcp/wire.py", '== "notifications/cancelled"', '== "notifications/canceled"')
@pytest.mark.parametrize("era", [LEGACY[0], MODERN])
@pytest.mark.parametrize("request_id", [7, "seven", "\ud800"])
def test_a_cancelled_wait_answers_an_empty_page_and_the_next_one_gets_the_message(hub, agent, era, request_id):
    alice, bob = agent("alice"), agent("bob")
    ghost = OpenCall(hub, alice.token, "wait_for_messages", era=era, request_id=request_id)
    eventually(alice.waiters)
    assert cancel(hub, alice.token, request_id, era).status == 202
    page = ghost.result()
    assert (page["messages"], page["advice"]["action"]) == ([], "wait")
    eventually(lambda: not alice.waiters())
    bob.send("alice", "for the next one")
    (message,) = alice.wait()["messages"]
    assert (message["body"], message["redelivered"]) == ("for the next one", False)


@pytest.mark.fault("M3")
def test_a_wait_cancelled_before_anything_else_is_over_too(hub, agent):
    """The notification may come in the same breath as the request."""
    alice = agent("alice")
    for number in range(20):
        wait = OpenCall(hub, alice.token, "wait_for_messages", request_id=number)
        eventually(alice.waiters)
        cancel(hub, alice.token, number)
        assert wait.result()["messages"] == []


@pytest.mark.fault("M3")
def test_only_the_same_client_cancels_and_only_the_request_it_names(hub, agent):
    alice, mallory = agent("alice"), agent("mallory", owner="mallory")
    wait = OpenCall(hub, alice.token, "wait_for_messages", request_id=1)
    eventually(alice.waiters)
    assert cancel(hub, mallory.token, 1).status == 202
    assert cancel(hub, None, 1).status == 202
    for request_id in (2, "1", None, True, 1.0, [1], {"id": 1}, 10**100):
        assert cancel(hub, alice.token, request_id).status == 202
    assert alice.waiters() == 1
    mallory.send("alice", "still there?")
    assert [m["body"] for m in wait.result()["messages"]] == ["still there?"]


@pytest.mark.fault("M3")
def test_a_cancellation_of_what_was_answered_long_ago_takes_nothing_back(hub, agent):
    alice, bob = agent("alice"), agent("bob")
    bob.send("alice", "first")
    answered = OpenCall(hub, alice.token, "wait_for_messages", request_id=3).result()
    assert [m["body"] for m in answered["messages"]] == ["first"]
    assert cancel(hub, alice.token, 3).status == 202
    bob.send("alice", "second")
    assert [(m["body"], m["redelivered"]) for m in alice.wait()["messages"]] == [("second", False)]


@pytest.mark.fault("M3")
@pytest.mark.postgresql
@pytest.mark.parametrize("end", ["cancelled", "gone"])
def test_a_wait_that_ends_while_a_message_is_being_offered_gives_it_back(hub, agent, end):
    """On PostgreSQL only: there one sees who waits for a lock."""
    alice, bob = agent("alice"), agent("bob")
    bob.send("alice", "offered to nobody")
    with offers_held(alice.profile.inbox_id):
        wait = OpenCall(hub, alice.token, "wait_for_messages", request_id=9)
        eventually(is_waiting_for_a_lock, "the message is about to be offered")
        if end == "cancelled":
            cancel(hub, alice.token, 9)
        else:
            wait.drop()
            # The server has seen the end of the connection before the answer to a request that came after it.
            alice.call("whoami")
    if end == "cancelled":
        page = wait.result()
        assert (page["messages"], page["has_more"], page["after_sequence"]) == ([], True, 0)
    eventually(lambda: not alice.waiters())
    (pending,) = alice.peek()["messages"]
    assert pending["redelivered"] is True
    status = bob.call("message_status", message_id=pending["message_id"])["deliveries"][0]
    assert (status["state"], status["offered_at"]) == ("stored", None)
    (message,) = alice.wait()["messages"]
    assert (message["body"], message["redelivered"]) == ("offered to nobody", True)


@pytest.mark.fault("M3")
def test_whichever_comes_first_the_message_or_the_cancellation_it_arrives_once(hub, agent):
    alice, bob = agent("alice"), agent("bob")
    for number in range(20):
        wait = OpenCall(hub, alice.token, "wait_for_messages", request_id=number)
        eventually(alice.waiters)
        sent = in_background(partial(bob.send, "alice", str(number)))
        cancel(hub, alice.token, number)
        sent.result(5)
        bodies = [m["body"] for m in wait.result()["messages"]] or alice.bodies()
        assert bodies == [str(number)]
    assert alice.bodies() == []


# --- Time -----------------------------------------------------------------------------------------------------------


@pytest.mark.fault("M5")
def test_a_wait_of_no_time_answers_at_once(agent, door):
    alice = agent("alice")
    page = alice.wait(timeout_s=0)
    assert (page["messages"], page["advice"]["action"]) == ([], "wait")
    assert doorbell.waiting == 0


@pytest.mark.fault("M5")
@pytest.mark.parametrize("timeout_s", [50, 50.0, 49.999, 0.0, None])
def test_up_to_50_seconds_may_be_asked(agent, door, timeout_s):
    alice, bob = agent("alice"), agent("bob")
    bob.send("alice", "here")
    assert alice.bodies(timeout_s=timeout_s) == ["here"]


@pytest.mark.fault("M5")
@pytest.mark.parametrize("timeout_s", [51, 50.001, 1e9, -1])
def test_more_than_50_seconds_or_less_than_none_is_refused_with_the_limit(agent, door, timeout_s):
    refused = agent("alice").refusal("wait_for_messages", timeout_s=timeout_s)
    assert (refused["code"], refused["limit"]) == ("invalid_argument", 50)


@pytest.mark.fault("M5")
@pytest.mark.parametrize("timeout_s", ["50", True, [50], "soon", 10**400, -0.001])
def test_what_is_no_number_of_seconds_is_refused(agent, timeout_s):
    assert agent("alice").refusal("wait_for_messages", timeout_s=timeout_s)["code"] == "invalid_argument"


class Time(Bell):
    """A bell in whose world time passes only while somebody waits. Each wait is cut short to `step` seconds, as by a ring."""

    __slots__ = ("now", "step", "waits")

    def __init__(self, step: float = 100.0) -> None:
        super().__init__()
        self.now, self.step = 1000.0, step
        self.waits: list[float] = []

    def clock(self) -> float:
        return self.now

    async def wait(self, timeout_s: float) -> None:
        self.waits.append(min(timeout_s, self.step))
        self.now += self.waits[-1]


def waits_of(by: Any, timeout_s: float, bell: Time, others: int = 0) -> list[float]:
    """How long a wait on an empty inbox waits between its looks, when so many others wait in the process."""

    async def wait() -> None:
        with ExitStack() as waiting:
            for _ in range(others):
                waiting.enter_context(doorbell.listen("nobody", Bell()))
            try:
                looked = await wait_for_messages(by=by, bell=bell, timeout_s=timeout_s, clock=bell.clock)
            finally:
                await store.close_pool()
        assert looked.page["messages"] == []

    asyncio.run(wait())
    return bell.waits


@pytest.mark.fault("M5")
@pytest.mark.parametrize(
    ("timeout_s", "waits"), [(50, [25, 25]), (49, [25, 24]), (25, [25]), (26, [25, 1]), (3.5, [3.5]), (0, [])]
)
def test_a_wait_looks_every_25_seconds_and_for_the_last_time_at_its_deadline(agent, timeout_s, waits):
    assert waits_of(as_caller(agent("alice").profile), timeout_s, Time()) == waits


@pytest.mark.fault("M5")
def test_rings_without_a_message_do_not_move_the_deadline(agent):
    waits = waits_of(as_caller(agent("alice").profile), 50, Time(step=7))
    assert waits == [7] * 7 + [1]


@pytest.mark.fault("M5")
@pytest.mark.parametrize(
    ("timeout_s", "others", "earliest"), [(50, 500, 50), (50, 501, 48), (20, 501, 19.2), (19, 501, 19)]
)
def test_only_many_long_waits_are_spread_and_only_to_before_what_was_asked(agent, timeout_s, others, earliest):
    caller = as_caller(agent("alice").profile)
    ends = [sum(waits_of(caller, timeout_s, Time(), others)) for _ in range(5)]
    assert all(earliest <= end <= timeout_s for end in ends)
    assert (len(set(ends)) == 1) == (earliest == timeout_s)


@pytest.mark.fault("M5")
def test_a_real_wait_ends_by_itself(agent, door):
    alice = agent("alice")
    assert alice.waiting(timeout_s=0.3).result(5)["messages"] == []
