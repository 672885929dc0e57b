"""Hubs as processes of their own, for tests of what only a whole process has: signals, restarts, commands, two servers."""

from __future__ import annotations

import os
import re
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TextIO
from urllib.parse import quote

import psycopg
from django.db import connections

ROOT = Path(__file__).resolve().parent.parent
TOKEN = re.compile(r"prl_[A-Za-z0-9_-]{43}")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Site(NamedTuple):
    """One hub's settings: a database, a secret and an address; any number of processes may serve it."""

    environment: dict[str, str]

    def manage(self, *arguments: str) -> str:
        """Runs a management command to its end and returns what it printed."""
        command = [sys.executable, "manage.py", *arguments]
        done = subprocess.run(command, cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"manage.py {arguments[0]} failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    def token(self, owner: str, *arguments: str) -> str:
        """A fresh token of an agent of this owner; the account is made if there is none yet."""
        found = TOKEN.search(self.manage("connect_agent", "--owner", owner, *arguments))
        if found is None:
            raise RuntimeError("manage.py connect_agent printed no token.")
        return found[0]

    def shell(self, script: str) -> str:
        """Runs a script in a process of its own and returns what it printed."""
        return self.manage("shell", "--no-imports", "-c", script)

    def agents(self, handles: Sequence[str | None]) -> list[str]:
        """Fresh tokens of agents of the owner, made by one command. `None` for one that has not claimed a handle."""
        script = (
            "from django.contrib.auth import get_user_model\n"
            "from agents.connections.credentials import issue_connection\n"
            "owner = get_user_model().objects.get(username='owner')\n"
            f"for handle in {list(handles)!r}:\n"
            "    print(issue_connection(owner=owner, name='agent', handle=handle)[1])\n"
        )
        return self.shell(script).split()

    @contextmanager
    def served(
        self, *, port: int, server: str = "uvicorn", errors: TextIO | None = None
    ) -> Iterator[subprocess.Popen[str]]:
        """Serves the hub until the block ends, and waits until it listens. `errors`: where its log goes."""
        command = [sys.executable, "manage.py", "serve", "--server", server, "--port", str(port)]
        process = subprocess.Popen(
            command, cwd=ROOT, env=self.environment, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        printed = process.stdout
        assert printed is not None
        try:
            if "Parley is at" not in printed.readline():
                raise RuntimeError("The hub did not start.")
            yield process
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            printed.close()


@contextmanager
def own_database(folder: Path) -> Iterator[str]:
    """The URL of an empty database of the block's own, on the engine of this run; a file in `folder` on SQLite."""
    known = connections["default"].settings_dict
    if known["ENGINE"] == "django.db.backends.sqlite3":
        yield f"sqlite:///{folder}/parley.sqlite3"
        return
    name = f"parley_own_{os.getpid()}_{secrets.token_hex(3)}"
    password = f":{quote(known['PASSWORD'])}" if known["PASSWORD"] else ""
    server = f"postgres://{known['USER']}{password}@{known['HOST'] or '127.0.0.1'}:{known['PORT'] or 5432}"
    with psycopg.connect(f"{server}/postgres", autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
        try:
            yield f"{server}/{name}"
        finally:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


def site(folder: Path, *, public_url: str, database_url: str | None = None) -> Site:
    """A fresh hub with its tables, on SQLite in `folder` if no database is given."""
    made = Site(
        {
            "PATH": os.environ["PATH"],
            "PARLEY_ENV_FILE": os.devnull,
            "SECRET_KEY": secrets.token_urlsafe(48),
            "PUBLIC_URL": public_url,
            "DATABASE_URL": database_url or f"sqlite:///{folder}/parley.sqlite3",
            "DJANGO_SUPERUSER_PASSWORD": secrets.token_urlsafe(16),
        }
    )
    made.manage("migrate", "--verbosity", "0")
    made.manage("createsuperuser", "--noinput", "--username", "owner", "--email", "owner@example.org")
    return made


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = 5.0) -> None:
    """Looks until `condition()` is true; for what another process does and tells nobody."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        time.sleep(0.02)
