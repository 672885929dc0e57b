"""Writes `.env` for a hub on this machine: `python -m config.first_start [--port 8000]`, the first step of `make run`.

A program of its own, without Django: the settings need these values before anything of Django can start. What is there
already is kept: an existing file is never touched, so a second start is the same hub. A team writes its own file or
environment (README.md, "Settings") and does not need this.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from pathlib import Path
from urllib.parse import quote

BASE_DIR = Path(__file__).resolve().parent.parent


def write_env(path: Path, *, data: Path, port: int) -> bool:
    """Writes the file, readable by its owner only, unless there is one; says whether it did."""
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        # Never readable by others, not even for the moment between writing and chmod: it holds the secret key.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "w") as file:
        file.write(
            "# Made by `make run` for this machine. Keep it secret: whoever knows SECRET_KEY can sign in as anybody.\n"
            f"SECRET_KEY={secrets.token_urlsafe(48)}\n"
            f"PUBLIC_URL=http://127.0.0.1:{port}\n"
            f"DATABASE_URL=sqlite:///{quote(str(data / 'parley.sqlite3'))}\n"
        )
    return True


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m config.first_start", description="Write .env for this machine.")
    parser.add_argument("--port", type=int, help="where the hub shall listen (8000)")
    port: int | None = parser.parse_args(arguments).port
    if {"SECRET_KEY", "PUBLIC_URL", "DATABASE_URL"} <= os.environ.keys():
        return 0
    path = Path(os.environ.get("PARLEY_ENV_FILE", BASE_DIR / ".env"))
    if write_env(path, data=BASE_DIR / "var", port=port or 8000):
        print(f"Wrote {path}: the settings of this hub.")
    elif port and f":{port}" not in path.read_text():
        print(f"{path} says where this hub listens; edit PUBLIC_URL there to move it to port {port}.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
