"""Runs the suite on SQLite, then on PostgreSQL where one answers: `python -m tests.run [pytest's own arguments]`.

PostgreSQL is looked for at PARLEY_TEST_POSTGRES, or on this machine at its usual port. The role needs the right to create
databases: the suite makes a test database of its own and drops it. With CI=true a missing PostgreSQL is a failure.
"""

from __future__ import annotations

import os
import subprocess
import sys

import psycopg

LOCAL = "postgres://parley:parley@127.0.0.1:5432/parley"
HINT = """\
  To let the suite use a PostgreSQL on this machine, once:
    sudo -u postgres psql -c "CREATE ROLE parley LOGIN CREATEDB PASSWORD 'parley'" -c "CREATE DATABASE parley OWNER parley"
  or give another one: PARLEY_TEST_POSTGRES=postgres://user:password@host/name make test"""


def why_not(url: str) -> str | None:
    """What keeps the suite from using this PostgreSQL; None when it can."""
    try:
        with psycopg.connect(url, connect_timeout=3) as connection:
            row = connection.execute(
                "SELECT rolcreatedb OR rolsuper FROM pg_roles WHERE rolname = current_user"
            ).fetchone()
    except psycopg.Error as failure:
        return str(failure).strip()
    return None if row and row[0] else "its role may not create databases"


def run(name: str, url: str | None, arguments: list[str]) -> int:
    """One run of the suite; returns pytest's exit code."""
    print(f"\n=== The suite on {name} ===", flush=True)
    environment = {key: value for key, value in os.environ.items() if key != "DATABASE_URL"}
    if url:
        environment["DATABASE_URL"] = url
    command = [sys.executable, "-m", "pytest", "-p", "tests.no_skips", *arguments]
    return subprocess.run(command, env=environment, check=False).returncode


def main(arguments: list[str]) -> int:
    worst = run("SQLite", None, arguments)
    url = os.environ.get("PARLEY_TEST_POSTGRES") or os.environ.get("DATABASE_URL_POSTGRES") or LOCAL
    obstacle = why_not(url)
    if obstacle is None:
        return max(worst, run("PostgreSQL", url, arguments))
    print(f"\n=== The suite did NOT run on PostgreSQL: {obstacle}\n{HINT}", flush=True)
    return max(worst, 1 if os.environ.get("CI") == "true" else 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
