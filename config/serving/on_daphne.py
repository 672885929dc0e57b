"""The hub on daphne, Django's reference server: slower, and with HTTP/2 where its extras are installed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from signal import SIGINT, SIGTERM
from typing import Any

from daphne.http_protocol import WebRequest

# Importing it installs Twisted's reactor on an asyncio loop, which has to come before the reactor itself.
from daphne.server import Server as Daphne
from daphne.server import twisted_loop
from django.conf import settings
from django.utils.module_loading import import_string
from twisted.internet import reactor

from config.serving import BACKLOG, DRAIN_S, CannotListenError, settle_memory
from messaging.doorbell import doorbell


class Server(Daphne):
    """daphne with the hub's way of stopping (see `config.serving`); calls `ready` once it listens."""

    def __init__(self, ready: Callable[[], None], **options: Any) -> None:
        super().__init__(**options)
        self.ready = ready
        self.ports: list[Any] = []
        self.stopping: asyncio.Task[None] | None = None

    def listen_success(self, port: Any) -> None:
        super().listen_success(port)
        self.ports.append(port)
        settle_memory()
        self.ready()

    def handle_signal(self) -> None:
        if self.stopping is None:
            self.stopping = twisted_loop.create_task(self.stop_gently())
        else:
            self.stop()

    async def stop_gently(self) -> None:
        for port in self.ports:
            port.stopListening()
        for request in self.connections:
            if isinstance(request, WebRequest) and not request.finished:
                # No client shall come back on this connection after its answer.
                request.responseHeaders.setRawHeaders(b"connection", [b"close"])
                request.channel.persistent = False
        doorbell.drain()
        try:
            async with asyncio.timeout(DRAIN_S):
                # Looking is all one can do: neither daphne nor Twisted tells when the last answer has left.
                while self.is_answering() or self.is_writing():  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        except TimeoutError:
            pass
        self.stop()

    def is_answering(self) -> bool:
        applications = [details.get("application_instance") for details in self.connections.values()]
        return any(application and not application.done() for application in applications)

    @staticmethod
    def is_writing() -> bool:
        """Stopping the reactor drops what it has not yet handed to the system."""
        return bool(reactor.getWriters())  # type: ignore[misc]  # The reactor is a module in Twisted's types.

    def kill_all_applications(self) -> Any:
        # The original takes for granted that each connection has an application, which an idle one has not.
        self.connections = {k: v for k, v in self.connections.items() if "application_instance" in v}
        return super().kill_all_applications()


def serve(host: str, port: int, ready: Callable[[], None]) -> None:
    """Serves until a signal; raises `CannotListenError`."""
    interface = host.replace(":", r"\:")
    server = Server(
        ready,
        application=import_string(settings.ASGI_APPLICATION),
        endpoints=[f"tcp:port={port}:interface={interface}:backlog={BACKLOG}"],
        signal_handlers=False,
        proxy_forwarded_address_header="X-Forwarded-For" if settings.SECURE_PROXY_SSL_HEADER else None,
        proxy_forwarded_proto_header="X-Forwarded-Proto" if settings.SECURE_PROXY_SSL_HEADER else None,
        server_name="",
        verbosity=0,
    )
    for number in (SIGINT, SIGTERM):
        twisted_loop.add_signal_handler(number, server.handle_signal)
    server.run()
    if not server.ports:
        raise CannotListenError
