"""`manage.py serve`: this process serves the hub until it is told to stop.

The command stands in `config`, because serving wires all doors to one address; `config` is an app for the sake of its
commands only and has no tables.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from config.serving import CannotListenError, raise_file_limit

LOOPBACK = {"127.0.0.1", "localhost", "::1"}


def own_port() -> int:
    """On a hub for this machine PUBLIC_URL names the very port to listen on; behind a proxy it names the proxy's."""
    public = urlsplit(settings.PUBLIC_URL)
    return public.port or 80 if public.hostname in LOOPBACK and public.scheme == "http" else 8000


class Command(BaseCommand):
    help = "Serves the hub: pages, HTTP API, MCP and long polls. SIGTERM answers the open waits and then stops."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--server", choices=["uvicorn", "daphne"], default="uvicorn")
        parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (127.0.0.1)")
        parser.add_argument("--port", type=int, default=own_port(), help="the port to listen on (%(default)s)")

    def handle(self, *args: Any, server: str, host: str, port: int, **options: Any) -> None:
        raise_file_limit()

        def ready() -> None:
            self.stdout.write(f"Parley is at {settings.PUBLIC_URL} ({server} on {host}:{port}). Ctrl-C stops it.")
            self.stdout.flush()  # Into a pipe too: whoever started the hub may wait for this line.

        try:
            import_module(f"config.serving.on_{server}").serve(host, port, ready)
        except CannotListenError:
            raise CommandError(
                f"Cannot listen on {host}:{port}: is another program there, perhaps another Parley? Stop it, or change "
                "the port: in PUBLIC_URL in .env for a hub on this machine, with --port behind a proxy."
            ) from None
        self.stdout.write("Parley has stopped.")
