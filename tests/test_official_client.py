"""The official Python client, in both of its versions, against the hub: each in a process of its own."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

from tests.processes import ROOT
from tests.test_mcp_tools import TOOLS

SCRIPT = Path(__file__).with_name("official_client.py")
# Kept between runs; `var/` is not part of the checkout.
SECOND = ROOT / "var" / "official-client-2"
REQUIREMENT = "mcp==2.3.*"


def second() -> str:
    """The Python of an environment with version 2 of the client, which cannot live beside version 1; made once."""
    python = SECOND / "bin" / "python"
    SECOND.parent.mkdir(exist_ok=True)
    with SECOND.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Several runs may share a checkout.
        ready = SECOND / "ready"
        if not (ready.exists() and ready.read_text() == REQUIREMENT):
            venv.create(SECOND, clear=True, with_pip=True)
            install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", REQUIREMENT]
            done = subprocess.run(install, capture_output=True, text=True, check=False)
            if done.returncode:
                # Without an index, on somebody's train; CI allows no skip.
                pytest.skip(f"{REQUIREMENT} cannot be installed: {done.stderr.strip()[-300:]}")
            ready.write_text(REQUIREMENT)
    return str(python)


@pytest.mark.parametrize(
    ("python", "version", "protocol"),
    [(lambda: sys.executable, "1.", "2025-11-25"), (second, "2.3.", "2026-07-28")],
    ids=["version 1", "version 2"],
)
@pytest.mark.timeout(300)  # The first time it is installed.
def test_the_official_client_completes_the_conversation(hub, agent, python, version, protocol):
    environment = {"PATH": os.environ["PATH"], "ALICE": agent().token, "BOB": agent().token}
    command = [python(), str(SCRIPT), f"{hub.url}/mcp"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    saw: dict[str, Any] = json.loads(done.stdout)
    assert saw["version"].startswith(version)
    assert saw["protocol"] == protocol
    assert "claim_connected_profile" in saw["instructions"]
    assert set(saw["tools"]) == set(TOOLS)
    assert saw["before a claim"]["code"] == "no_profile"
    assert saw["claimed"]["created"]
    (asked,), (answered,) = saw["bob heard"]["messages"], saw["alice heard"]["messages"]
    assert (asked["body"], asked["sender"]["handle"], asked["route"]) == ("Are the orders in? 🦊", "alice", "direct")
    assert (answered["body"], answered["thread_root_id"]) == ("Yes.", asked["message_id"])
    assert saw["replied"]["unread_in_thread"] == 1
    assert (saw["idle"]["messages"], saw["idle"]["advice"]["action"]) == ([], "wait")
    assert saw["status"]["deliveries"][0]["state"] == "answered"
    refused, error = saw["refused"]
    assert refused
    assert (error["code"], error["did_you_mean"]) == ("unknown_handle", ["bob"])
    assert [m["body"] for m in saw["after giving up"]["messages"]] == ["And one more."]
