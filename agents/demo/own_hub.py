"""A hub that lives as long as the demo: its own folder, database, secret and port, of which nothing is left afterwards."""

from __future__ import annotations

import os
import secrets
import socketserver
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

# What a program needs to run; nothing that configures the user's own hub.
KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV", "PYTHONPATH", "TERM")
READY = "Parley is at"


@dataclass(frozen=True, slots=True)
class OwnHub:
    """Its address, and the environment in which commands are about it."""

    manage: Path
    url: str
    environment: dict[str, str]

    def run(self, *arguments: str) -> int:
        """Runs a management command of this hub and returns its exit code."""
        command = [sys.executable, str(self.manage), *arguments]
        return subprocess.run(command, env=self.environment, check=False).returncode  # noqa: S603 - our own program


@contextmanager
def served(manage: Path) -> Iterator[OwnHub]:
    """Makes and serves a hub on this machine until the block ends. Raises `RuntimeError` if it does not start."""
    with TemporaryDirectory(prefix="parley-demo-") as folder:
        url = f"http://127.0.0.1:{_free_port()}"
        environment = {name: os.environ[name] for name in KEPT if name in os.environ} | {
            "PARLEY_ENV_FILE": os.devnull,
            "SECRET_KEY": secrets.token_urlsafe(48),
            "PUBLIC_URL": url,
            "DATABASE_URL": f"sqlite:///{folder}/parley.sqlite3",
            "LOG_LEVEL": "WARNING",
        }
        hub = OwnHub(manage, url, environment)
        if hub.run("migrate", "--verbosity", "0"):
            raise RuntimeError("The tables of the demo's own hub could not be made.")
        with _serving(hub):
            yield hub


@contextmanager
def _serving(hub: OwnHub) -> Iterator[None]:
    # In a session of its own: Ctrl-C reaches the demo first, which then stops the hub.
    process = subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, str(hub.manage), "serve"],
        env=hub.environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    printed = process.stdout
    assert printed is not None
    try:
        if READY not in printed.readline():
            raise RuntimeError("The demo's own hub did not start.")
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        printed.close()


def _free_port() -> int:
    with socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as listener:
        return int(listener.server_address[1])
