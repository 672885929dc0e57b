"""The first account of a fresh hub, with what it needs to let two agents talk: a channel and two connections."""

from __future__ import annotations

import secrets
from typing import NamedTuple

from django.contrib.auth import get_user_model
from django.db import transaction

from agents.connections.credentials import issue_connection
from messaging import errors, handles
from messaging.access import as_caller
from messaging.channels import create_channel
from messaging.profiles import ensure_person


class FirstAccount(NamedTuple):
    """What is told once and kept nowhere readable: a password, and a token for each of two clients."""

    name: str
    password: str
    claude_code_token: str
    codex_token: str


def account_name(wish: str) -> str:
    """The wish, if it may also be the person's handle; else `owner`."""
    name = wish.lower()
    try:
        return handles.check_handle(name) if name != "root" else "owner"
    except errors.Invalid:
        return "owner"


def create_first_account(*, wish: str) -> FirstAccount | None:
    """Makes the operator's account, its person, the channel `general` and two connections; None if there are accounts."""
    accounts = get_user_model()
    with transaction.atomic():
        if accounts.objects.exists():
            return None
        name, password = account_name(wish), secrets.token_urlsafe(12)
        owner = accounts.objects.create_superuser(username=name, password=password)
        create_channel(by=as_caller(ensure_person(owner)), name="general", topic="For everything and everybody.")
        _, claude_code_token = issue_connection(owner=owner, name="Claude Code")
        _, codex_token = issue_connection(owner=owner, name="Codex")
    return FirstAccount(name, password, claude_code_token, codex_token)
