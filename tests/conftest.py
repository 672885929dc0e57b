"""Fixtures that most tests use: a hub, and agents on it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import TransactionTestCase
from hypothesis import settings as hypothesis_settings

from tests.hub import DOORS, Agent, Hub, new_agent

# No deadline, as others use the machine too; in CI the same examples each time, so that red means that something changed.
hypothesis_settings.register_profile("parley", deadline=None, derandomize=os.environ.get("CI") == "true")
hypothesis_settings.load_profile("parley")


@pytest.fixture(scope="session")
def running_hub(django_db_setup: None, django_db_blocker: Any) -> Iterator[Hub]:
    """One server for the whole run; its threads use the test database."""
    with django_db_blocker.unblock():
        hub = Hub().start()
        yield hub
        hub.stop()


@pytest.fixture
def hub(running_hub: Hub, transactional_db: None) -> Iterator[Hub]:
    """The server, with an empty database and nobody waiting."""
    yield running_hub
    running_hub.end_waits()


@pytest.fixture(params=sorted(DOORS))
def door(request: pytest.FixtureRequest) -> str:
    """The door a test goes through; a test that uses it runs once for each."""
    return str(request.param)


@pytest.fixture
def agent(hub: Hub, request: pytest.FixtureRequest) -> Callable[..., Agent]:
    """Makes an agent that acts as a handle: `agent("alice")`, through the test's door if it has one, else through MCP."""
    through = request.getfixturevalue("door") if "door" in request.fixturenames else "mcp"

    def make(handle: str | None = None, *, owner: str = "owner", door: str = through, **more: Any) -> Agent:
        return new_agent(hub, door, owner=owner, handle=handle, **more)

    return make


def _empty_tables(case: TransactionTestCase) -> None:
    """What stands between two tests: rows go, all in one transaction, as every foreign key is checked at its end.

    Django's own way truncates each table and makes all permissions anew, which takes longer than most tests.
    """
    kept = {"django_migrations", "django_content_type", "auth_permission"}
    with transaction.atomic(), connection.cursor() as cursor:
        for table in connection.introspection.django_table_names(only_existing=True):
            if table not in kept:
                cursor.execute(f"DELETE FROM {connection.ops.quote_name(table)}")


setattr(TransactionTestCase, "_fixture_teardown", _empty_tables)  # noqa: B010 - the stubs do not know it
