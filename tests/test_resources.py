"""What a wait and a send cost: no thread, no connection, no write while idle, and as many statements whatever has gathered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from messaging import delivery, history, presence, receipts, store
from messaging.access import Caller, as_caller
from messaging.channels import create_channel
from messaging.delivery import send_message
from messaging.doorbell import Bell, doorbell
from messaging.drafts import Draft
from messaging.models import Channel, Delivery, Membership, Profile, Stream
from messaging.profiles import claim_handle, list_peers
from tests.eras import LEGACY, OpenCall, ask, call
from tests.hub import Address, Hub, eventually, in_background, key, new_agent
from tests.interleaving import fill_inbox, offers_held, second_connection
from tests.processes import free_port, own_database, site, wait_until
from tests.test_rest import taken_away

WAITS = 500
POOL = 10


# --- Waits ----------------------------------------------------------------------------------------------------------


def threads_of(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def connections_of(database_url: str) -> dict[str, list[str]]:
    """The states of the connections to a database, by the name of the application."""
    server, _, name = database_url.rpartition("/")
    found: dict[str, list[str]] = {}
    with psycopg.connect(f"{server}/postgres") as admin:
        for application, state in admin.execute(
            "SELECT application_name, state FROM pg_stat_activity WHERE datname = %s AND backend_type = 'client backend'",
            [name],
        ):
            found.setdefault(application, []).append(state)
    return found


@pytest.mark.parametrize("server", ["uvicorn", "daphne"])
def test_500_waits_add_no_thread_and_hold_no_connection(tmp_path, server):
    with own_database(tmp_path) as url:
        parley, hub = site(tmp_path, public_url="http://127.0.0.1:8000", database_url=url), Address(free_port())
        parley.environment["DOOR_POOL_MAX"] = str(POOL)
        tokens = parley.agents(["alice", "bob", "carol", "dave", "eve"])

        def open_waits() -> int:
            number: int = hub.request("GET", "/readyz").json["open_waits"]
            return number

        def are_open(number: int) -> bool:
            return open_waits() == number

        with parley.served(port=hub.port, server=server) as process, ExitStack() as ends:

            def wait(number: int) -> None:
                """Opens so many waits more, a few at a time, and returns when all are open."""
                for _ in range(0, number, 50):
                    before = open_waits()
                    for n in range(50):
                        call_ = OpenCall(hub, tokens[n % 5], "wait_for_messages", {"timeout_s": 50})
                        ends.callback(call_.drop)
                    wait_until(partial(are_open, before + 50), "50 more are open")

            wait(50)  # What a process needs at all, it has now.
            call(hub, LEGACY[0], tokens[0], "whoami")
            threads = threads_of(process.pid)
            others = connections_of(url) if store.on_postgres() else {}
            wait(WAITS)
            assert open_waits() == 50 + WAITS
            if store.on_postgres():
                assert threads_of(process.pid) == threads
                found = connections_of(url)
                doors = found.pop("parley")
                assert 1 <= len(doors) <= POOL
                assert set(doors) == {"idle"}
                assert {n: len(s) for n, s in found.items()} == {n: len(s) for n, s in others.items() if n != "parley"}
                assert len(found["parley-doorbell"]) == 1
            else:
                # Its driver blocks, so a look takes a thread of the bounded pool for its moment; a wait keeps none.
                assert threads_of(process.pid) - threads <= 8
            assert call(hub, LEGACY[0], tokens[1], "whoami")["handle"] == "bob"


@contextmanager
def nothing_can_be_written() -> Iterator[None]:
    """Inside the block every write waits for its end; reading goes on."""
    with second_connection() as other:
        if store.on_postgres():
            tables = ", ".join(f'"{name}"' for name in connection.introspection.table_names())
            other.execute("BEGIN")
            other.execute(f"LOCK TABLE {tables} IN SHARE MODE")
        else:
            other.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            other.execute("ROLLBACK")


@pytest.mark.parametrize("cursor", [{}, {"after_sequence": 1}])
def test_an_idle_poll_writes_nothing(agent, door, cursor):
    alice, bob = agent("alice"), agent("bob")
    bob.send("alice", "read and done")
    alice.call("acknowledge", message_ids=[alice.wait()["messages"][0]["message_id"]])
    alice.wait(after_sequence=1)
    with nothing_can_be_written():
        for timeout_s in (0, 0.1):
            polled = in_background(partial(alice.wait, timeout_s=timeout_s, **cursor))
            assert polled.result(5)["messages"] == []
        blocked = in_background(lambda: bob.send("alice", "this one is written"))
        assert alice.wait(timeout_s=0, **cursor)["messages"] == []
        assert not blocked.done()
    blocked.result(5)
    assert alice.bodies() == ["this one is written"]


def statements_of(work: Callable[[], Any]) -> list[str]:
    """What work says to the database on this thread's connection."""
    if store.on_postgres():
        with CaptureQueriesContext(connection) as asked:
            work()
        return [query["sql"] for query in asked.captured_queries]
    connection.ensure_connection()
    said: list[str] = []
    # What triggers and the search index do inside a statement is told as a comment.
    connection.connection.set_trace_callback(lambda sql: None if sql.startswith("--") else said.append(sql))
    try:
        work()
    finally:
        connection.connection.set_trace_callback(None)
    return said


def test_presence_and_counts_of_many_polls_are_written_in_one_statement_each(agent, door):
    agents = [agent(f"agent-{n}") for n in range(12)]
    for _ in range(3):
        for one in agents:
            one.wait()
    # Or fewer: the hub writes them by itself every few seconds.
    written = [s for write in presence.flushers for s in statements_of(write) if "UPDATE" in s or "INSERT" in s]
    assert len(written) <= 2
    eventually(lambda: {a.call("whoami")["connection"]["empty_polls"] for a in agents} == {3}, "all are counted")
    assert {p["presence"]["state"] for p in agents[0].call("list_peers")["peers"]} == {"active"}


# --- Statements -----------------------------------------------------------------------------------------------------


def counted(steps: store.Steps[Any], seen: list[str]) -> store.Steps[Any]:
    """The same steps; the statements that they yield are noted."""
    rows: Any = None
    while True:
        try:
            statement = steps.send(rows)
        except StopIteration as end:
            return end.value
        seen.append(statement.sql)
        rows = yield statement


def asked_by(steps: store.Steps[Any]) -> int:
    """How many statements steps take, but for the beginning and the end of transactions."""
    seen: list[str] = []
    store.run(counted(steps, seen))
    return len([sql for sql in seen if sql not in {"BEGIN", "COMMIT"}])


class Crowd:
    """bob, with few around him and with many: whom he writes to and where, and who reads."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        self.bob, self.alice, self.dora, carol = (self.claimed(h) for h in ("bob", "alice", "dora", "carol"))
        for name in ("lab", "hall"):
            create_channel(by=as_caller(self.bob), name=name)
        fill_inbox(self.dora, carol, 2_000)
        hall = Channel.objects.get(name="hall")
        many = [self.claimed(f"member-{n}") for n in range(150)]
        Membership.objects.bulk_create(Membership(channel=hall, profile=member) for member in many)
        for handle in ("alice", "dora"):  # So that the conversations have their rows.
            self.send(Draft(body="first", to_handle=handle))
        for n in range(60):
            self.send(Draft(body=f"word {n}", channel="hall"))
        self.send(Draft(body="word", channel="lab"))

    def claimed(self, handle: str) -> Profile:
        return claim_handle(owner=self.owner, handle=handle)[0]

    def send(self, draft: Draft) -> Any:
        return send_message(by=as_caller(self.bob), draft=draft, key=key())


@pytest.fixture
def crowd(transactional_db: None, django_user_model: Any) -> Crowd:
    return Crowd(django_user_model.objects.create(username="owner"))


SENDS = {
    "direct": (7, Draft(body="hello", to_handle="alice"), Draft(body="hello", to_handle="dora")),
    "channel": (6, Draft(body="hello", channel="lab"), Draft(body="hello", channel="hall")),
    "to": (7, Draft(body="hello", channel="lab", to=("alice",)), Draft(body="hello", channel="hall", to=("dora",))),
    "mention": (7, Draft(body="@alice", channel="lab"), Draft(body="@dora @member-1 @member-2 @bob", channel="hall")),
    "to many": (
        7,
        Draft(body="hello", channel="lab", to=("alice", "dora")),
        Draft(body="hello", channel="hall", to=tuple(f"member-{n}" for n in range(20))),
    ),
}


@pytest.mark.parametrize("kind", SENDS)
def test_a_send_takes_as_many_statements_into_a_full_inbox_and_a_large_channel(crowd, kind):
    most, few, many = SENDS[kind]

    def asked(draft: Draft) -> int:
        steps = delivery.send(by=as_caller(crowd.bob), draft=draft, key=key(), now=timezone.now())
        return asked_by(store.atomic(steps))

    assert asked(few) == asked(many) <= most


def test_a_replay_takes_three_statements(crowd):
    used = key()
    for most in (7, 3):
        draft = Draft(body="once", to_handle="alice")
        steps = delivery.send(by=as_caller(crowd.bob), draft=draft, key=used, now=timezone.now())
        assert asked_by(store.atomic(steps)) <= most


@pytest.mark.parametrize(
    ("after", "limit", "most"),
    [(None, 1, 3), (None, 50, 3), (0, 1, 4), (0, 50, 4)],
    ids=["one", "page", "c-one", "c-page"],
)
def test_a_page_takes_as_many_statements_however_full_the_inbox_is(crowd, after, limit, most):
    def asked(of: Profile) -> int:
        looks = delivery.look(by=as_caller(of), after=after, cursor_given=after is not None, limit=limit, bell=Bell())
        return asked_by(looks)

    assert asked(crowd.alice) == asked(crowd.dora) <= most


@pytest.mark.parametrize("after", [None, "tail"])
def test_a_look_that_finds_nothing_is_one_statement_and_no_transaction(crowd, after):
    caller = as_caller(crowd.dora)
    tail = Stream.objects.get(pk=crowd.dora.inbox_id).tail
    Delivery.objects.update(acknowledged_at=timezone.now(), offered_at=timezone.now())
    seen: list[str] = []
    looked = delivery.look(by=caller, after=tail if after else None, cursor_given=bool(after), limit=20, bell=Bell())
    assert store.run(counted(looked, seen)).page["messages"] == []
    (only,) = seen
    assert only.lstrip().startswith("SELECT")


READS: dict[str, tuple[Callable[[Caller], Any], str, str]] = {
    "peek": (lambda by: receipts.inbox_peek(by=by, limit=50), "alice", "dora"),
    "lab or hall": (lambda by: history.read_channel(by=by, channel=by.handle, limit=50), "lab", "hall"),
    "search": (lambda by: history.search_messages(by=by, query=by.handle, limit=50), "first", "word"),
    "peers": (lambda by: list_peers(by=by, query=by.handle, limit=100), "alice", "member"),
}


@pytest.mark.parametrize("what", READS)
def test_a_list_takes_as_many_statements_whatever_is_on_it(crowd, what):
    """What is asked for stands in the caller's handle here, so that one line does for all lists."""
    read, few, many = READS[what]
    people = {"alice": crowd.alice, "dora": crowd.dora}

    def asked(word: str) -> int:
        by = as_caller(people.get(word, crowd.bob)) if what == "peek" else replace(as_caller(crowd.bob), handle=word)
        return len([s for s in statements_of(lambda: read(by)) if "SELECT" in s])

    assert asked(few) == asked(many) <= 4


def test_a_send_takes_as_many_statements_however_many_wait(hub, agent):
    alice, bob = agent("alice"), agent("bob")
    caller = as_caller(bob.profile)

    def asked() -> int:
        return len(statements_of(lambda: send_message(by=caller, draft=Draft(body="x", to_handle="alice"), key=key())))

    asked()
    nobody_waits = asked()
    waits = [OpenCall(hub, agent("carol").token, "wait_for_messages", request_id=n) for n in range(100)]
    eventually(lambda: doorbell.waiting == 100)
    alice.wait(limit=50)
    waiting = alice.waiting()
    assert asked() == nobody_waits
    assert len(waiting.result(5)["messages"]) == 1
    for wait in waits:
        wait.drop()


# --- The pool and the database --------------------------------------------------------------------------------------


@pytest.fixture
def small_hub(hub: Hub, settings: Any) -> Iterator[Hub]:
    """Another hub on the same database, with two connections for its doors, which wait long for a lock."""
    settings.DOOR_POOL_MAX = 2
    settings.LOCK_TIMEOUT_MS = 20_000
    small = Hub().start()
    yield small
    small.end_waits()
    small.stop()


@pytest.mark.postgresql
@pytest.mark.parametrize("through", ["mcp", "http"])
def test_when_all_connections_are_in_use_a_call_is_told_busy_and_the_others_are_served(small_hub, agent, through):
    carol = agent("carol")
    alice, bob, late = (new_agent(small_hub, through, handle=handle) for handle in ("alice", "bob", "late"))
    for handle in ("alice", "bob"):
        carol.send(handle, f"for {handle}")
    with offers_held(alice.profile.inbox_id), offers_held(bob.profile.inbox_id):
        held = [in_background(one.wait) for one in (alice, bob)]
        eventually(lambda: waiting_for_locks() == 2, "both connections are in use")
        refused = late.refusal("wait_for_messages", timeout_s=0)
        assert (refused["code"], refused["retry_after_s"]) == ("busy", 1)
        assert (late.answers[-1].status, late.answers[-1].headers["retry-after"]) == (503, "1")
    assert [[m["body"] for m in future.result(5)["messages"]] for future in held] == [["for alice"], ["for bob"]]
    assert late.wait()["messages"] == []


def waiting_for_locks() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        number: int = cursor.fetchone()[0]
        return number


@pytest.mark.postgresql
def test_while_the_database_is_away_tools_are_listed_waits_are_told_so_and_all_goes_on_by_itself(tmp_path):
    with own_database(tmp_path) as url:
        parley, hub = site(tmp_path, public_url="http://127.0.0.1:8000", database_url=url), Address(free_port())
        alice, bob = parley.agents(["alice", "bob"])

        def wait(timeout_s: float) -> OpenCall:
            # Until it is known that there is no connection to be had, some seconds go by.
            return OpenCall(hub, alice, "wait_for_messages", {"timeout_s": timeout_s}, patience_s=20)

        with parley.served(port=hub.port):
            call(hub, LEGACY[0], alice, "whoami")
            long, short = wait(50), wait(8)
            wait_until(lambda: hub.request("GET", "/readyz").json["open_waits"] == 2, "both are waiting")
            with taken_away(tmp_path, url):
                assert ask(hub, LEGACY[0], "tools/list").status == 200
                for answer in (short.answer(), wait(0).answer(), ask(hub, LEGACY[0], "tools/list", token=bob)):
                    error = answer.json["error"]["data"]
                    assert (answer.status, error["code"], error["retry_after_s"]) == (503, "database_unavailable", 3)
                    assert answer.headers["retry-after"] == "3"
            message = {"to": "alice", "body": "welcome back", "idempotency_key": key()}
            params = {"name": "send_agent_message", "arguments": message}
            wait_until(lambda: "result" in ask(hub, LEGACY[0], "tools/call", params, token=bob).json, "it is back", 15)
            assert [m["body"] for m in long.result()["messages"]] == ["welcome back"]
