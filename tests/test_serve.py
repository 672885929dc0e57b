"""`manage.py serve` as a process: what a stop does to those who wait, and how two processes are one hub."""

from __future__ import annotations

import http.client
import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.hub import Address
from tests.processes import Site, free_port, own_database, site, wait_until

WAITS = 100


@pytest.fixture(scope="module")
def parley(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("parley")
    with own_database(folder) as database_url:
        yield site(folder, public_url="http://127.0.0.1:8000", database_url=database_url)


def call(port: int, token: str, tool: str, **arguments: Any) -> http.client.HTTPConnection:
    """Sends a tool call; its answer is read by `answer`, which gives up after 10 s."""
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("POST", "/mcp", json.dumps(body), headers)
    return connection


def answer(connection: http.client.HTTPConnection) -> dict[str, Any]:
    """The whole answer; raises if it was cut."""
    response = connection.getresponse()
    body = response.read()
    assert response.status == 200, body
    assert len(body) == int(response.headers["Content-Length"])
    found: dict[str, Any] = json.loads(body)["result"]["structuredContent"]
    return found


def readiness(port: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Address(port).request("GET", "/readyz").body)
    return found


@pytest.mark.parametrize("server", ["uvicorn", "daphne"])
def test_a_stop_during_100_waits_gives_each_a_whole_empty_page(parley, server):
    token, port = parley.token("owner", "--handle", "patient"), free_port()
    with parley.served(port=port, server=server) as process:
        waits = [call(port, token, "wait_for_messages", timeout_s=50) for _ in range(WAITS)]
        wait_until(lambda: readiness(port)["open_waits"] == WAITS, "all waits are open")
        process.send_signal(signal.SIGTERM)
        pages = [answer(wait) for wait in waits]
        assert process.wait(10) == 0
    assert [page["messages"] for page in pages] == [[]] * WAITS


@pytest.mark.mutant(
    "messaging/doorbell.py",
    "self._room()  # A serving process rings",
    "pass  # A serving process rings",
    on="postgresql",
)
@pytest.mark.parametrize("server", ["uvicorn", "daphne"])
def test_a_send_through_a_process_where_nobody_ever_waited_wakes_a_wait_in_another(parley, server):
    alice, bob = parley.token("owner", "--handle", "alice"), parley.token("owner", "--handle", "bob")
    here, there = free_port(), free_port()
    with parley.served(port=here), parley.served(port=there, server=server):
        wait = call(here, bob, "wait_for_messages", timeout_s=50)
        wait_until(lambda: readiness(here)["open_waits"] == 1, "the wait is open")
        wait_until(lambda: readiness(here)["doorbell"] == "listening", "its process hears others")
        sent = answer(call(there, alice, "send_agent_message", to="bob", body="hello", idempotency_key=f"key-{there}"))
        assert [message["message_id"] for message in answer(wait)["messages"]] == [sent["message_id"]]


def test_a_taken_port_is_said_so(parley):
    port = free_port()
    with parley.served(port=port), pytest.raises(RuntimeError, match="Cannot listen on"):
        parley.manage("serve", "--port", str(port))
