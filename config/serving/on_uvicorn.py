"""The hub on uvicorn: the quicker of the two to wake a waiter, and so the default."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import uvicorn
from django.conf import settings
from django.utils.module_loading import import_string
from uvicorn.server import HANDLED_SIGNALS

from config.serving import BACKLOG, DRAIN_S, KEEP_ALIVE_S, CannotListenError, settle_memory
from messaging import store
from messaging.doorbell import doorbell

if TYPE_CHECKING:
    from socket import socket


class Server(uvicorn.Server):
    """uvicorn with the hub's way of stopping (see `config.serving`); calls `ready` once it listens."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.ready = ready

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        # uvicorn's own handlers raise the signal once more after the stop, and a clean stop would look like a kill.
        loop = asyncio.get_running_loop()
        for number in HANDLED_SIGNALS:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in HANDLED_SIGNALS:
                loop.remove_signal_handler(number)

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        settle_memory()
        self.ready()

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        # The bells ring on the loop's next turn. By then uvicorn has closed the listeners and has marked each open
        # connection to be closed after its answer, so that no client comes back on it in between.
        doorbell.drain()
        await super().shutdown(sockets)
        # A pool that is just trying to connect would outlive the cancelling of all tasks, and this process with it.
        await store.close_pool()


def serve(host: str, port: int, ready: Callable[[], None]) -> None:
    """Serves until a signal; raises `CannotListenError`."""
    server = Server(
        uvicorn.Config(
            import_string(settings.ASGI_APPLICATION),
            host=host,
            port=port,
            http="httptools",
            loop="uvloop",
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=DRAIN_S,
            proxy_headers=settings.SECURE_PROXY_SSL_HEADER is not None,
            server_header=False,
            access_log=False,
            log_config=None,
            log_level="warning",
        ),
        ready,
    )
    try:
        server.run()
    except SystemExit as failure:
        if not server.started:
            raise CannotListenError from failure
        raise
