"""`manage.py serve` as a process: what a stop does to those who wait."""

from __future__ import annotations

import http.client
import json
import signal
from typing import Any

import pytest

from tests.processes import Site, free_port, site

WAITS = 100


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> tuple[Site, int]:
    port = free_port()
    return site(tmp_path_factory.mktemp("hub"), public_url=f"http://127.0.0.1:{port}"), port


def call(connection: http.client.HTTPConnection, token: str, tool: str, **arguments: Any) -> None:
    """Sends a tool call; its answer is read by `answer`."""
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
    headers = {
        "Authorization": f"Bearer {token}",
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2025-06-18",
    }
    connection.request("POST", "/mcp", json.dumps(body), headers)


def answer(connection: http.client.HTTPConnection) -> dict[str, Any]:
    """The whole answer; raises if it was cut."""
    response = connection.getresponse()
    body = response.read()
    assert response.status == 200, body
    assert len(body) == int(response.headers["Content-Length"])
    found: dict[str, Any] = json.loads(body)["result"]["structuredContent"]
    return found


@pytest.mark.parametrize("server", ["uvicorn", "daphne"])
def test_a_stop_during_100_waits_gives_each_a_whole_empty_page(hub, server):
    parley, port = hub
    token = parley.token("owner", "--handle", "patient")
    waits = [http.client.HTTPConnection("127.0.0.1", port, timeout=10) for _ in range(WAITS)]
    with parley.served(port=port, server=server) as process:
        for wait in waits:
            call(wait, token, "wait_for_messages", timeout_s=50)
        # Sent after them and answered: so the server has read all of them.
        last = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        call(last, token, "whoami")
        assert answer(last)["handle"] == "patient"
        process.send_signal(signal.SIGTERM)
        pages = [answer(wait) for wait in waits]
        assert process.wait(10) == 0
    assert [page["messages"] for page in pages] == [[]] * WAITS


def test_a_taken_port_is_said_so(hub):
    parley, port = hub
    with parley.served(port=port), pytest.raises(RuntimeError, match="Cannot listen on"):
        parley.manage("serve", "--port", str(port))
