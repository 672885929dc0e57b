"""Sending: once for each intention, whole or not at all, whatever becomes of the client, the notifier or a retry."""

from __future__ import annotations

import json
import shutil
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import psycopg
import pytest
from django.contrib.auth import get_user_model
from django.db import connection, transaction
from django.utils import timezone

from messaging import delivery, profiles, store
from messaging.access import as_caller
from messaging.doorbell import CHANNEL, socket_folder
from messaging.drafts import Draft
from messaging.models import Channel, Delivery, Message, Profile, Question, SendKey, Stream
from tests.hub import PATIENCE_S, Agent, McpAgent, Refused, eventually, http_twin, in_background, key
from tests.interleaving import in_own_connection, is_waiting_for_a_lock, second_connection

AT_ONCE = 20


def person(name: str) -> Profile:
    account, _ = get_user_model().objects.get_or_create(username=name)
    return profiles.ensure_person(account)


def everything_stored() -> dict[str, list[Any]]:
    """All that a send writes."""
    kinds = (Message, Delivery, SendKey, Channel, Stream, Question)
    return {kind.__name__: list(kind.objects.order_by("pk").values_list()) for kind in kinds}


def on_the_wire(agent: Agent, tool: str, **arguments: Any) -> tuple[bytes, bytes]:
    """The bytes of a call through the agent's door: head and body, the body in plain UTF-8."""
    method, path = "POST", "/mcp"
    content: Any
    if isinstance(agent, McpAgent):
        params = {"name": tool, "arguments": arguments}
        content = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    else:
        method, path, _, content = http_twin(tool, arguments)
        path = f"/api/v1/{path}"
    body = json.dumps(content, ensure_ascii=False).encode()
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{agent.hub.port}\r\nAuthorization: Bearer {agent.token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode(), body


@contextmanager
def begun(agent: Agent, tool: str, *, reset: bool = False, **arguments: Any) -> Iterator[None]:
    """A call is written to the hub; leaving the block hangs up without having read a byte of the answer."""
    with socket.create_connection(("127.0.0.1", agent.hub.port), timeout=PATIENCE_S) as client:
        if reset:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        for part in on_the_wire(agent, tool, **arguments):
            client.sendall(part)
        yield


@pytest.fixture
def sends(agent, door) -> dict[str, tuple[str, dict[str, Any]]]:
    """The three calls that store a message, with their arguments but for the key."""
    agent("bob", owner="ben").call("create_channel", name="ops")
    person("ann")
    return {
        "direct": ("send_agent_message", {"to": "bob", "body": "once"}),
        "channel": ("send_channel_message", {"channel": "ops", "to": ["bob"], "body": "once"}),
        "question": ("ask_person", {"to": "ann", "question": "once", "options": ["yes", "no"]}),
    }


each_send = pytest.mark.parametrize("kind", ["direct", "channel", "question"])


# --- S1: the client dies before it reads the answer -----------------------------------------------------------------


@each_send
@pytest.mark.fault("S1")
@pytest.mark.mutant("messaging/delivery.py", "    if not taken:", "    if not taken and not key:")
@pytest.mark.mutant("messaging/delivery.py", '"replayed": True})', '"replayed": False})')
def test_a_retry_after_the_socket_was_cut_gets_the_first_message_marked_as_a_replay(agent, sends, kind):
    alice = agent("alice")
    tool, arguments = sends[kind]
    same = key()
    with begun(alice, tool, **arguments, idempotency_key=same):
        first = eventually(lambda: Message.objects.filter(body="once").first(), "the first try is committed")
    receipt = alice.call(tool, **arguments, idempotency_key=same)
    assert (receipt["message_id"], receipt["replayed"]) == (str(first.pk), True)
    assert Message.objects.count() == 1
    assert Delivery.objects.count() == 1


@pytest.mark.fault("S1")
def test_a_retry_is_the_first_receipt_even_when_the_send_would_be_refused_by_now(agent, sends, settings):
    alice = agent("alice")
    tool, arguments = sends["channel"]
    same = key()
    first = alice.call(tool, **arguments, idempotency_key=same)
    again = {**first, "replayed": True}
    Channel.objects.filter(name="ops").update(archived_at=timezone.now())
    assert alice.call(tool, **arguments, idempotency_key=same) == again
    Channel.objects.filter(name="ops").update(kind="private")
    assert alice.call(tool, **arguments, idempotency_key=same) == again
    profiles.release_handle(profile=Profile.objects.get(handle="bob"), by=None)
    assert alice.call(tool, **arguments, idempotency_key=same) == again
    settings.RATE_LIMIT_PER_MINUTE = 1
    alice.call("whoami")
    assert alice.refusal(tool, **arguments, idempotency_key=key())["code"] == "rate_limited"
    assert alice.call(tool, **arguments, idempotency_key=same) == again


@pytest.mark.fault("S1")
def test_a_key_is_its_profiles_so_another_sender_and_another_connection_do_not_mix(agent, door):
    alice, again_alice, carol = agent("alice"), agent("alice"), agent("carol")
    agent("bob")
    same = key()
    first = alice.send("bob", "hi", idempotency_key=same)
    assert again_alice.send("bob", "hi", idempotency_key=same) == {**first, "replayed": True}
    other = carol.send("bob", "hi", idempotency_key=same)
    assert (other["replayed"], other["message_id"] == first["message_id"]) == (False, False)


@pytest.mark.fault("S1")
def test_a_retry_that_writes_the_address_differently_is_the_same_send(agent, door):
    alice, _ = agent("alice"), agent("bob")
    same = key()
    first = alice.send("bob", "hi", idempotency_key=same)
    for written in ("@bob", "BOB", "@Bob"):
        assert alice.send(written, "hi", idempotency_key=same) == {**first, "replayed": True}


# --- S2: the same key twice at once ---------------------------------------------------------------------------------


@each_send
@pytest.mark.fault("S2")
@pytest.mark.mutant(
    "messaging/statements.py",
    '" ON CONFLICT (profile_id, key) DO NOTHING RETURNING message_id",',
    '" ON CONFLICT (profile_id, key) DO UPDATE SET created_at = excluded.created_at RETURNING message_id",',
    on="postgresql",
)
def test_twenty_sends_of_one_key_at_once_are_one_message_and_twenty_like_answers(agent, sends, kind):
    clients = [agent("alice") for _ in range(4)]
    tool, arguments = sends[kind]
    same, start = key(), threading.Barrier(AT_ONCE)

    def send(client: Agent) -> Any:
        start.wait(PATIENCE_S)
        return client.call(tool, **arguments, idempotency_key=same)

    answers = [in_background(partial(send, clients[n % 4])) for n in range(AT_ONCE)]
    receipts = [answer.result(4 * PATIENCE_S) for answer in answers]
    assert sorted(r["replayed"] for r in receipts) == [False] + [True] * (AT_ONCE - 1)
    assert [{**r, "replayed": False} for r in receipts] == [{**receipts[0], "replayed": False}] * AT_ONCE
    assert Message.objects.count() == SendKey.objects.count() == Delivery.objects.count() == 1


@contextmanager
def open_send(by: Agent, draft: Draft, idempotency_key: str) -> Iterator[Callable[[str], Any]]:
    """A send of the same profile whose transaction stays open until the block calls `end("commit")` or `end("roll back")`."""
    reached, told = threading.Event(), threading.Event()
    how: list[str] = []
    caller = as_caller(by.profile)

    def hold() -> Any:
        with transaction.atomic():
            steps = delivery.send(by=caller, draft=draft, key=idempotency_key, now=timezone.now())
            receipt = store.run(steps).receipt
            reached.set()
            told.wait(PATIENCE_S)
            if how != ["commit"]:
                transaction.set_rollback(True)
            return receipt

    holder = in_own_connection(hold)

    def end(with_: str) -> Any:
        how.append(with_)
        told.set()
        return holder.result(PATIENCE_S)

    try:
        eventually(lambda: reached.is_set() or holder.done(), "the first send has stored its rows")
        yield end
    finally:
        told.set()


def a_lock_is_waited_for() -> bool:
    """Whether a send waits for what another transaction holds. SQLite does not tell; there this only promises nothing."""
    return connection.vendor == "sqlite" or is_waiting_for_a_lock()


@pytest.mark.fault("S2")
def test_a_send_whose_key_is_in_flight_waits_and_gets_that_receipt_once_it_is_committed(agent, door):
    alice, bob = agent("alice"), agent("bob")
    same = key()
    with open_send(alice, Draft(body="once", to_handle="bob"), same) as end:
        second = in_background(lambda: alice.send("bob", "once", idempotency_key=same))
        eventually(a_lock_is_waited_for, "the second send waits for the first")
        assert bob.peek()["messages"] == []
        assert not second.done()
        first = end("commit")
    assert second.result(PATIENCE_S) == {**first, "replayed": True}
    assert bob.bodies() == ["once"]


@pytest.mark.fault("S2")
def test_a_send_whose_key_was_in_flight_is_the_first_one_if_the_other_rolls_back(agent, door):
    alice, bob = agent("alice"), agent("bob")
    same = key()
    with open_send(alice, Draft(body="once", to_handle="bob"), same) as end:
        second = in_background(lambda: alice.send("bob", "once", idempotency_key=same))
        eventually(a_lock_is_waited_for, "the second send waits for the first")
        assert not second.done()
        vanished = end("roll back")
    receipt = second.result(PATIENCE_S)
    assert receipt["replayed"] is False
    assert receipt["message_id"] != vanished["message_id"]
    assert [m["message_id"] for m in bob.wait()["messages"]] == [receipt["message_id"]]
    assert Message.objects.count() == SendKey.objects.count() == 1


@pytest.mark.fault("S3")
def test_other_content_under_a_key_in_flight_is_refused_once_that_is_committed(agent, door):
    alice, bob = agent("alice"), agent("bob")
    same = key()
    with open_send(alice, Draft(body="once", to_handle="bob"), same) as end:
        second = in_background(lambda: alice.refusal("send_agent_message", to="bob", body="two", idempotency_key=same))
        eventually(a_lock_is_waited_for, "the second send waits for the first")
        end("commit")
    assert second.result(PATIENCE_S)["code"] == "idempotency_key_reused"
    assert bob.bodies() == ["once"]


# --- S3: the same key for something else ----------------------------------------------------------------------------


@pytest.mark.fault("S3")
@pytest.mark.mutant("messaging/delivery.py", "bytes(first[0][0]) != draft.content_hash()", "not first[0][0]")
def test_a_key_used_for_other_content_is_refused_by_name_and_nothing_is_stored(agent, sends):
    alice, carol = agent("alice"), agent("carol")
    carol.call("create_channel", name="dev")
    tool, arguments = sends["channel"]
    same = key()
    root = alice.call(tool, **arguments, idempotency_key=same)["message_id"]
    before = everything_stored()
    changes: tuple[dict[str, Any], ...] = (
        {"body": "once "},
        {"body": "Once"},
        {"to": ["bob", "carol"]},
        {"to": []},
        {"channel": "dev"},
        {"expires_in_s": 60},
        {"thread_root_id": root},
    )
    for change in changes:
        refusal = alice.refusal(tool, **{**arguments, **change}, idempotency_key=same)
        assert (refusal["code"], refusal["retry_after_s"]) == ("idempotency_key_reused", None), change
        assert everything_stored() == before, change


@pytest.mark.fault("S3")
def test_a_key_used_by_one_tool_is_refused_by_the_others(agent, sends):
    alice = agent("alice")
    same = key()
    alice.call(sends["direct"][0], **sends["direct"][1], idempotency_key=same)
    before = everything_stored()
    for kind in ("channel", "question"):
        tool, arguments = sends[kind]
        assert alice.refusal(tool, **arguments, idempotency_key=same)["code"] == "idempotency_key_reused"
    assert everything_stored() == before


@pytest.mark.fault("S3")
def test_a_refused_send_does_not_use_its_key_up(agent, door):
    alice = agent("alice")
    same = key()
    assert alice.refusal("send_agent_message", to="bob", body="hi", idempotency_key=same)["code"] == "unknown_handle"
    bob = agent("bob")
    assert alice.send("bob", "hi, now that you are here", idempotency_key=same)["replayed"] is False
    assert bob.bodies() == ["hi, now that you are here"]


# --- S4: the notifier is down; nulls --------------------------------------------------------------------------------


def answered(agent: Agent, to: Agent) -> None:
    """A send is answered in time, is stored, and is in the recipient's next page."""
    body = key()
    receipt = in_background(lambda: agent.send(to.handle, body)).result(PATIENCE_S)
    assert [d["state"] for d in receipt["delivered"]] == ["stored"]
    assert body in to.bodies()


@contextmanager
def sockets_that_are(broken: str) -> Iterator[None]:
    """The folder in which the processes of an SQLite hub find each other is of no use."""
    folder = socket_folder()
    folder.mkdir(exist_ok=True)  # If nobody has waited yet.
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf:
        peer = folder / "1-deaf"
        aside = Path(f"{folder}.aside")
        try:
            if broken == "gone":
                folder.rename(aside)
            elif broken == "a file":
                folder.rename(aside)
                folder.write_text("")
            elif broken == "a folder in it":
                peer.mkdir()
            else:
                deaf.bind(str(peer))
                if broken == "a dead peer":
                    deaf.close()
            yield
        finally:
            if folder.is_file():
                folder.unlink()
            if aside.exists():
                shutil.rmtree(folder, ignore_errors=True)  # The hub may have opened its socket anew meanwhile.
                aside.rename(folder)
            if peer.is_dir():
                peer.rmdir()
            peer.unlink(missing_ok=True)


@pytest.mark.sqlite
@pytest.mark.fault("S4")
@pytest.mark.parametrize("broken", ["gone", "a file", "a folder in it", "a dead peer", "a deaf peer"])
def test_a_send_is_answered_although_its_ring_cannot_reach_other_processes(agent, door, broken):
    alice, bob = agent("alice"), agent("bob")
    with sockets_that_are(broken):
        for _ in range(15):  # More than a socket that nobody reads takes.
            answered(alice, bob)
        waiting = bob.waiting()
        alice.send("bob", "and in this process the bell rings")
        assert [m["body"] for m in waiting.result(PATIENCE_S)["messages"]] == ["and in this process the bell rings"]


BREAK_NOTIFY = {
    "fails": "RAISE EXCEPTION 'down'",
    "hangs": "PERFORM pg_sleep(60)",
}


@contextmanager
def notify_that(how: str, settings: Any, agents: list[Agent]) -> Iterator[None]:
    """NOTIFY fails or hangs in this database, and who listened has lost its connection and gets no other."""
    with psycopg.connect(**{**store.connection_arguments(), "application_name": "test"}, autocommit=True) as db:

        def close(*names: str) -> None:
            db.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND application_name = ANY(%s)",
                [list(names)],
            )

        name = db.execute("SELECT quote_ident(current_database())").fetchone()[0]  # type: ignore[index]
        db.execute("CREATE SCHEMA broken")
        db.execute(
            "CREATE FUNCTION broken.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS "
            f"$$ BEGIN {BREAK_NOTIFY[how]}; END $$"
        )
        try:
            db.execute(f"ALTER DATABASE {name} SET search_path = broken, pg_catalog, public")
            settings.DOORBELL_DATABASE_URL = "postgres://127.0.0.1:1/nowhere"
            close("parley", "parley-doorbell")
            yield
        finally:
            settings.DOORBELL_DATABASE_URL = ""
            db.execute(f"ALTER DATABASE {name} RESET search_path")
            db.execute("DROP SCHEMA broken CASCADE")
            close("parley")
            # What comes next finds a hub that notifies again.
            db.execute(f"LISTEN {CHANNEL}")
            alice, bob = agents
            eventually(lambda: alice.send(bob.handle) and list(db.notifies(timeout=0.1, stop_after=1)), "notified")


@pytest.mark.postgresql
@pytest.mark.fault("S4")
@pytest.mark.parametrize("how", BREAK_NOTIFY)
def test_a_send_is_answered_although_nothing_can_be_notified(agent, door, settings, how):
    alice, bob = agent("alice"), agent("bob")
    with notify_that(how, settings, [alice, bob]):
        for _ in range(15):  # More than the pool has connections that could hang.
            answered(alice, bob)
        waiting = bob.waiting()
        alice.send("bob", "and in this process the bell rings")
        assert [m["body"] for m in waiting.result(PATIENCE_S)["messages"]] == ["and in this process the bell rings"]


@pytest.mark.fault("S4")
def test_null_for_an_optional_field_is_as_good_as_leaving_it_out(agent, door):
    alice, bob = agent("alice", owner="ann"), agent("bob")
    person("ann")
    bob.call("create_channel", name="ops", private=None, topic=None)
    nothing = {"thread_root_id": None, "expires_in_s": None}
    alice.send("bob", "one", **nothing)
    alice.post("ops", "two @bob", to=None, **nothing)
    alice.call("preview_send", body="three", channel="ops", to=None, **nothing)
    question = {"question": "four?", "options": ["yes", "no"], "expires_in_s": None}
    alice.call("ask_person", to="ann", channel=None, **question, idempotency_key=key())
    alice.call("claim_connected_profile", handle="alice", display_name=None)
    assert bob.bodies() == ["one", "two @bob"]


@pytest.mark.fault("S4")
def test_null_for_a_required_field_is_refused_by_its_name(agent, door):
    alice, _ = agent("alice"), agent("bob")
    before = everything_stored()
    refusal = alice.refusal("send_agent_message", to="bob", body=None, idempotency_key=key())
    assert (refusal["code"], [f["field"] for f in refusal["fields"]]) == ("invalid_argument", ["body"])
    assert everything_stored() == before


@contextmanager
def nobody_can_write(inbox_id: int) -> Iterator[None]:
    """Another transaction holds what a send into this inbox has to lock."""
    with second_connection() as other:
        if store.on_postgres():
            other.execute("BEGIN")
            other.execute("SELECT 1 FROM stream WHERE id = %s FOR UPDATE", [inbox_id])
        else:
            other.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            other.execute("ROLLBACK")


@pytest.mark.postgresql
def test_a_row_that_somebody_holds_fails_the_sends_that_need_it_and_no_others(agent):
    """Sends of one moment share a transaction: what holds one of them up must not be held against the others."""
    senders = [agent(f"sender-{number}") for number in range(4)]
    bob, carol = agent("bob"), agent("carol")
    with nobody_can_write(bob.profile.inbox_id):
        first = in_background(
            partial(senders[0].refusal, "send_agent_message", to="bob", body="1", idempotency_key=key())
        )
        eventually(is_waiting_for_a_lock, "a send to bob waits; those that come now will share the next transaction")
        to_bob = [
            in_background(partial(s.refusal, "send_agent_message", to="bob", body="2", idempotency_key=key()))
            for s in senders
        ]
        to_carol = [in_background(partial(s.send, "carol", "hi")) for s in senders]
        receipts = [sent.result(4 * PATIENCE_S) for sent in to_carol]
        refusals = [refused.result(4 * PATIENCE_S) for refused in (first, *to_bob)]
    assert [r["delivered"][0]["handle"] for r in receipts] == ["carol"] * 4
    assert {(r["code"], r["retry_after_s"]) for r in refusals} == {("busy", 1)}
    assert carol.bodies() == ["hi"] * 4
    assert bob.bodies() == []


@pytest.mark.postgresql
def test_a_send_that_the_database_ends_to_resolve_a_deadlock_is_busy_and_can_be_repeated(agent, door):
    alice, bob = agent("alice"), agent("bob")
    # Which of the two transactions is ended is for PostgreSQL to choose; it has to be alice's once.
    for _ in range(10):
        same = key()
        outcome = deadlock(alice, bob, same)
        if outcome:
            break
    assert outcome == "busy"
    before = len(bob.peek(limit=50)["messages"])
    assert alice.send("bob", "hi", idempotency_key=same)["replayed"] is False
    assert len(bob.peek(limit=50)["messages"]) == before + 1


def deadlock(alice, bob, used: str) -> str | None:
    """The code with which alice's send is refused; None if the other transaction was ended, and hers went through."""
    with second_connection() as other:
        other.execute("BEGIN")
        other.execute("SELECT 1 FROM stream WHERE id = %s FOR UPDATE", [bob.profile.inbox_id])
        sent = in_background(partial(alice.send, "bob", "hi", idempotency_key=used))
        eventually(is_waiting_for_a_lock, "alice's send holds its key and waits for bob's inbox")
        taken = [alice.profile.pk, used, b"other", Message.objects.model().pk, timezone.now()]
        columns = "profile_id, key, content_hash, message_id, created_at"
        with suppress(psycopg.errors.DeadlockDetected):
            other.execute(f"INSERT INTO send_key ({columns}) VALUES (%s, %s, %s, %s, %s)", taken)
        other.execute("ROLLBACK")
    try:
        sent.result(PATIENCE_S)
    except Refused as refused:
        return refused.code
    return None


# --- S5: queued is success ------------------------------------------------------------------------------------------


@each_send
@pytest.mark.fault("S5")
def test_a_receipt_that_says_stored_is_a_success_and_fits_the_output_schema(agent, sends, kind):
    alice = agent("alice")
    tool, arguments = sends[kind]
    listed = {t["name"]: t for t in alice.hub.rpc("tools/list").json["result"]["tools"]}
    receipt = alice.call(tool, **arguments, idempotency_key=key())
    jsonschema.validate(receipt, listed[tool]["outputSchema"])
    assert [d["state"] for d in receipt["delivered"]] == ["stored"]
    assert alice.answers[-1].status in (200, 201)


@pytest.mark.fault("S5")
@pytest.mark.parametrize("tool", ["send_agent_message", "send_channel_message", "ask_person"])
def test_the_output_schema_of_a_send_names_stored_as_a_success(hub, tool):
    (schema,) = [t["outputSchema"] for t in hub.rpc("tools/list").json["result"]["tools"] if t["name"] == tool]
    assert "delivered" in schema["required"]
    delivered = schema["$defs"]["Delivered"]["properties"]["state"]
    assert "stored" in delivered["enum"]
    assert "success" in delivered["description"]


# --- S6: long bodies ------------------------------------------------------------------------------------------------

LIMIT = 20_000
UNITS = (
    "abcdefghij",
    "äöüßéèñçøå",
    "漢字仮名交じり文",
    "😀🧵👩‍💻🏴‍☠️",
    "e\u0301o\u0308\u0323\u0327",
    "a\r\nb\rc\n\n\t d  ",
    '\\"\\n\\u0041/</script>&amp;%00',
    "\x01\x1b[31m\x7f\x85\u2028\u202e\ufeff",
    "\U0010ffff\ufffe\U0001d11e",
    "</system-reminder><channel name='x'>]]>",
)


def whole_body(agent: Agent, message: dict[str, Any]) -> str:
    """The body of a message as a client reads it: what the page shows, and the rest where it was cut."""
    if message["body_cut"] is None:
        return message["body"]
    shown, total = message["body_cut"]["shown"], message["body_cut"]["total"]
    parts = [message["body"]]
    assert len(parts[0]) == shown < total
    while sum(map(len, parts)) < total:
        part = agent.call("read_message", message_id=message["message_id"], offset=sum(map(len, parts)))
        assert part["body"]
        parts.append(part["body"])
        assert part["has_more"] == (sum(map(len, parts)) < total)
    return "".join(parts)


@pytest.mark.fault("S6")
@pytest.mark.mutant("messaging/pages.py", 'cut["body"] = body[:shown]', 'cut["body"] = body[: shown - 1]')
def test_a_body_of_the_full_length_arrives_byte_for_byte(agent, door):
    alice, bob = agent("alice"), agent("bob")
    cursor = 0
    for unit in UNITS:
        body = (unit * LIMIT)[:LIMIT]
        escaped = alice.send("bob", body)
        head, content = on_the_wire(alice, "send_agent_message", to="bob", body=body, idempotency_key=key())
        method, path = head.decode().split(" ")[:2]
        plain = alice.hub.request(method, path, content, {"Authorization": f"Bearer {alice.token}"})
        assert plain.status in (200, 201)
        for _ in range(2):
            page = bob.wait(limit=1, after_sequence=cursor)
            assert whole_body(bob, page["messages"][0]).encode() == body.encode()
            cursor = page["after_sequence"]
        shown = alice.call("read_thread", thread_root_id=escaped["message_id"])["messages"][0]
        assert whole_body(alice, shown).encode() == body.encode()
    assert page["tail_sequence"] == cursor == 2 * len(UNITS)


@pytest.mark.fault("S6")
def test_a_body_above_the_limit_is_refused_with_the_limit_and_nothing_is_stored(agent, door):
    alice, _ = agent("alice"), agent("bob")
    first = alice.send("bob", "short")
    agent("carol").call("create_channel", name="ops")
    before = everything_stored()
    for long in ("a" * (LIMIT + 1), "漢" * (LIMIT + 1), "😀" * (LIMIT + 1)):
        calls: list[tuple[str, dict[str, Any]]] = [
            ("send_agent_message", {"to": "bob", "body": long, "idempotency_key": key()}),
            ("send_channel_message", {"channel": "ops", "body": long, "idempotency_key": key()}),
            ("preview_send", {"to": "bob", "body": long}),
            ("edit_message", {"message_id": first["message_id"], "body": long}),
        ]
        for tool, arguments in calls:
            refusal = alice.refusal(tool, **arguments)
            assert (refusal["code"], refusal["limit"]) == ("invalid_argument", LIMIT), tool
            assert "20000" in refusal["message"], tool
    assert everything_stored() == before


@pytest.mark.fault("S6")
def test_blanks_at_the_ends_of_a_body_are_kept(agent, door):
    alice, bob = agent("alice"), agent("bob")
    bodies = [" ", "\n", "  \r\n both ends \t ", "\ufeff"]
    for body in bodies:
        alice.send("bob", body)
    assert bob.bodies() == bodies


# --- S7: to oneself -------------------------------------------------------------------------------------------------

OWN_NAMES = ["alice", "@alice", "ALICE", "@Alice", " @alice "]


def at_once(work: Callable[[], Any]) -> Any:
    return in_background(work).result(PATIENCE_S)


@pytest.mark.fault("S7")
@pytest.mark.mutant("messaging/plans.py", "if handle == by.handle:", "if handle == by.handle and not by.handle:")
def test_a_message_to_oneself_is_refused_at_once_with_the_reason(agent, door):
    alice = agent("alice")
    before = everything_stored()
    question = {"question": "me?", "options": ["yes", "no"]}
    for written in OWN_NAMES:
        for tool, arguments in (
            ("send_agent_message", {"to": written, "body": "hi", "idempotency_key": key()}),
            ("preview_send", {"to": written, "body": "hi"}),
            ("ask_person", {"to": written, **question, "idempotency_key": key()}),
        ):
            refusal = at_once(partial(alice.refusal, tool, **arguments))
            assert refusal["code"] == "self_send", (tool, written)
            assert "yourself" in refusal["message"]
    assert everything_stored() == before


@pytest.mark.fault("S7")
def test_oneself_among_those_addressed_in_a_channel_is_skipped_and_the_others_get_it(agent, door):
    alice, bob = agent("alice"), agent("bob")
    alice.call("create_channel", name="ops")
    for written in OWN_NAMES:
        to = [written, "bob"]
        preview = at_once(partial(alice.call, "preview_send", channel="ops", body="@alice", to=to))
        receipt = at_once(partial(alice.post, "ops", "@alice", to=to))
        for told, delivered in ((preview, preview["would_deliver"]), (receipt, receipt["delivered"])):
            assert [d["handle"] for d in delivered] == ["bob"], written
            assert told["skipped"] == [{"handle": "alice", "reason": "self", "did_you_mean": []}], written
    assert bob.bodies() == ["@alice"] * len(OWN_NAMES)
    assert alice.peek()["messages"] == []


# --- S8: the client hangs up ----------------------------------------------------------------------------------------


@pytest.mark.fault("S8")
@pytest.mark.mutant("agents/rest/gate.py", "await for_ever.wait()", 'return {"type": "http.disconnect"}')
@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_a_message_is_delivered_although_its_client_hung_up_while_it_was_being_stored(agent, door, reset):
    alice, bob = agent("alice"), agent("bob")
    with nobody_can_write(bob.profile.inbox_id):
        with begun(alice, "send_agent_message", reset=reset, to="bob", body="still", idempotency_key=key()):
            eventually(a_lock_is_waited_for, "the send waits in the database")
        # Another call is answered after the hub has had the end of the first connection before it.
        assert bob.peek()["messages"] == []
    assert eventually(bob.bodies, "the message arrives") == ["still"]


@pytest.mark.fault("S8")
@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_a_client_that_hangs_up_right_after_writing_has_sent_its_message(agent, door, reset):
    alice, bob = agent("alice"), agent("bob")
    waiting = bob.waiting()
    bodies = [f"message {number}" for number in range(10)]
    for body in bodies:
        with begun(alice, "send_agent_message", reset=reset, to="bob", body=body, idempotency_key=key()):
            pass
    eventually(lambda: Message.objects.count() == len(bodies), "all of them are stored")
    assert len(waiting.result(PATIENCE_S)["messages"]) > 0
    assert sorted(m["body"] for m in bob.peek()["messages"]) == bodies
