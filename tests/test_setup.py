"""`manage.py setup`: what a fresh hub tells, once."""

from __future__ import annotations

import io

import pytest
from django.contrib.auth import authenticate, get_user_model
from django.core.management import call_command

from agents.connections.first_account import account_name
from agents.connections.models import Connection
from messaging.models import Channel
from tests.processes import TOKEN

pytestmark = pytest.mark.django_db


def setup(monkeypatch: pytest.MonkeyPatch, user: str = "anna") -> str:
    monkeypatch.setenv("USER", user)
    printed = io.StringIO()
    call_command("setup", stdout=printed)
    return printed.getvalue()


def test_a_fresh_hub_prints_an_account_that_works_and_a_token_for_each_client(monkeypatch):
    printed = setup(monkeypatch)
    password = printed.split("Password")[1].split()[0]
    account = authenticate(username="anna", password=password)
    assert account is not None
    assert account.is_superuser
    tokens = TOKEN.findall(printed)
    assert len(set(tokens)) == len(tokens) == Connection.objects.filter(owner=account).count() == 2
    assert (
        f'claude mcp add --transport http parley http://127.0.0.1:8000/mcp --header "Authorization: Bearer {tokens[0]}"'
        in printed
    )
    assert f"export PARLEY_TOKEN={tokens[1]}\n" in printed
    assert "codex mcp add parley --url http://127.0.0.1:8000/mcp --bearer-token-env-var PARLEY_TOKEN\n" in printed
    assert 'default_tools_approval_mode = "approve"\n' in printed
    assert Channel.objects.get().name == "general"


def test_a_second_setup_keeps_everything_and_prints_no_secret(monkeypatch):
    setup(monkeypatch)
    before = (get_user_model().objects.get().password, list(Connection.objects.values("token_hash", "revoked_at")))
    printed = setup(monkeypatch, user="bob")
    assert (
        get_user_model().objects.get().password,
        list(Connection.objects.values("token_hash", "revoked_at")),
    ) == before
    assert not TOKEN.search(printed)
    assert "manage.py connect_agent --owner anna" in printed
    assert "manage.py changepassword anna" in printed


@pytest.mark.parametrize(
    ("user", "name"),
    [("anna", "anna"), ("Anna", "anna"), ("root", "owner"), ("admin", "owner"), ("a.b", "owner"), ("", "owner")],
)
def test_the_account_is_named_after_the_user_where_that_can_be_a_handle(user, name):
    assert account_name(user) == name
