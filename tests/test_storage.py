"""What the database keeps: every status there is, mail until it is read, and the truth about cursors after a restore."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any, get_args

import psycopg
import pytest
from django.apps import apps
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connection, models, transaction
from django.utils import timezone

from messaging import profiles, shapes, store
from messaging.access import as_caller
from messaging.delivery import send_message
from messaging.drafts import Draft
from messaging.models import Channel, Delivery, Message, Profile, Question, Stream
from messaging.profiles import ensure_person
from messaging.questions import answer_question
from tests.eras import LEGACY, ask, call
from tests.hub import Address, key
from tests.processes import free_port, own_database, site

# --- After a restore ------------------------------------------------------------------------------------------------


@contextmanager
def restorable(url: str) -> Iterator[Callable[[], None]]:
    """A copy of a database that nobody uses at the moment. Yields how to bring it back."""
    if url.startswith("sqlite"):
        path = Path(url.removeprefix("sqlite:///"))
        copy = path.with_name("copy.sqlite3")
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)

        def bring_back() -> None:
            for log in path.parent.glob(f"{path.name}-*"):
                log.unlink()  # The write-ahead log of what came later.
            shutil.copy(copy, path)

        yield bring_back
        return
    server, _, name = url.rpartition("/")
    with psycopg.connect(f"{server}/postgres", autocommit=True) as admin:

        def replace(name: str, by: str) -> None:
            admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            admin.execute(f"CREATE DATABASE {name} TEMPLATE {by}")

        replace(f"{name}_copy", by=name)
        try:
            yield lambda: replace(name, by=f"{name}_copy")
        finally:
            admin.execute(f"DROP DATABASE {name}_copy WITH (FORCE)")


@pytest.mark.fault("Q7")
def test_after_a_restore_a_cursor_beyond_the_tail_is_refused_with_the_tail_and_goes_on_from_there(tmp_path):
    with own_database(tmp_path) as url:
        parley, port = site(tmp_path, public_url="http://127.0.0.1:8000", database_url=url), free_port()
        alice, bob = parley.agents(["alice", "bob"])
        hub = Address(port)

        def send(body: str) -> None:
            call(hub, LEGACY[0], bob, "send_agent_message", to="alice", body=body, idempotency_key=key())

        with parley.served(port=port):
            send("before the backup")
            page = call(hub, LEGACY[0], alice, "wait_for_messages", timeout_s=0)
            assert page["after_sequence"] == 1
        with restorable(url) as restore:
            with parley.served(port=port):
                send("lost with the restore")
                send("lost as well")
                lost = call(hub, LEGACY[0], alice, "wait_for_messages", timeout_s=0, after_sequence=1)
                assert lost["after_sequence"] == 3
            restore()
        with parley.served(port=port):
            params = {"name": "wait_for_messages", "arguments": {"after_sequence": 3, "timeout_s": 50}}
            result = ask(hub, LEGACY[0], "tools/call", params, token=alice).json["result"]
            refused = result["structuredContent"]
            assert result["isError"]
            assert (refused["code"], refused["tail_sequence"]) == ("cursor_ahead", 1)
            send("after the restore")
            page = call(
                hub, LEGACY[0], alice, "wait_for_messages", timeout_s=5, after_sequence=refused["tail_sequence"]
            )
            assert [(m["sequence"], m["body"]) for m in page["messages"]] == [(2, "after the restore")]


@pytest.mark.fault("Q7")
@pytest.mark.parametrize("beyond", [1, 2**62])
def test_a_cursor_beyond_the_tail_is_refused_at_once_and_changes_nothing(agent, door, beyond):
    alice, bob = agent("alice"), agent("bob")
    bob.send("alice", "one")
    refused = alice.refusal("wait_for_messages", after_sequence=1 + beyond, timeout_s=50)
    assert (refused["code"], refused["tail_sequence"], refused["retry_after_s"]) == ("cursor_ahead", 1, None)
    assert "after_sequence=tail_sequence" in refused["message"]
    assert [(m["body"], m["redelivered"]) for m in alice.wait(after_sequence=0)["messages"]] == [("one", False)]


# --- Statuses -------------------------------------------------------------------------------------------------------


def choices() -> list[tuple[type[models.Model], str, str]]:
    """Each value that a model of ours says a field may have."""
    ours = [m for m in apps.get_models() if m.__module__.startswith(("messaging.", "agents."))]
    fields = [(model, field) for model in ours for field in model._meta.fields if field.choices]
    return [(model, field.name, value) for model, field in fields for value, _ in field.flatchoices]


@pytest.fixture
def a_row_of_each(transactional_db: None) -> dict[type[models.Model], models.Model]:
    """A row of each model that has a status."""
    owner = get_user_model().objects.create(username="owner")
    sender = profiles.claim_handle(owner=owner, handle="alice")[0]
    profiles.claim_handle(owner=owner, handle="bob")
    send_message(by=as_caller(sender), draft=Draft(body="hi", to_handle="bob"), key=key())
    public = Channel.objects.create(
        name="lab", kind="public", stream=Stream.objects.create(kind="channel"), created_by=sender
    )
    return {
        Stream: Stream.objects.get(pk=sender.inbox_id),
        Profile: sender,
        Channel: public,
        Message: Message.objects.get(),
        Delivery: Delivery.objects.get(),
    }


@pytest.mark.fault("Q14")
@pytest.mark.parametrize(("model", "field", "value"), choices(), ids=lambda v: getattr(v, "__name__", v))
def test_each_value_of_a_status_can_be_stored_and_no_other(a_row_of_each, model, field, value):
    row = a_row_of_each[model]
    if (model, value) == (Channel, "direct"):
        row = Channel.objects.get(kind="direct")
    model.objects.filter(pk=row.pk).update(**{field: value})
    assert getattr(model.objects.get(pk=row.pk), field) == value
    for wrong in ("no", "", value.upper()):
        with pytest.raises(IntegrityError), transaction.atomic():
            model.objects.filter(pk=row.pk).update(**{field: wrong})
    assert len(value) <= (model._meta.get_field(field).max_length or 0)


@pytest.mark.fault("Q14")
@pytest.mark.parametrize(
    ("told", "kept"),
    [
        (shapes.MessageKind, Message.Kind),
        (shapes.Route, Delivery.Route),
        (shapes.Kind, Profile.Kind),
    ],
)
def test_what_clients_are_told_there_is_is_what_can_be_stored(told, kept):
    assert set(get_args(told)) == set(kept.values)


@pytest.mark.fault("Q14")
def test_every_kind_and_route_and_state_that_there_is_comes_out_of_real_calls(agent, door):
    alice, bob = agent("alice"), agent("bob", owner="ben")
    owner = get_user_model().objects.get(username="owner")
    person = ensure_person(owner)
    alice.call("create_channel", name="lab")
    sent = alice.send("bob", "direct")
    alice.post("lab", "to", to=["bob"])
    alice.post("lab", "mention @bob")
    alice.call("edit_message", message_id=sent["message_id"], body="edited")
    gone = alice.send("bob", "retracted")
    alice.call("retract_message", message_id=gone["message_id"])
    question = alice.call("ask_person", to=person.handle, question="?", options=["a", "b"], idempotency_key=key())
    answer_question(by=as_caller(person), question_id=question["question_id"], choice=1)
    for kind in ("notice", "result"):
        send_message(by=as_caller(person), draft=Draft(body=kind, to_handle="bob", kind=kind), key=key())
    got = bob.wait(limit=50)["messages"] + alice.wait(limit=50)["messages"]
    asked = alice.call("read_channel", channel=f"@{person.handle}")["messages"]
    assert {m["kind"] for m in [*got, *asked]} == set(get_args(shapes.MessageKind))
    assert {m["route"] for m in got} == set(get_args(shapes.Route))
    answered_at, answer = Question.objects.values_list("answered_at", "choice").get()
    assert (answered_at is not None, answer) == (True, 1)

    stored = alice.send("bob", "stored")
    expiring = alice.send("bob", "expiring", expires_in_s=1)
    Message.objects.filter(pk=expiring["message_id"]).update(expires_at=timezone.now() - timedelta(seconds=1))
    acknowledged = next(m for m in got if m["body"] == "to")["message_id"]
    bob.call("acknowledge", message_ids=[acknowledged])
    mentioned = next(m for m in got if m["route"] == "mention")
    states = [alice.call("message_status", message_id=m)["deliveries"][0]["state"] for m in (
        stored["message_id"], mentioned["message_id"], acknowledged, expiring["message_id"]
    )]  # fmt: skip
    assert states == ["stored", "offered", "acknowledged", "expired"]
    bob.post("lab", "an answer", thread_root_id=mentioned["thread_root_id"])
    answered = alice.call("message_status", message_id=mentioned["message_id"])["deliveries"][0]["state"]
    assert {*states, answered} == set(get_args(shapes.State))


@pytest.mark.fault("Q14")
@pytest.mark.postgresql
def test_the_suite_has_met_a_real_postgresql(transactional_db):
    assert store.on_postgres()
    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version_num")
        assert int(cursor.fetchone()[0]) >= 150_000


# --- Unread mail ----------------------------------------------------------------------------------------------------


def prune(*options: str) -> str:
    printed = StringIO()
    call_command("prune", *options, stdout=printed)
    return printed.getvalue()


def sent_days_ago(sender: Any, days: float, body: str = "hello") -> str:
    message_id: str = sender.send("alice", body)["message_id"]
    Message.objects.filter(pk=message_id).update(created_at=timezone.now() - timedelta(days=days))
    return message_id


@pytest.mark.fault("Q16")
@pytest.mark.parametrize(
    ("days", "read", "kept"),
    [
        (29.9, "acknowledged", True),
        (30.1, "acknowledged", False),
        (30.1, "unread", True),
        (30.1, "offered", True),
        (364.9, "unread", True),
        (364.9, "offered", True),
        (365.1, "unread", False),
        (365.1, "offered", False),
    ],
)
def test_unread_mail_survives_the_soft_limit_up_to_the_hard_one(agent, door, days, read, kept):
    alice, bob = agent("alice"), agent("bob")
    message_id = sent_days_ago(bob, days)
    if read == "offered":
        assert alice.bodies() == ["hello"]
    if read == "acknowledged":
        alice.call("acknowledge", message_ids=[message_id])
    prune()
    if not kept:
        assert alice.peek()["messages"] == []
        refused = alice.refusal("wait_for_messages", after_sequence=0, timeout_s=0)
        assert (refused["code"], refused["oldest_sequence"]) == ("cursor_expired", 2)
    elif read == "acknowledged":
        assert alice.bodies(after_sequence=0) == []
    else:
        (message,) = alice.wait(after_sequence=0)["messages"]
        assert (message["message_id"], message["redelivered"]) == (message_id, read == "offered")
        assert message["age_s"] > days * 86_400 - 60


@pytest.mark.fault("Q16")
def test_what_lies_behind_unread_mail_stays_with_it_so_that_no_cursor_meets_a_hole(agent):
    alice, bob = agent("alice"), agent("bob")
    first, unread, read = (sent_days_ago(bob, days, f"{days} days") for days in (100, 90, 80))
    for message_id in (first, read):
        alice.call("acknowledge", message_ids=[message_id])
    prune()
    assert list(Delivery.objects.order_by("sequence").values_list("sequence", flat=True)) == [2, 3]
    page = alice.wait(after_sequence=1)
    assert ([m["message_id"] for m in page["messages"]], page["oldest_sequence"]) == ([unread], 2)


@pytest.mark.fault("Q16")
def test_pruning_again_or_an_empty_hub_removes_nothing(agent):
    assert "Removed 0 deliveries from 0 inboxes" in prune()
    alice, bob = agent("alice"), agent("bob")
    alice.call("acknowledge", message_ids=[sent_days_ago(bob, 40)])
    assert "Removed 1 deliveries from 1 inboxes" in prune()
    assert "Removed 0 deliveries from 0 inboxes" in prune()
    assert alice.bodies() == []
    bob.send("alice", "after it")
    assert [m["sequence"] for m in alice.wait()["messages"]] == [2]


@pytest.mark.fault("Q16")
def test_the_limits_are_the_operators_and_the_hard_one_is_never_below_the_soft_one(agent):
    alice, bob = agent("alice"), agent("bob")
    sent_days_ago(bob, 3)
    with pytest.raises(CommandError, match="hard limit"):
        prune("--soft-days", "2", "--hard-days", "1")
    assert len(alice.peek()["messages"]) == 1
    prune("--soft-days", "1", "--hard-days", "4")
    assert len(alice.peek()["messages"]) == 1
    prune("--soft-days", "1", "--hard-days", "2")
    assert alice.peek()["messages"] == []


@pytest.mark.fault("Q16")
def test_the_history_of_a_conversation_is_not_mail_and_stays(agent):
    alice, bob = agent("alice"), agent("bob")
    sent_days_ago(bob, 1000, "long ago")
    prune()
    assert alice.peek()["messages"] == []
    assert [m["body"] for m in alice.call("read_channel", channel="@bob")["messages"]] == ["long ago"]
