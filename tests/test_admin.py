"""What operators see and do in Django's admin."""

from __future__ import annotations

import html
import logging
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from agents.connections import usage
from agents.connections.models import Connection
from messaging.admin import looking
from messaging.models import AuditEntry, Channel, Delivery, Message, Profile, Question
from messaging.profiles import ensure_person
from tests.hub import Agent, Hub, Refused

MODELS: dict[str, Any] = {
    "messaging/profile": Profile,
    "messaging/channel": Channel,
    "messaging/message": Message,
    "messaging/delivery": Delivery,
    "messaging/question": Question,
    "messaging/auditentry": AuditEntry,
    "connections/connection": Connection,
}

Agents = Callable[..., Agent]


@pytest.fixture
def operator(hub: Hub) -> Client:
    """A browser in which an operator has signed in."""
    get_user_model().objects.create_superuser("olga", password="a-password-of-olga")
    browser = Client()
    assert browser.post("/admin/login/", {"username": "olga", "password": "a-password-of-olga"}).status_code == 302
    return browser


def staff(*permissions: str) -> Client:
    """A browser of somebody who may enter the admin and has these permissions only."""
    account = get_user_model().objects.create_user("stan", is_staff=True)
    account.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    browser = Client()
    browser.force_login(account)
    return browser


def page(browser: Client, path: str, **query: str) -> str:
    """The text of a page of the admin."""
    answer = browser.get(f"/admin/{path}", query, follow=True)
    assert answer.status_code == 200, (path, answer.status_code)
    return answer.content.decode()


def column(text: str, name: str) -> list[str]:
    """What a list shows in one of its columns, row by row."""
    cells = re.findall(rf'<t[dh] class="field-{name}(?: [^"]*)?">(.*?)</t[dh]>', text, re.DOTALL)
    return [html.unescape(re.sub(r"<[^>]+>", "", cell)).strip() for cell in cells]


def act(browser: Client, model: str, action: str, *rows: Any, confirmed: bool = True) -> str:
    """Runs an action on rows of a list, answers yes to its question unless told otherwise, and returns the page it ends on."""
    form: dict[str, Any] = {"action": action, "_selected_action": [row.pk for row in rows]}
    if confirmed:
        form["confirmed"] = "yes"
    answer = browser.post(f"/admin/{model}/", form, follow=True)
    assert answer.status_code == 200
    return answer.content.decode()


def notices(text: str) -> list[str]:
    """What the admin tells of an action."""
    found = re.search(r'<ul class="messagelist">(.*?)</ul>', text, re.DOTALL)
    return [html.unescape(t) for t in re.findall(r"<li[^>]*>(.*?)</li>", found[1], re.DOTALL)] if found else []


def refusal_of(wait: Any) -> Refused:
    """How an open wait was refused; it must end now."""
    with pytest.raises(Refused) as refused:
        wait.result(5)
    return refused.value


# --- Acting ---------------------------------------------------------------------------------------------------------


@pytest.mark.mutant(
    "messaging/profiles.py",
    "transaction.on_commit(lambda: doorbell.ring(stream_key(profile.inbox_id)))",
    "transaction.on_commit(lambda: None)",
)
def test_pausing_an_agent_ends_its_open_wait_at_once_and_lets_it_do_nothing(operator, agent, door):
    alice, bob = agent("alice"), agent("bob")
    wait = bob.waiting(timeout_s=50)
    assert notices(act(operator, "messaging/profile", "pause", bob.profile)) == ["Paused: @bob."]
    assert refusal_of(wait).code == "paused"
    assert bob.refusal("send_agent_message", to="alice", body="x", idempotency_key="12345678")["code"] == "paused"
    assert alice.send("bob")["skipped"] == [{"handle": "bob", "reason": "paused", "did_you_mean": []}]


def test_a_resumed_agent_works_as_before(operator, agent):
    alice, bob = agent("alice"), agent("bob")
    act(operator, "messaging/profile", "pause", bob.profile)
    assert notices(act(operator, "messaging/profile", "resume", bob.profile)) == ["Resumed: @bob."]
    wait = bob.waiting()
    alice.send("bob", "welcome back")
    assert [m["body"] for m in wait.result(5)["messages"]] == ["welcome back"]


@pytest.mark.fault("X1")
def test_revoking_a_connection_ends_its_open_wait_at_once_and_leaves_others_alone(operator, agent, door):
    alice, stolen, own = agent("alice"), agent("bob"), agent("bob")
    lost, kept = stolen.waiting(timeout_s=50), own.waiting(timeout_s=50)
    told = notices(act(operator, "connections/connection", "revoke", stolen.connection))
    assert told == [f"Revoked: bob ({stolen.connection.token_prefix}…)."]
    refused = refusal_of(lost)
    assert (refused.code, refused.status) == ("token_revoked", 401)
    assert stolen.refusal("whoami")["code"] == "token_revoked"
    alice.send("bob", "still there?")
    assert [m["body"] for m in kept.result(5)["messages"]] == ["still there?"]


@pytest.mark.fault("A8")
def test_a_released_handle_ends_its_waits_and_can_be_claimed_by_another_owner_without_its_mail(operator, agent):
    alice, bob = agent("alice"), agent("bob")
    alice.send("bob", "for the first bob")
    bob.wait()
    wait = bob.waiting(timeout_s=50, after_sequence=1)
    assert notices(act(operator, "messaging/profile", "release", bob.profile)) == ["Released: @bob."]
    assert refusal_of(wait).code == "no_profile"
    other = agent(owner="ben")
    assert other.claim("bob")["created"] is True
    assert other.peek()["messages"] == []


def test_an_archived_channel_can_be_read_but_takes_nothing_more(operator, agent):
    alice = agent("alice")
    alice.call("create_channel", name="plans")
    alice.post("plans", "before")
    told = notices(act(operator, "messaging/channel", "archive", Channel.objects.get(name="plans")))
    assert told == ["Archived: #plans."]
    refused = alice.refusal("send_channel_message", channel="plans", body="after", idempotency_key="12345678")
    assert refused["code"] == "archived"
    assert [m["body"] for m in alice.call("read_channel", channel="plans")["messages"]] == ["before"]


def test_a_direct_conversation_cannot_be_archived_and_the_operator_is_told(operator, agent):
    alice, bob = agent("alice"), agent("bob")
    alice.send("bob")
    told = notices(act(operator, "messaging/channel", "archive", Channel.objects.get(kind="direct")))
    assert told == [
        "@alice and @bob: A direct conversation cannot be archived; pause or block one of its two profiles."
    ]
    alice.send("bob", "again")
    assert bob.bodies() == ["hello", "again"]


@pytest.mark.mutant(
    "messaging/admin/looking.py", 'if request.POST.get("confirmed") == "yes":', 'if "action" in request.POST:'
)
@pytest.mark.parametrize(
    ("model", "action", "question"),
    [
        ("messaging/profile", "release", "Release these handles?"),
        ("messaging/channel", "archive", "Archive these channels?"),
        ("connections/connection", "revoke", "Revoke these connections?"),
    ],
)
def test_what_cannot_be_undone_is_asked_first(operator, agent, model, action, question):
    agent("alice").call("create_channel", name="plans")
    row = MODELS[model].objects.get()
    asked = act(operator, model, action, row, confirmed=False)
    assert f"<h1>{question}</h1>" in asked
    assert AuditEntry.objects.exclude(action="claimed").count() == 0
    # The question is a form that does it.
    form = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', asked.split("<main")[1]))
    assert len(notices(operator.post(f"/admin/{model}/", form, follow=True).content.decode())) == 1
    assert AuditEntry.objects.exclude(action="claimed").count() == 1


def test_each_act_leaves_an_audit_entry_that_names_the_operator(operator, agent):
    bob = agent("bob")
    bob.call("create_channel", name="plans")
    profile = bob.profile
    for action in ("pause", "resume", "release"):
        act(operator, "messaging/profile", action, profile)
    act(operator, "messaging/channel", "archive", Channel.objects.get())
    act(operator, "connections/connection", "revoke", bob.connection)
    listed = page(operator, "messaging/auditentry/")
    assert column(listed, "action") == [
        "connection_revoked",
        "channel_archived",
        "handle_released",
        "resumed",
        "paused",
    ]
    assert column(listed, "by") == ["olga"] * 5
    assert column(listed, "profile") == ["@bob", "-", "@bob", "@bob", "@bob"]
    of_profile = page(operator, "messaging/auditentry/", profile__id__exact=str(profile.pk))
    assert len(column(of_profile, "action")) == 4


# --- Who may do what ------------------------------------------------------------------------------------------------


def everything(agent: Agents) -> None:
    """At least one row of each model."""
    alice, bob = agent("alice"), agent("bob")
    alice.call("create_channel", name="plans")
    bob.call("join_channel", name="plans")
    alice.post("plans", "the long plan", to=["bob"])
    anna = ensure_person(get_user_model().objects.get_or_create(username="anna")[0])
    alice.call("ask_person", to=anna.handle, question="Now?", options=["yes", "no"], idempotency_key="a-question")
    agent(owner="carl").claim("carol")


@pytest.mark.parametrize("model", MODELS)
def test_no_form_of_the_admin_writes_a_row(operator, agent, model):
    everything(agent)
    row = MODELS[model].objects.order_by("pk").first()
    before = list(MODELS[model].objects.order_by("pk").values())
    for path in ("add/", f"{row.pk}/delete/"):
        assert operator.get(f"/admin/{model}/{path}").status_code == 403
        assert operator.post(f"/admin/{model}/{path}", {"post": "yes"}).status_code == 403
    shown = page(operator, f"{model}/{row.pk}/change/")
    fields = re.findall(r"<(?:textarea|select|input)[^>]*>", shown.split('id="content"')[1])
    assert [field for field in fields if 'type="hidden"' not in field] == []
    sent = {"handle": "mallory", "name": "mallory", "body": "forged", "_save": "Save"}
    assert operator.post(f"/admin/{model}/{row.pk}/change/", sent).status_code == 403
    act(operator, model, "delete_selected", row)
    assert list(MODELS[model].objects.order_by("pk").values()) == before


@pytest.mark.mutant("messaging/admin/looking.py", 'f"{self.opts.app_label}.change_', 'f"{self.opts.app_label}.view_')
def test_who_may_only_look_is_offered_no_action_and_can_run_none(hub, agent):
    bob = agent("bob")
    browser = staff("view_profile", "view_connection")
    for model, action, row in (
        ("messaging/profile", "pause", bob.profile),
        ("connections/connection", "revoke", bob.connection),
    ):
        assert column(page(browser, f"{model}/"), "token_begins" if "connection" in model else "at_handle")
        assert f'value="{action}"' not in page(browser, f"{model}/")
        act(browser, model, action, row)
    assert bob.call("whoami")["handle"] == "bob"
    assert browser.get("/admin/messaging/message/").status_code == 403


def test_who_may_change_profiles_may_pause_them(hub, agent):
    bob = agent("bob")
    browser = staff("view_profile", "change_profile")
    assert notices(act(browser, "messaging/profile", "pause", bob.profile)) == ["Paused: @bob."]


def test_an_account_that_is_not_staff_is_sent_to_sign_in(hub):
    browser = Client()
    browser.force_login(get_user_model().objects.create_user("eve"))
    answer = browser.get("/admin/messaging/message/")
    assert (answer.status_code, answer["Location"]) == (302, "/admin/login/?next=/admin/messaging/message/")


# --- Looking --------------------------------------------------------------------------------------------------------


def test_a_profile_is_shown_as_waiting_while_it_waits(operator, agent):
    alice, _ = agent("alice"), agent("bob")
    alice.waiting()
    listed = page(operator, "messaging/profile/")
    states = dict(zip(column(listed, "at_handle"), column(listed, "presence_now"), strict=True))
    assert states == {"@alice": "waiting", "@bob": "away"}


def test_profiles_are_found_by_handle_owner_and_state(operator, agent):
    alice, bob = agent("alice"), agent("bob", owner="ben")
    act(operator, "messaging/profile", "pause", bob.profile)

    def handles(**query: str) -> list[str]:
        return column(page(operator, "messaging/profile/", **query), "at_handle")

    assert handles() == ["@alice", "@bob"]
    assert handles(q="@ali") == ["@alice"]
    assert handles(q="ben") == ["@bob"]
    assert handles(state="paused") == ["@bob"]
    assert handles(state="live") == ["@alice"]
    assert handles(state="released") == []
    assert handles(presence="away") == ["@alice", "@bob"]
    act(operator, "messaging/profile", "release", alice.profile)
    assert handles(state="released") == ["@alice"]


def test_messages_are_found_by_words_sender_and_channel(operator, agent):
    alice, bob = agent("alice"), agent("bob")
    alice.call("create_channel", name="plans")
    alice.post("plans", "Deploy the inbox on Friday")
    bob.post("plans", "Friday OR never")
    alice.send("bob", "the inbox is yours")

    def bodies(**query: str) -> list[str]:
        return column(page(operator, "messaging/message/", **query), "beginning")

    assert bodies() == ["the inbox is yours", "Friday OR never", "Deploy the inbox on Friday"]
    assert bodies(q="friday") == ["Friday OR never", "Deploy the inbox on Friday"]
    assert bodies(q="friday inbox") == ["Deploy the inbox on Friday"]
    assert bodies(q="@bob") == ["Friday OR never"]
    assert bodies(q="@alice #plans") == ["Deploy the inbox on Friday"]
    assert bodies(q="#plans never") == ["Friday OR never"]
    assert bodies(q='inbox OR "never') == []
    assert bodies(q="@") == bodies(q="%") == bodies(q="nowhere") == []
    assert len(bodies(created_at__gte=str(timezone.now() - timedelta(days=1)))) == 3
    assert len(bodies(created_at__gte=str(timezone.now() + timedelta(days=1)))) == 0


def test_messages_are_filtered_by_kind(operator, agent):
    alice, _ = agent("alice"), agent("bob")
    sent = alice.send("bob", "first")
    alice.call("edit_message", message_id=sent["message_id"], body="second")
    assert column(page(operator, "messaging/message/", kind__exact="edit"), "kind") == ["Edit"]
    assert column(page(operator, "messaging/message/", kind__exact="message"), "beginning") == ["second"]


@pytest.mark.fault("X2")
def test_a_body_is_shown_as_its_author_wrote_it_and_escaped(operator, agent):
    alice, _ = agent("alice"), agent("bob")
    body = "</pre><script>alert(1)</script> <b>&amp; \x1b[31m ‮ </system-reminder>\n  last"
    sent = alice.send("bob", body)
    shown = page(operator, f"messaging/message/{sent['message_id']}/change/")
    written = re.search(r'<pre class="text-block"><bdi>(.*?)</bdi></pre>', shown, re.DOTALL)
    assert written
    assert html.unescape(written[1]) == body
    assert "<script>alert" not in shown + page(operator, "messaging/message/")


@pytest.mark.fault("L18")
def test_deliveries_are_filtered_by_what_became_of_them(operator, agent):
    alice, bob = agent("alice"), agent("bob")
    for body in ("one", "two", "three"):
        alice.send("bob", body)
    bob.wait(limit=2)
    bob.call("acknowledge", through_sequence=1)

    def sequences(**query: str) -> list[str]:
        return column(page(operator, "messaging/delivery/", **query), "sequence")

    assert sequences() == ["3", "2", "1"]
    assert sequences(state="pending") == ["3", "2"]
    assert sequences(state="unoffered") == ["3"]
    assert sequences(state="offered") == ["2"]
    assert sequences(state="acknowledged") == ["1"]
    listed = page(operator, "messaging/delivery/")
    assert [when == "-" for when in column(listed, "stored_at")] == [False, False, False]
    assert [when == "-" for when in column(listed, "offered_at")] == [True, False, False]
    assert [when == "-" for when in column(listed, "acknowledged_at")] == [True, True, False]
    assert sequences(q="@bob") == ["3", "2", "1"]
    assert sequences(q="alice") == []


@pytest.mark.fault("L15")
def test_a_delivery_that_has_expired_unread_is_marked_so(operator, agent):
    alice, _ = agent("alice"), agent("bob")
    alice.send("bob", "by tomorrow", expires_in_s=86_400)
    alice.send("bob", "by then", expires_in_s=86_400)
    Message.objects.filter(body="by then").update(expires_at=timezone.now())
    assert column(page(operator, "messaging/delivery/"), "expired") == ["yes", "-"]


def test_questions_are_filtered_by_whether_they_were_answered(operator, agent):
    alice = agent("alice")
    anna = ensure_person(get_user_model().objects.create_user("anna"))
    for number in (1, 2):
        alice.call(
            "ask_person",
            to="anna",
            question=f"Number {number}?",
            options=["yes", "no"],
            idempotency_key=f"key-{number:05}",
        )
    first = Question.objects.get(message__body="Number 1?")
    Question.objects.filter(pk=first.pk).update(answered_at=timezone.now(), answered_by=anna, choice=1)
    assert column(page(operator, "messaging/question/", state="answered"), "answer") == ["no"]
    assert column(page(operator, "messaging/question/", state="open"), "question") == ["Number 2?"]
    assert column(page(operator, "messaging/question/", state="expired"), "question") == []
    assert "Number 1?" in page(operator, f"messaging/question/{first.pk}/change/")


def test_a_channel_shows_its_members_and_its_last_sequence(operator, agent):
    alice, bob = agent("alice"), agent("bob")
    alice.call("create_channel", name="plans", private=True)
    alice.call("create_channel", name="talk")
    bob.call("join_channel", name="talk")
    alice.post("talk")
    alice.post("talk")
    listed = page(operator, "messaging/channel/", q="#talk")
    assert [column(listed, c) for c in ("called", "kind", "members", "last_sequence")] == [
        ["#talk"],
        ["Public"],
        ["2"],
        ["2"],
    ]
    assert column(page(operator, "messaging/channel/", kind__exact="private"), "called") == ["#plans"]
    assert "@alice, @bob" in page(operator, f"messaging/channel/{Channel.objects.get(name='talk').pk}/change/")


def test_connections_show_scopes_use_and_state_and_how_to_make_one(operator, agent):
    reader, writer = agent("alice", can_write=False), agent("bob")
    reader.wait()
    reader.wait()
    usage.flush()
    listed = page(operator, "connections/connection/")
    assert "manage.py connect_agent" in listed
    assert column(listed, "profile") == ["@bob", "@alice"]
    assert column(listed, "token_begins") == [f"{a.connection.token_prefix}…" for a in (writer, reader)]
    assert column(listed, "may") == ["read, write", "read"]
    assert column(listed, "empty_polls") == ["0", "2"]
    assert [used == "-" for used in column(listed, "last_used_at")] == [True, False]

    def states(**query: str) -> list[str]:
        return column(page(operator, "connections/connection/", **query), "profile")

    assert states(state="unused") == ["@bob"]
    assert states(scope="read") == ["@alice"]
    Connection.objects.filter(pk=reader.connection.pk).update(expires_at=timezone.now())
    assert states(state="expired") == ["@alice"]
    act(operator, "connections/connection", "revoke", writer.connection)
    assert states(state="revoked") == ["@bob"]
    assert states(state="live") == []
    assert states(q=writer.connection.token_prefix) == ["@bob"]


@pytest.mark.fault("X1")
@pytest.mark.fault("X5")
def test_no_page_notice_history_or_log_of_the_admin_contains_a_token(operator, agent, caplog):
    caplog.set_level(logging.DEBUG)
    everything(agent)
    bob = agent("bob")
    bob.call("whoami")
    pages = [page(operator, ""), page(operator, "connections/connection/", q=bob.token)]
    for model, rows in MODELS.items():
        pages.append(page(operator, f"{model}/"))
        pages += [page(operator, f"{model}/{row.pk}/change/") for row in rows.objects.all()[:3]]
        pages += [page(operator, f"{model}/{row.pk}/history/") for row in rows.objects.all()[:1]]
    pages.append(page(operator, f"connections/connection/{bob.connection.pk}/change/"))
    pages.append(page(operator, f"auth/user/{bob.connection.owner_id}/delete/"))
    pages.append(act(operator, "connections/connection", "revoke", bob.connection, confirmed=False))
    pages.append(act(operator, "connections/connection", "revoke", bob.connection))
    pages.append(page(operator, "messaging/auditentry/"))
    kept = [str(row) for model in (LogEntry, AuditEntry) for row in model.objects.values()]
    kept += [record.getMessage() for record in caplog.records]
    secret, hashed = bob.token[len(bob.connection.token_prefix) :], bytes(bob.connection.token_hash)
    for text in [*pages, *kept]:
        assert secret not in text
        assert hashed.hex() not in text
        assert repr(hashed)[2:-1] not in text


@pytest.mark.mutant(
    "agents/connections/admin.py", "if _TOO_MUCH.search(searched):", "if _TOO_MUCH.fullmatch(searched[1:]):"
)
@pytest.mark.fault("X1")
def test_a_token_pasted_into_the_search_finds_its_connection_and_is_cut_from_the_address(operator, agent):
    bob, _ = agent("bob"), agent("carol")
    answer = operator.get("/admin/connections/connection/", {"q": bob.token}, follow=True)
    assert answer.redirect_chain == [(f"?q={bob.connection.token_prefix}", 302)]
    assert column(answer.content.decode(), "profile") == ["@bob"]


# --- Large tables ---------------------------------------------------------------------------------------------------


def grow(agent: Agents, number: int) -> None:
    """More rows of every model, each with others behind it."""
    agents = [agent(f"agent-{number}-{i}", owner=f"owner-{number}-{i}") for i in range(number)]
    anna = ensure_person(get_user_model().objects.get_or_create(username="anna")[0])
    for i, one in enumerate(agents):
        one.call("create_channel", name=f"channel-{number}-{i}")
        one.post(f"channel-{number}-{i}", "hello", to=["alice"])
        one.send("alice")
        one.call("ask_person", to=anna.handle, question="?", options=["a", "b"], idempotency_key=f"question-{i}")
        AuditEntry.objects.create(action="paused", by=one.profile.owner, profile=one.profile)


@pytest.mark.mutant("messaging/admin/profiles.py", '("owner", "presence")', '("owner",)')
@pytest.mark.parametrize("model", MODELS)
def test_a_list_asks_the_same_number_of_queries_however_many_rows_it_shows(operator, agent, model):
    agent("alice")
    grow(agent, 2)

    def ask() -> tuple[int, int]:
        with CaptureQueriesContext(connection) as asked:
            listed = page(operator, f"{model}/")
        return len(asked), listed.count('<a href="/admin/' + model)

    few, rows = ask()
    grow(agent, 9)
    many, more_rows = ask()
    assert more_rows >= rows + 9
    assert many == few


@pytest.mark.mutant("messaging/admin/looking.py", '.values("pk")[:MAX_COUNTED].count()', '.values("pk").count()')
def test_a_list_counts_no_further_than_its_limit_and_still_shows_the_newest(operator, agent, monkeypatch):
    monkeypatch.setattr(looking, "MAX_COUNTED", 2)
    alice, _ = agent("alice"), agent("bob")
    for body in ("one", "two", "three"):
        alice.send("bob", body)
    listed = page(operator, "messaging/message/")
    assert column(listed, "beginning")[:2] == ["three", "two"]
    assert "2 messages" in listed


def test_a_long_list_has_pages(operator, agent):
    alice, _ = agent("alice"), agent("bob")
    for number in range(52):
        alice.send("bob", f"number {number}")
    assert len(column(page(operator, "messaging/message/"), "beginning")) == 50
    assert column(page(operator, "messaging/message/", p="2"), "beginning") == ["number 1", "number 0"]
