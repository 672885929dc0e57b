"""What only the HTTP API has: two ways to sign in, statuses and headers, addresses, and its description."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import closing, contextmanager
from datetime import timedelta
from html.parser import HTMLParser
from http.client import HTTPConnection
from typing import Any
from urllib.parse import quote, urlsplit

import psycopg
import pytest
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.test import Client
from django.utils import timezone
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from agents import operations
from agents.connections import credentials
from messaging import profiles
from messaging.models import Message, Profile
from tests.hub import DOORS, Address, Answer, Hub, eventually, http_twin, key
from tests.processes import free_port, own_database, site

NOBODY = "00000000-0000-0000-0000-000000000000"
CSRF = "c" * 32


@pytest.fixture
def door() -> str:
    return "http"


@pytest.fixture
def alice(agent, door):
    return agent("alice", owner="ann")


@pytest.fixture
def bob(agent, door):
    return agent("bob", owner="ben")


class Browser:
    """A page of somebody who is signed in: the session's cookie, and the CSRF token unless a test leaves it out."""

    def __init__(self, hub: Hub, username: str) -> None:
        self.hub = hub
        self.user, _ = get_user_model().objects.get_or_create(username=username)
        client = Client()
        client.force_login(self.user)
        self.session = client.cookies["sessionid"].value

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        cookies = f"sessionid={self.session}; csrftoken={CSRF}"
        sent = {"Cookie": cookies, "X-CSRFToken": CSRF} | {k.replace("_", "-"): v for k, v in headers.items()}
        return self.hub.request(method, f"/api/v1/{path}", body, {k: v for k, v in sent.items() if v})


@pytest.fixture
def browser(hub) -> Callable[[str], Browser]:
    return lambda username: Browser(hub, username)


def api(agent: Any, method: str, path: str, body: Any = None, **headers: str) -> Answer:
    """A request of an agent, with more headers (`_` stands for a dash)."""
    sent = {"Authorization": f"Bearer {agent.token}"} | {k.replace("_", "-"): v for k, v in headers.items()}
    answer: Answer = agent.hub.request(method, f"/api/v1/{path}", body, sent)
    return answer


def refused(answer: Answer) -> tuple[int, str]:
    """Status and code of a refusal, which must have the shape of all refusals."""
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.json) == {"error"}
    assert {"code", "message", "retry_after_s"} <= set(answer.json["error"])
    return answer.status, answer.json["error"]["code"]


# --- Bearer tokens --------------------------------------------------------------------------------------------------


def test_without_a_credential_a_call_is_refused_and_says_which_it_takes(hub):
    for path in ("profile", "inbox", "channels", f"messages/{NOBODY}"):
        answer = hub.request("GET", f"/api/v1/{path}")
        assert refused(answer) == (401, "unauthenticated")
        assert answer.headers["www-authenticate"] == 'Bearer realm="parley"'
        assert "x-ratelimit-limit" not in answer.headers


@pytest.mark.parametrize("path", ["profile", "inbox"])
def test_a_bad_token_is_refused_with_its_reason(hub, path):
    for value in ("Bearer prl_nobody", "Bearer ", "Basic YTpi", "Bearer", "bearer \u00fc", "Bearer " + "x" * 5000):
        answer = hub.request("GET", f"/api/v1/{path}", headers={"Authorization": value})
        assert refused(answer) == (401, "invalid_token")
        assert 'error="invalid_token"' in answer.headers["www-authenticate"]


def test_an_expired_token_is_refused(agent, door):
    late = agent("late", expires_at=timezone.now() - timedelta(seconds=1))
    answer = api(late, "GET", "profile")
    assert refused(answer) == (401, "token_expired")
    assert "www-authenticate" in answer.headers


def test_a_revoked_connection_does_nothing_more(alice, bob):
    assert api(alice, "GET", "profile").status == 200
    credentials.revoke_connection(connection=alice.connection)
    asked = {"to": "bob", "body": "hi", "idempotency_key": key()}
    for answer in (api(alice, "GET", "profile"), api(alice, "POST", "messages", asked), api(alice, "GET", "inbox")):
        assert refused(answer) == (401, "token_revoked")
    assert bob.bodies() == []


@pytest.mark.fault("X1")
@pytest.mark.mutant("agents/operations.py", "    check_standing(caller)", "    pass")
def test_what_another_process_revoked_is_refused_although_it_is_remembered_here(alice):
    assert api(alice, "GET", "profile").status == 200
    type(alice.connection).objects.filter(pk=alice.connection.pk).update(revoked_at=timezone.now())
    answers = [
        api(alice, "GET", "profile"),
        api(alice, "GET", "channels"),
        api(alice, "POST", "channels", {"name": "orders"}),
    ]
    assert [refused(a) for a in answers] == [(401, "token_revoked")] * 3


def test_what_was_claimed_through_another_process_is_whom_the_token_stands_for(alice):
    assert api(alice, "GET", "profile").status == 200
    other, _ = profiles.claim_handle(owner=alice.connection.owner, handle="alison")
    type(alice.connection).objects.filter(pk=alice.connection.pk).update(profile=other)
    assert api(alice, "GET", "profile").json["handle"] == "alison"
    assert api(alice, "POST", "channels", {"name": "orders"}).status == 201


def test_a_paused_profile_does_nothing_more(alice):
    profiles.pause_profile(profile=alice.profile, by=alice.connection.owner)
    for method, path, body in [
        ("GET", "profile", None),
        ("POST", "channels", {"name": "orders"}),
        ("GET", "inbox", None),
    ]:
        assert refused(api(alice, method, path, body)) == (403, "paused")


@pytest.mark.fault("A10")
def test_a_client_that_takes_itself_for_somebody_else_is_refused(alice, bob):
    assert api(alice, "GET", "profile", Parley_Handle="alice").status == 200
    asked = {"to": "bob", "body": "hi", "idempotency_key": key()}
    for answer in (
        api(alice, "POST", "messages", asked, Parley_Handle="bob"),
        api(alice, "GET", "profile", Parley_Handle="bob"),
        api(alice, "GET", "inbox?timeout_s=0", Parley_Handle="bob"),
    ):
        assert refused(answer) == (403, "wrong_profile")
    assert bob.bodies() == []


# --- Sessions -------------------------------------------------------------------------------------------------------


def test_whoever_is_signed_in_acts_as_their_own_person(bob, browser):
    ann = browser("ann")
    told = ann.request("GET", "profile").json
    assert (told["handle"], told["kind"], told["owner"], told["connection"]) == ("ann", "person", "ann", None)
    sent = ann.request("POST", "messages", {"to": "bob", "body": "good morning", "idempotency_key": key()})
    assert sent.status == 201
    (message,) = bob.wait()["messages"]
    assert (message["sender"]["handle"], message["sender"]["kind"]) == ("ann", "person")
    bob.send("ann", "and to you")
    assert [m["body"] for m in ann.request("GET", "inbox/pending").json["messages"]] == ["and to you"]


def test_a_session_is_for_the_short_calls_the_long_poll_takes_a_token(browser):
    assert refused(browser("ann").request("GET", "inbox")) == (401, "unauthenticated")


@pytest.mark.mutant("agents/rest/authentication.py", "            super().enforce_csrf(request)", "            pass")
@pytest.mark.parametrize("token", ["", "d" * 32])
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "messages", {"to": "bob", "body": "hi", "idempotency_key": "a key of ours"}),
        ("POST", "channels", {"name": "orders"}),
        ("PUT", "profile", {"display_name": "Ann"}),
    ],
)
def test_a_session_without_its_csrf_token_changes_nothing(bob, browser, method, path, body, token):
    ann = browser("ann")
    assert refused(ann.request(method, path, body, X_CSRFToken=token)) == (403, "csrf_failed")
    assert bob.bodies() == []
    assert ann.request("GET", "channels", X_CSRFToken="").json["channels"] == []


@pytest.mark.fault("X8")
@pytest.mark.parametrize("origin", ["https://evil.example", "null"])
def test_a_page_of_another_origin_does_nothing_with_somebodys_session(bob, browser, origin):
    asked = {"to": "bob", "body": "hi", "idempotency_key": key()}
    assert refused(browser("ann").request("POST", "messages", asked, Origin=origin)) == (403, "origin_refused")
    assert bob.bodies() == []


@pytest.mark.fault("X8")
@pytest.mark.parametrize("header", ["Origin", "Referer"])
def test_an_origin_of_the_hub_is_no_proof_of_anything(hub, header):
    for method, path in (("GET", "profile"), ("POST", "messages"), ("GET", "inbox")):
        answer = hub.request(method, f"/api/v1/{path}", headers={header: hub.url})
        assert refused(answer) == (401, "unauthenticated")


def test_the_hubs_own_pages_may_call(hub, browser):
    answer = browser("ann").request("POST", "channels", {"name": "orders"}, Origin=hub.url)
    assert answer.status == 201


def test_a_token_decides_alone_whatever_session_comes_with_it(alice, browser):
    ann = browser("ann")
    assert ann.request("GET", "profile", Authorization=f"Bearer {alice.token}").json["handle"] == "alice"
    assert refused(ann.request("GET", "profile", Authorization="Bearer prl_nobody")) == (401, "invalid_token")


def test_who_has_left_or_was_shut_out_has_no_session(browser):
    ann = browser("ann")
    ann.user.is_active = False
    ann.user.save()
    assert refused(ann.request("GET", "profile")) == (401, "unauthenticated")


def test_a_person_changes_the_name_that_others_read_and_keeps_the_handle(browser):
    ann = browser("ann")
    claimed = ann.request("PUT", "profile", {"display_name": "Ann of the tests"})
    assert (claimed.status, claimed.json["handle"], claimed.json["created"]) == (200, "ann", False)
    assert ann.request("GET", "profile").json["display_name"] == "Ann of the tests"
    assert ann.request("PUT", "profile", {"handle": "ann", "display_name": None}).status == 200
    assert refused(ann.request("PUT", "profile", {"handle": "queen"})) == (403, "handle_fixed")
    assert refused(ann.request("PUT", "profile", {"display_name": "two\nlines"})) == (400, "invalid_display_name")
    assert ann.request("GET", "profile").json["display_name"] == "Ann of the tests"
    assert not Profile.objects.filter(handle="queen").exists()


def test_a_paused_person_does_nothing_more(browser):
    ann = browser("ann")
    person = profiles.ensure_person(ann.user)
    profiles.pause_profile(profile=person, by=ann.user)
    for method, path, body in [("GET", "profile", None), ("PUT", "profile", {"display_name": "Ann"})]:
        assert refused(ann.request(method, path, body)) == (403, "paused")


@pytest.mark.fault("A10")
def test_a_page_that_takes_itself_for_somebody_else_is_refused(browser):
    assert refused(browser("ann").request("GET", "profile", Parley_Handle="ben")) == (403, "wrong_profile")
    assert browser("ann").request("GET", "profile", Parley_Handle="ann").status == 200


# --- Questions and members, which people have for themselves --------------------------------------------------------


def test_a_person_answers_a_question_and_the_asker_gets_the_decision(alice, browser):
    ann, ben = browser("ann"), browser("ben")
    for someone in (ann, ben):
        someone.request("GET", "profile")
    asked = {"to": "ann", "question": "Which colour?", "options": ["red", "blue"], "idempotency_key": key()}
    question = api(alice, "POST", "questions", asked)
    assert question.status == 201
    there = f"questions/{question.json['question_id']}"
    found = ann.request("GET", there).json
    assert (found["question"], found["options"], found["choice"]) == ("Which colour?", ["red", "blue"], None)
    assert refused(api(alice, "POST", f"{there}/answer", {"choice": 0})) == (403, "not_a_person")
    assert refused(ben.request("POST", f"{there}/answer", {"choice": 0})) == (404, "unknown_question")
    assert refused(ann.request("POST", f"{there}/answer", {"choice": 2})) == (400, "invalid_argument")
    assert refused(ann.request("POST", f"{there}/answer", {"choice": "1"})) == (400, "invalid_argument")
    answered = ann.request("POST", f"{there}/answer", {"choice": 1})
    assert (answered.status, answered.json["choice"], answered.json["answered_by"]) == (200, 1, "ann")
    (decision,) = alice.wait()["messages"]
    assert (decision["kind"], decision["body"], decision["refers_to"]) == ("decision", "blue", found["question_id"])
    assert refused(ann.request("POST", f"{there}/answer", {"choice": 0})) == (409, "already_answered")
    assert ann.request("POST", f"{there}/answer", {"choice": 1}).status == 200
    assert alice.bodies() == []


def test_members_of_a_private_channel_let_others_in(agent, alice, bob):
    api(alice, "POST", "channels", {"name": "secret", "private": True})
    assert refused(api(bob, "POST", "channels/secret/members")) == (404, "unknown_channel")
    added = api(alice, "POST", "channels/secret/members", {"handle": "@bob"})
    assert (added.status, added.json["members"]) == (200, 2)
    alice.post("secret", "welcome")
    assert [m["body"] for m in bob.call("read_channel", channel="secret")["messages"]] == ["welcome"]
    assert refused(api(alice, "POST", "channels/secret/members", {"handle": "nobody"})) == (404, "unknown_handle")
    stranger = agent("sam")
    assert refused(api(stranger, "POST", "channels/secret/members", {"handle": "sam"})) == (404, "unknown_channel")


# --- Statuses and headers -------------------------------------------------------------------------------------------


def test_what_is_made_is_201_and_what_is_only_found_again_is_200(alice, bob):
    asked = {"to": "bob", "body": "hi", "idempotency_key": key()}
    assert [api(alice, "POST", "messages", asked).status for _ in range(2)] == [201, 200]
    assert api(alice, "POST", "channels", {"name": "orders"}).status == 201
    posted = {"channel": "orders", "body": "hi", "idempotency_key": key()}
    assert [api(alice, "POST", "messages", posted).status for _ in range(2)] == [201, 200]


STATUSES: list[tuple[str, int, str, dict]] = [
    ("invalid_argument", 400, "list_peers", {"limit": 0}),
    ("self_send", 400, "send_agent_message", {"to": "alice", "body": "hi", "idempotency_key": "a key of ours"}),
    ("not_a_member", 403, "set_channel_policy", {"name": "orders", "answers_agents": True}),
    (
        "unknown_handle",
        404,
        "send_agent_message",
        {"to": "nobody", "body": "hi", "idempotency_key": "a key of ours"},
    ),
    ("unknown_channel", 404, "read_channel", {"channel": "nowhere"}),
    ("unknown_message", 404, "message_status", {"message_id": NOBODY}),
    ("channel_exists", 409, "create_channel", {"name": "orders"}),
    ("handle_taken", 409, "claim_connected_profile", {"handle": "bob"}),
    ("cursor_ahead", 409, "wait_for_messages", {"after_sequence": 9}),
]


def test_each_sort_of_refusal_has_the_fitting_status(alice, bob):
    bob.call("create_channel", name="orders")
    for code, status, tool, arguments in STATUSES:
        alice.refusal(tool, **arguments)
        answer = alice.answers[-1]
        assert refused(answer) == (status, code)
        assert "x-ratelimit-remaining" in answer.headers


def test_the_idempotency_key_may_come_as_a_header(alice, bob):
    same = key()
    content = {"to": "bob", "body": "once"}
    first = api(alice, "POST", "messages", content, Idempotency_Key=same)
    again = api(alice, "POST", "messages", content, Idempotency_Key=same)
    field = api(alice, "POST", "messages", {**content, "idempotency_key": same})
    both = api(alice, "POST", "messages", {**content, "idempotency_key": same}, Idempotency_Key=same)
    assert first.status == 201
    for replay in (again, field, both):
        assert (replay.status, replay.json) == (200, {**first.json, "replayed": True})
    two = api(alice, "POST", "messages", {**content, "idempotency_key": same}, Idempotency_Key=key())
    assert refused(two) == (400, "invalid_argument")
    short = api(alice, "POST", "messages", content, Idempotency_Key="short")
    assert refused(short) == (400, "invalid_argument")
    assert refused(api(alice, "POST", "messages", content)) == (400, "invalid_argument")
    assert bob.bodies() == ["once"]


def test_every_answer_tells_what_is_left_of_the_calls_of_this_minute(alice, bob, settings):
    settings.RATE_LIMIT_PER_MINUTE = 100
    seen = [
        api(alice, "GET", "profile"),
        api(alice, "GET", "inbox?timeout_s=0"),
        api(alice, "GET", "channels/nowhere/messages"),
        api(alice, "POST", "messages", {"to": "bob", "body": "hi", "idempotency_key": key()}),
    ]
    assert [a.headers["x-ratelimit-limit"] for a in seen] == ["100"] * 4
    assert [a.headers["x-ratelimit-remaining"] for a in seen] == ["99", "98", "97", "96"]
    assert all(1 <= int(a.headers["x-ratelimit-reset"]) <= 60 for a in seen)
    assert api(bob, "GET", "profile").headers["x-ratelimit-remaining"] == "99"


@pytest.mark.parametrize("path", ["profile", "inbox?timeout_s=0"])
def test_beyond_the_limit_a_call_is_429_and_says_when_to_come_back(alice, settings, path):
    settings.RATE_LIMIT_PER_MINUTE = 2
    assert [api(alice, "GET", path).status for _ in range(3)] == [200, 200, 429]
    answer = api(alice, "GET", path)
    assert refused(answer) == (429, "rate_limited")
    assert answer.headers["retry-after"] == str(answer.json["error"]["retry_after_s"])
    assert (answer.headers["x-ratelimit-limit"], answer.headers["x-ratelimit-remaining"]) == ("2", "0")


def test_beyond_the_limit_a_send_stores_nothing_but_a_replay_is_free(alice, bob, settings):
    asked = {"to": "bob", "body": "hi", "idempotency_key": key()}
    settings.RATE_LIMIT_PER_MINUTE = 1
    assert api(alice, "POST", "messages", asked).status == 201
    other = {**asked, "idempotency_key": key()}
    assert refused(api(alice, "POST", "messages", other)) == (429, "rate_limited")
    assert api(alice, "POST", "messages", asked).status == 200
    settings.RATE_LIMIT_PER_MINUTE = 100
    assert bob.bodies() == ["hi"]
    assert api(alice, "POST", "messages", other).status == 201


def test_people_have_a_limit_of_their_own(browser, settings):
    settings.RATE_LIMIT_PER_MINUTE = 2
    ann, ben = browser("ann"), browser("ben")
    answers = [ann.request("GET", "profile"), ann.request("PUT", "profile", {"display_name": "Ann"})]
    assert [(a.status, a.headers["x-ratelimit-remaining"]) for a in answers] == [(200, "1"), (200, "0")]
    assert refused(ann.request("GET", "profile")) == (429, "rate_limited")
    assert ben.request("GET", "profile").status == 200


@pytest.mark.fault("L11")
def test_the_language_of_the_client_changes_nothing(alice):
    answers = [
        api(alice, "GET", "channels/nowhere/messages", Accept_Language=language) for language in ("de", "ja;q=0.9", "*")
    ]
    assert len({a.body for a in answers}) == 1


def test_there_is_only_json_whatever_a_client_would_rather_have(alice):
    for accept in ("text/html,application/xhtml+xml,*/*;q=0.8", "text/html", "application/xml", "nonsense"):
        good, bad = api(alice, "GET", "profile", Accept=accept), api(alice, "GET", "nothing", Accept=accept)
        assert (good.status, good.headers["content-type"]) == (200, "application/json")
        assert refused(bad) == (404, "not_found")


def test_answers_are_not_kept_by_anybody_on_the_way(alice):
    assert api(alice, "GET", "profile").headers["cache-control"] == "no-store"


def test_text_of_any_script_is_sent_as_it_is(alice, bob):
    alice.send("bob", "Grüße 你好 👋")
    assert "Grüße 你好 👋" in api(bob, "GET", "inbox/pending").body.decode()


# --- Addresses and methods ------------------------------------------------------------------------------------------

NO_ADDRESSES = (
    "/api", "/api/", "/api/v1", "/api/v1/", "/api/v2/profile", "/api/v1/nothing", "/api/v1/profile/", "/api/v1/messages/",
    "/api/v1/channels//messages", "/api/v1/inbox/", "/api/v1/profile.json", "//api/v1/profile", "/api/v1/%2e%2e/profile",
    "/api/v1/channels/a%2Fb/messages", "/api/%FF", "/api/openapi.yaml", "/api/docs/",
)  # fmt: skip
OF_A_SIGN_IN = (
    "/register",
    "/.well-known/oauth-protected-resource/mcp",
    "/.well-known/oauth-protected-resource",
    "/.well-known/oauth-authorization-server",
    "/.well-known/openid-configuration/mcp",
    "/mcp/.well-known/openid-configuration",
)


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_an_unknown_address_is_a_json_404(running_hub, method):
    answers = {path: refused(running_hub.request(method, path)) for path in NO_ADDRESSES}
    assert answers == dict.fromkeys(NO_ADDRESSES, (404, "not_found"))


@pytest.mark.fault("M13")
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_who_looks_for_a_sign_in_is_sent_to_the_connect_page_whatever_its_revision(running_hub, method):
    body = None if method in {"GET", "OPTIONS"} else {"redirect_uris": ["http://localhost/callback"]}
    for path in OF_A_SIGN_IN:
        for version in ({}, {"MCP-Protocol-Version": "2024-11-05"}, {"MCP-Protocol-Version": "nonsense"}):
            answer = running_hub.request(method, path, body, version)
            assert refused(answer) == (404, "not_found")
            assert "connect page of this hub, at /," in answer.json["error"]["message"]


def test_a_method_that_an_address_does_not_take_is_refused_with_those_it_takes(hub, alice):
    for method, path, allowed in [
        ("DELETE", "profile", {"GET", "PUT", "HEAD"}),
        ("GET", "messages", {"POST"}),
        ("OPTIONS", "channels", {"GET", "POST", "HEAD"}),
        ("POST", "inbox", {"GET"}),
        ("PATCH", f"questions/{NOBODY}/answer", {"POST"}),
        ("TRACE", "search", {"GET", "HEAD"}),
    ]:
        for answer in (api(alice, method, path), hub.request(method, f"/api/v1/{path}")):
            assert refused(answer) == (405, "method_not_allowed")
            assert set(re.split(r",\s*", answer.headers["allow"])) == allowed


def test_a_call_under_another_host_name_is_refused(alice):
    for path in ("profile", "inbox", "nothing"):
        assert refused(api(alice, "GET", path, Host="evil.example")) == (403, "host_refused")


# --- Arguments ------------------------------------------------------------------------------------------------------


NO_OBJECTS: list[tuple[bytes, str]] = [
    (b"{", "malformed_json"),
    (b"{'to': 'bob'}", "malformed_json"),
    (b'{"limit": NaN}', "malformed_json"),
    (b'{"limit": ' + b"9" * 5000 + b"}", "malformed_json"),
    (b"\xff\xfe\xfd", "malformed_json"),
    (b"[" * 100_000, "malformed_json"),
    (b'{"to":' * 50_000 + b"1" + b"}" * 50_000, "malformed_json"),
    (b"[]", "invalid_argument"),
    (b"[1]", "invalid_argument"),
    (b"null", "invalid_argument"),
    (b'"text"', "invalid_argument"),
    (b"0", "invalid_argument"),
    (b"{}", "invalid_argument"),
    (b'{"to": "bob", "body": "\\u0000", "idempotency_key": "a key of ours"}', "invalid_argument"),
    (b'{"to": "bob", "body": "\\ud800", "idempotency_key": "a key of ours"}', "invalid_argument"),
    (b'{"to": "bob", "body": "hi", "idempotency_key": "a key of ours", "\\ud800": 1}', "invalid_argument"),
]


def test_a_body_that_is_no_object_of_arguments_is_refused_and_the_next_call_works(alice, bob):
    for body, code in NO_OBJECTS:
        assert (body[:80], *refused(api(alice, "POST", "messages", body))) == (body[:80], 400, code)
    assert api(alice, "GET", "profile").status == 200
    assert bob.bodies() == []


def test_a_body_of_another_type_is_refused(alice):
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "json"):
        answer = api(alice, "POST", "channels", b'{"name": "orders"}', Content_Type=kind)
        assert refused(answer) == (415, "unsupported_media_type")
    assert alice.call("list_channels")["channels"] == []


def test_a_body_too_large_is_refused_before_it_is_read(hub, alice):
    body = json.dumps({"to": "bob", "body": "x" * 1_048_576}).encode()
    answer = api(alice, "POST", "messages", body)
    assert refused(answer) == (413, "too_large")
    assert answer.json["error"]["limit"] == 1_048_576
    with closing(HTTPConnection("127.0.0.1", hub.port, timeout=5)) as connection:
        connection.putrequest("POST", "/api/v1/messages")
        connection.putheader("Content-Length", "999999999999")
        connection.endheaders()
        assert connection.getresponse().status == 413


def test_a_body_in_chunks_is_read_like_any_other(hub, alice, bob):
    content = {"to": "bob", "body": "in chunks", "idempotency_key": key()}
    headers = {"Authorization": f"Bearer {alice.token}", "Content-Type": "application/json"}
    with closing(HTTPConnection("127.0.0.1", hub.port, timeout=5)) as connection:
        chunks = iter([json.dumps(content).encode()])
        connection.request("POST", "/api/v1/messages", body=chunks, headers=headers, encode_chunked=True)
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())["delivered"][0]["handle"]) == (201, "bob")
        chunks = iter([b" " * 100_000] * 11)
        connection.request("POST", "/api/v1/messages", body=chunks, headers=headers, encode_chunked=True)
        assert connection.getresponse().status == 413
    assert bob.bodies() == ["in chunks"]


MISPLACED: list[tuple[str, str, Any]] = [
    ("GET", "profiles?limit=1&limit=2", None),
    ("GET", "profiles?limit=1.0e1", None),
    ("GET", "profiles?limit=%C2%B2", None),
    ("GET", "profiles?limit=", None),
    ("GET", "profiles?format=api", None),
    ("GET", "inbox?timeout_s=0&timeout_s=1", None),
    ("GET", "inbox?timeout_s=inf", None),
    ("GET", "inbox?timeout_s=-1", None),
    ("GET", "inbox?after_sequence=1.5", None),
    ("POST", "channels?name=orders", {}),
    ("POST", "channels?private=true", {"name": "orders"}),
    ("PUT", "channels/orders/policy", {"answers_agents": True, "name": "others"}),
    ("PATCH", f"messages/{NOBODY}", {"message_id": NOBODY, "body": "hi"}),
    ("DELETE", f"messages/{NOBODY}", {"reason": "none"}),
    ("GET", "messages/one", None),
]


def test_an_argument_in_the_wrong_place_or_twice_or_of_no_use_is_refused(alice):
    for method, path, body in MISPLACED:
        assert (path, *refused(api(alice, method, path, body))) == (path, 400, "invalid_argument")


def test_null_in_a_body_is_the_same_as_leaving_it_out(alice, bob):
    asked = {"to": "bob", "body": "hi", "channel": None, "thread_root_id": None, "idempotency_key": key()}
    assert api(alice, "POST", "messages", asked).status == 201
    alice.call("create_channel", name="orders")
    assert api(bob, "POST", "channels/orders/members", {"handle": None}).json["members"] == 2
    assert api(bob, "POST", "channels/orders/members").json["members"] == 2


# --- The database is away -------------------------------------------------------------------------------------------


@contextmanager
def taken_away(folder, database_url):
    """A hub's database cannot be reached inside the block."""
    url = urlsplit(database_url)
    if url.scheme == "sqlite":
        folder.rename(folder.with_suffix(".away"))
        yield
        folder.with_suffix(".away").rename(folder)
        return
    name = url.path.removeprefix("/")
    with psycopg.connect(url._replace(path="/postgres").geturl(), autocommit=True) as admin:
        admin.execute(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS false")
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
        yield
        admin.execute(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS true")


@pytest.mark.fault("L25")
@pytest.mark.parametrize("through", sorted(DOORS))
def test_without_its_database_the_hub_says_so_and_stores_nothing_and_recovers(hub, tmp_path, through):
    folder = tmp_path / "data"
    folder.mkdir()
    port = free_port()
    with own_database(folder) as database_url:
        own = site(folder, public_url=f"http://127.0.0.1:{port}", database_url=database_url)
        token = own.token("owner", "--handle", "alice")
        agent: Any = DOORS[through](Address(port), token, None)  # type: ignore[arg-type]
        with own.served(port=port):
            if urlsplit(database_url).scheme != "sqlite":  # There a connection would keep the file that is taken away.
                agent.call("whoami")
            with taken_away(folder, database_url):
                same = {"name": "orders"}
                calls: list[tuple[str, dict]] = [
                    ("create_channel", same),
                    ("whoami", {}),
                    ("wait_for_messages", {"timeout_s": 0}),
                ]
                for tool, arguments in calls:
                    down = agent.refusal(tool, **arguments)
                    assert (down["code"], down["retry_after_s"]) == ("database_unavailable", 3)
                    assert (agent.answers[-1].status, agent.answers[-1].headers["retry-after"]) == (503, "3")
            eventually(lambda: agent.refusal("message_status", message_id=NOBODY)["code"] == "unknown_message")
            assert agent.call("create_channel", **same)["members"] == 1


# --- The description ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def description(running_hub):
    answer = running_hub.request("GET", "/api/openapi.json")
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    return answer.json


def test_the_description_is_valid_openapi_without_a_warning(tmp_path):
    call_command("spectacular", "--validate", "--fail-on-warn", "--file", str(tmp_path / "openapi.yaml"))


def test_every_operation_is_described_where_it_is_served(description):
    described = {
        name: (method.upper(), path)
        for path, methods in description["paths"].items()
        for method, operation in methods.items()
        for name in operation["x-operations"]
    }
    names = {o.name for o in operations.OPERATIONS}
    assert set(described) == names | {"add_member", "find_question", "answer_question"}
    for name in names:
        twin = http_twin(name, {n: f"{{{n}}}" for n in ("message_id", "channel", "name", "thread_root_id")})
        assert described[name] == (twin[0], "/api/v1/" + twin[1].replace(quote("{"), "{").replace(quote("}"), "}"))


def test_every_operation_says_what_it_takes_gives_and_refuses(description):
    ids = []
    for methods in description["paths"].values():
        for method, operation in methods.items():
            ids.append(operation["operationId"])
            assert all(operation[part] for part in ("summary", "description", "security"))
            good = operation["responses"].get("200") or operation["responses"]["201"]
            assert good["content"]["application/json"]["schema"]["$ref"].startswith("#/components/schemas/")
            assert {"400", "401", "403", "404", "409", "429", "503"} <= set(operation["responses"])
            assert method != "get" or "requestBody" not in operation
    assert len(ids) == len(set(ids))
    assert description["paths"]["/api/v1/inbox"]["get"]["security"] == [{"bearer": []}]
    assert description["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"


def test_the_description_takes_the_idempotency_key_as_a_header_or_as_a_field(description):
    for path in ("messages", "questions"):
        operation = description["paths"][f"/api/v1/{path}"]["post"]
        assert {"$ref": "#/components/parameters/IdempotencyKey"} in operation["parameters"]
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        for body in schema.get("anyOf", [schema]):
            assert "idempotency_key" in body["properties"]
            assert "idempotency_key" not in body["required"]
    header = description["components"]["parameters"]["IdempotencyKey"]
    assert (header["name"], header["in"], header["required"]) == ("Idempotency-Key", "header", False)


def test_every_reference_in_the_description_leads_somewhere(description):
    for reference in set(re.findall(r'"\$ref": ?"#/([^"]+)"', json.dumps(description))):
        found = description
        for part in reference.split("/"):
            found = found[part]
        assert found


def test_what_the_hub_answers_is_what_the_description_promises(description, agent, alice, bob, browser):
    ann = browser("ann")
    ann.request("GET", "profile")
    alice.call("create_channel", name="orders")
    sent = alice.post("orders", "hi @nobody", to=["bob", "carol"])
    asked = {"to": "ann", "question": "Which?", "options": ["a", "b"], "idempotency_key": key()}
    question = alice.call("ask_person", **asked)["question_id"]
    seen = [
        ("profile", "get", api(alice, "GET", "profile")),
        ("profile", "get", ann.request("GET", "profile")),
        ("profile", "put", api(alice, "PUT", "profile", {"handle": "alice"})),
        ("profiles", "get", api(alice, "GET", "profiles")),
        ("messages", "post", api(alice, "POST", "messages", {"to": "bob", "body": "hi"}, Idempotency_Key=key())),
        ("messages/{message_id}", "get", api(alice, "GET", f"messages/{sent['message_id']}")),
        ("messages/{message_id}", "patch", api(alice, "PATCH", f"messages/{sent['message_id']}", {"body": "hi"})),
        ("messages/{message_id}/body", "get", api(alice, "GET", f"messages/{sent['message_id']}/body")),
        ("messages/{message_id}", "delete", api(alice, "DELETE", f"messages/{sent['message_id']}")),
        ("preview", "post", api(alice, "POST", "preview", {"to": "bob", "body": "hi"})),
        ("inbox", "get", api(bob, "GET", "inbox?timeout_s=0")),
        ("inbox", "get", api(bob, "GET", "inbox?timeout_s=0")),
        ("inbox/pending", "get", api(bob, "GET", "inbox/pending")),
        ("inbox/acknowledge", "post", api(bob, "POST", "inbox/acknowledge", {"through_sequence": 9})),
        ("channels", "get", api(bob, "GET", "channels")),
        ("channels", "post", api(bob, "POST", "channels", {"name": "news"})),
        ("channels/{channel}/messages", "get", api(bob, "GET", "channels/orders/messages")),
        ("channels/{name}/members", "post", api(bob, "POST", "channels/orders/members")),
        ("channels/{name}/policy", "put", api(bob, "PUT", "channels/orders/policy", {"answers_agents": True})),
        ("channels/{name}/members", "delete", api(bob, "DELETE", "channels/orders/members")),
        ("threads/{thread_root_id}", "get", api(alice, "GET", f"threads/{sent['message_id']}")),
        ("search", "get", api(alice, "GET", "search?query=hi")),
        ("questions", "post", api(alice, "POST", "questions", {**asked, "idempotency_key": key()})),
        ("questions/{question_id}", "get", ann.request("GET", f"questions/{question}")),
        ("questions/{question_id}/answer", "post", ann.request("POST", f"questions/{question}/answer", {"choice": 0})),
        ("profile", "get", api(agent(), "GET", "profile")),
        ("search", "get", api(alice, "GET", "search")),
    ]
    for path, method, answer in seen:
        response = description["paths"][f"/api/v1/{path}"][method]["responses"][str(answer.status)]
        if "$ref" in response:
            response = description["components"]["responses"][response["$ref"].rpartition("/")[2]]
        schema = response["content"]["application/json"]["schema"]
        Draft202012Validator({**schema, "components": description["components"]}).validate(answer.json)
        assert set(response.get("headers", {})) <= {h.title().replace("Ratelimit", "RateLimit") for h in answer.headers}
    described = {(p, m) for p, methods in description["paths"].items() for m in methods}
    assert described == {(f"/api/v1/{path}", method) for path, method, _ in seen}


class Links(HTMLParser):
    """Collects what a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.inline = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.found += [value for name in ("src", "href") if (value := given.get(name))]
        self.inline += (tag == "script" and "src" not in given) or tag == "style" or "style" in given
        self.inline += any(name.startswith("on") for name in given)


def test_the_docs_page_loads_only_what_the_hub_itself_serves(running_hub):
    page = running_hub.request("GET", "/api/docs")
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    links = Links()
    links.feed(page.body.decode())
    assert links.inline == 0
    assert len(links.found) >= 4
    for link in links.found:
        assert (urlsplit(link).netloc, link[0]) == ("", "/")
        assert running_hub.request("GET", link).status == 200
    assert "//" not in running_hub.request("GET", "/static/api/docs.js").body.decode().replace("// ", "")


def test_the_docs_page_works_under_a_policy_that_forbids_everything_from_elsewhere(running_hub):
    policy = running_hub.request("GET", "/api/docs").headers["content-security-policy"]
    assert {"default-src 'none'", "script-src 'self'", "style-src 'self'"} <= set(policy.split("; "))


def test_nothing_was_stored_by_calls_that_were_refused(alice, bob):
    for body in ({"to": "bob", "body": "x" * 20_001}, {"to": "bob", "body": 1}, {"to": "bob"}, {"body": "hi"}):
        api(alice, "POST", "messages", body, Idempotency_Key=key())
    assert not Message.objects.exists()
