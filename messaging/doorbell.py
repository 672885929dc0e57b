"""The doorbell: after a commit, "look again" for everybody who waits on one of the streams it touched.

A ring carries no content, so a lost, late or doubled one costs time and never a message: whoever waits listens before it
reads, and looks again unasked (`LOOK_AGAIN_S`). Each stream has its own bell: a ring wakes those who wait on it, however
many others wait. Between processes rings travel over a bus: PostgreSQL's LISTEN/NOTIFY, or datagram sockets beside an
SQLite database. This is the only module that touches either.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

import psycopg
from django.conf import settings
from django.db import connection, connections

from messaging import errors, store

logger = logging.getLogger(__name__)

# 25 s: half of the longest wait, so that a deaf process is late by one look, not by a whole wait.
LOOK_AGAIN_S = 25.0

# NOTIFY refuses payloads of 8,000 bytes.
MAX_PAYLOAD_BYTES = 7_900

CHANNEL = "parley_doorbell"

# Rings kept while the database is away: beyond that, everybody looks again by themselves before the list is of use.
MAX_GATHERED = 10_000


def stream_key(stream_id: int) -> str:
    """The bell of an inbox or a channel."""
    return str(stream_id)


class Bell:
    """What one waiter holds while it listens. `ended` says why the wait is over before its time, if it is."""

    __slots__ = ("_future", "_rung", "ended")

    def __init__(self) -> None:
        self.ended: str | None = None
        self._rung = False
        self._future: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """Look again. Called in the waiter's event loop."""
        self._rung = True
        if self._future and not self._future.done():
            self._future.set_result(None)

    def end(self, reason: str) -> None:
        """Stop waiting: `gone` (the client), `cancelled` (by the client) or `draining` (this process). The first one counts."""
        self.ended = self.ended or reason
        self.ring()

    def clear(self) -> None:
        """Forget earlier rings. What commits after this call rings again."""
        self._rung = False

    async def wait(self, timeout_s: float) -> None:
        """Returns when rung since `clear`, or after `timeout_s` seconds."""
        if self._rung or timeout_s <= 0:
            return
        loop = asyncio.get_running_loop()
        self._future = loop.create_future()
        timer = loop.call_later(timeout_s, self.ring)
        try:
            await self._future
        finally:
            timer.cancel()
            self._future = None


class Bus(Protocol):
    """Carries rings to other processes. Both methods belong to one event loop, but for `publish`.

    `listening` says whether rings of other processes arrive at this moment.
    """

    listening: bool

    def start(self, room: Room) -> None:
        """Begin to pass on to `room` what others publish."""

    def publish(self, keys: list[str]) -> None:
        """Tell the other processes; never raises for them being deaf, and never waits longer than a moment."""


class Room:
    """Those who wait in one event loop, by bell."""

    def __init__(self, loop: asyncio.AbstractEventLoop, bus: Bus) -> None:
        self.loop = loop
        self.bus = bus
        self.bells: dict[str, set[Bell]] = {}
        self.cancels: dict[str, set[Bell]] = {}
        self.waiting = 0

    def ring(self, keys: Iterable[str]) -> None:
        for key in keys:
            for bell in self.bells.get(key, ()):
                bell.ring()
            for bell in self.cancels.get(key, ()):
                bell.end("cancelled")

    def ring_all(self) -> None:
        """For what may have been missed: everybody looks once."""
        for bells in self.bells.values():
            for bell in bells:
                bell.ring()

    def end_all(self, reason: str) -> None:
        for bells in list(self.bells.values()):
            for bell in bells:
                bell.end(reason)


class Doorbell:
    """The bells of this process. `ring` may be called from any thread; `listen` belongs to an event loop."""

    def __init__(self) -> None:
        self.draining = False
        self._rooms: dict[asyncio.AbstractEventLoop, Room] = {}

    @property
    def waiting(self) -> int:
        """How many waits are open in this process."""
        return sum(room.waiting for room in self._open_rooms())

    @property
    def state(self) -> str:
        """Whether rings of other processes arrive here: `listening`, `deaf`, or `idle` while nobody has waited yet."""
        buses = [room.bus for room in self._open_rooms()]
        if not buses:
            return "idle"
        return "listening" if all(bus.listening for bus in buses) else "deaf"

    def waiters(self, key: str) -> int:
        """How many waits are open on one bell in this process."""
        return sum(len(room.bells.get(key, ())) for room in self._open_rooms())

    @contextmanager
    def listen(self, key: str, bell: Bell) -> Iterator[None]:
        """Inside the block `bell` is rung with `key`; leaving it always stops that."""
        room = self._room()
        room.bells.setdefault(key, set()).add(bell)
        room.waiting += 1
        if self.draining:
            bell.end("draining")
        try:
            yield
        finally:
            room.waiting -= 1
            _discard(room.bells, key, bell)

    @contextmanager
    def cancellable(self, key: str) -> Iterator[Bell]:
        """A new bell that a ring of `key` ends as `cancelled`, in whichever process that is rung."""
        room = self._room()
        bell = Bell()
        room.cancels.setdefault(key, set()).add(bell)
        try:
            yield bell
        finally:
            _discard(room.cancels, key, bell)

    def ring(self, *keys: str) -> None:
        """Rings bells here and in the other processes. Call it after the commit; it neither raises nor waits."""
        if not keys:
            return
        here = _running_loop()
        if here:
            self._room()  # A serving process rings through its own bus, also before anybody has waited there.
        rooms = self._open_rooms()
        for room in rooms:
            if room.loop is here:
                room.ring(keys)
            else:
                with suppress(RuntimeError):  # That loop has been closed meanwhile.
                    room.loop.call_soon_threadsafe(room.ring, keys)
        bus = next((r.bus for r in rooms if r.loop is here), None) or next((r.bus for r in rooms), None) or _bus()
        bus.publish(list(keys))

    def drain(self) -> None:
        """This process is about to stop: every wait, open or new, ends at once with an answer."""
        self.draining = True
        for room in self._open_rooms():
            with suppress(RuntimeError):
                room.loop.call_soon_threadsafe(room.end_all, "draining")

    def _open_rooms(self) -> list[Room]:
        return [room for room in list(self._rooms.values()) if not room.loop.is_closed()]

    def _room(self) -> Room:
        loop = asyncio.get_running_loop()
        if loop not in self._rooms:
            # A room holds its loop, so those of closed loops have to be let go by hand.
            for closed in [other for other in list(self._rooms) if other.is_closed()]:
                self._rooms.pop(closed, None)
            self._rooms[loop] = room = Room(loop, _bus())
            room.bus.start(room)
        return self._rooms[loop]


def _discard(bells: dict[str, set[Bell]], key: str, bell: Bell) -> None:
    bells[key].discard(bell)
    if not bells[key]:
        del bells[key]


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _bus() -> Bus:
    return PostgresBus() if store.on_postgres() else SocketBus(socket_folder())


# --- Between processes: datagram sockets beside an SQLite database --------------------------------------------------


def socket_folder() -> Path:
    """Where the processes that share one SQLite database find each other."""
    return Path(f"{connections['default'].settings_dict['NAME']}.bells").absolute()


class SocketBus:
    """Each serving process has a socket in one folder; a ring is a datagram to each of the others."""

    # A socket whose file has vanished hears nothing and is not told: so it is looked for. 2 s: as long as PostgreSQL's pause.
    CHECK_EVERY_S = 2.0
    # A receiver whose queue (10 datagrams) is full is tried again so soon and so often, each pause twice the last: a process
    # that is only busy is reached within a second, and one that hangs looks again by itself once it goes on.
    RETRY_AFTER_S = 0.02
    MAX_TRIES = 6

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # What has still to be told to peers that could not take it, and how often that was tried.
        self.late: dict[str, tuple[dict[str, None], int]] = {}
        self.listening = False
        self._own: str | None = None
        self._receiver: socket.socket | None = None

    def start(self, room: Room) -> None:
        """Opens the socket, and opens it anew whenever its file has vanished."""
        if self._own is None or not (self.folder / self._own).exists():
            try:
                self._open(room)
            except OSError:
                self.listening = False
                logger.warning("Rings of other processes do not arrive; waits look again by themselves.", exc_info=True)
        room.loop.call_later(self.CHECK_EVERY_S, self.start, room)

    def _open(self, room: Room) -> None:
        if self._receiver:
            room.loop.remove_reader(self._receiver)
            self._receiver.close()
            self._receiver = None
        self.folder.mkdir(mode=0o700, exist_ok=True)
        own = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._receiver = receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        receiver.setblocking(False)
        with _short_path(self.folder) as folder:
            receiver.bind(f"{folder}/{own}")
        self._own = own
        room.loop.add_reader(receiver, self._receive, receiver, room)
        self.listening = True
        # What was rung while nobody listened has been missed.
        room.ring_all()

    def _receive(self, receiver: socket.socket, room: Room) -> None:
        with suppress(BlockingIOError):
            while True:
                room.ring(receiver.recv(MAX_PAYLOAD_BYTES + 1).decode("ascii", "replace").split())

    def publish(self, keys: list[str]) -> None:
        try:
            self._publish(keys)
        except FileNotFoundError:
            return  # Nobody serves here.
        except OSError:
            # The commit stands, so its sender must not be told otherwise.
            logger.warning("Rings could not be passed on; waits elsewhere look again by themselves.", exc_info=True)

    def _publish(self, keys: list[str]) -> None:
        peers = [path.name for path in self.folder.iterdir() if path.name != self._own]
        if not peers:
            return
        told = dict.fromkeys(keys)
        for peer in peers:
            if peer in self.late:
                self.late[peer][0].update(told)  # Its next try tells it this too.
            elif not self._tell(peer, told):
                self._try_later(peer, told, tries=1)

    def _tell(self, peer: str, keys: Iterable[str]) -> bool:
        """Sends keys to one peer; False if its queue is full."""
        try:
            with _short_path(self.folder) as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                # A serving process must not wait for another; a command may, for a moment.
                sender.settimeout(0 if self._own else 0.2)
                for payload in _payloads(keys):
                    sender.sendto(payload, f"{folder}/{peer}")
        except (BlockingIOError, TimeoutError):
            return False
        except (ConnectionRefusedError, FileNotFoundError):
            with suppress(OSError):
                (self.folder / peer).unlink()  # Its process is gone.
        except OSError:
            logger.warning("A ring could not be passed on; waits elsewhere look again by themselves.", exc_info=True)
        return True

    def _try_later(self, peer: str, keys: dict[str, None], *, tries: int) -> None:
        loop = _running_loop()
        if loop and tries <= self.MAX_TRIES:
            self.late[peer] = (keys, tries)
            loop.call_later(self.RETRY_AFTER_S * 2**tries, self._try_again, peer)

    def _try_again(self, peer: str) -> None:
        keys, tries = self.late.pop(peer)
        if not self._tell(peer, keys):
            self._try_later(peer, keys, tries=tries + 1)


@contextmanager
def _short_path(folder: Path) -> Iterator[str]:
    """The folder under a name that fits into a socket address (107 bytes), however deep it lies."""
    if len(os.fsencode(folder)) <= 80 or not Path("/proc/self/fd").is_dir():
        yield str(folder)
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _payloads(keys: Iterable[str]) -> list[bytes]:
    """The keys, each once, in as few payloads as the limit allows."""
    payloads, current = [], ""
    for key in dict.fromkeys(keys):
        if current and len(current) + 1 + len(key) > MAX_PAYLOAD_BYTES - 40:
            payloads.append(current)
            current = ""
        current = f"{current} {key}" if current else key
    return [p.encode("ascii") for p in [*payloads, current] if p]


# --- Between processes: PostgreSQL's LISTEN/NOTIFY ------------------------------------------------------------------

# Tells a process its own notifications, which it has already rung, from those of others.
_origin = f"o{secrets.token_hex(6)}"


def _notifying(keys: list[str]) -> store.Steps[None]:
    for payload in _payloads(keys):
        yield store.Statement("SELECT pg_notify(%s, %s)", [CHANNEL, f"{_origin} {payload.decode()}"])


class PostgresBus:
    """One listening connection per serving process, and one NOTIFY at a time that carries all keys gathered meanwhile."""

    # Longer pauses would leave waits deaf longer than the database was away.
    PAUSES_S = (0.1, 0.3, 1.0, 2.0)

    def __init__(self) -> None:
        self._room: Room | None = None
        self._gathered: dict[str, None] = {}
        self._gathering = threading.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._something = asyncio.Event()
        self.listening = False

    def start(self, room: Room) -> None:
        self._room = room
        self._tasks = [
            room.loop.create_task(self._listen(room), name="parley-doorbell-listen"),
            room.loop.create_task(self._notify(), name="parley-doorbell-notify"),
        ]

    def publish(self, keys: list[str]) -> None:
        if self._room is None:
            self._notify_now(keys)
            return
        with self._gathering:
            self._gathered |= dict.fromkeys(keys)
        if _running_loop() is self._room.loop:
            self._something.set()
        else:
            with suppress(RuntimeError):
                self._room.loop.call_soon_threadsafe(self._something.set)

    def _notify_now(self, keys: list[str]) -> None:
        """For a process that serves nobody: a command, a worker, a test."""
        try:
            with connection.cursor() as cursor:
                for payload in _payloads(keys):
                    cursor.execute("SELECT pg_notify(%s, %s)", [CHANNEL, f"{_origin} {payload.decode()}"])
        except Exception:
            # The commit stands; waits look again by themselves.
            logger.warning("A ring could not be sent.", exc_info=True)

    async def _notify(self) -> None:
        while True:
            await self._something.wait()
            self._something.clear()
            with self._gathering:
                keys, self._gathered = list(self._gathered), {}
            if not keys:  # An earlier turn took them along.
                continue
            try:
                await store.arun(_notifying(keys))
            except (psycopg.Error, OSError, errors.Unavailable):
                logger.warning("%d rings could not be sent; they are kept for the next try.", len(keys))
                with self._gathering:
                    self._gathered = dict.fromkeys(keys[:MAX_GATHERED]) | self._gathered
                self._something.set()
                await asyncio.sleep(self.PAUSES_S[-1])

    async def _listen(self, room: Room) -> None:
        failures = 0
        while True:
            try:
                async with await self._connect() as listener:
                    await listener.execute(f"LISTEN {CHANNEL}")
                    self.listening, failures = True, 0
                    # What was rung while nobody listened has been missed.
                    room.ring_all()
                    async for notification in listener.notifies():
                        origin, *keys = notification.payload.split()
                        if origin != _origin:
                            room.ring(keys)
            except (psycopg.Error, OSError) as failure:
                logger.warning("The doorbell lost its connection and takes another: %s", failure)
            self.listening = False
            await asyncio.sleep(self.PAUSES_S[min(failures, len(self.PAUSES_S) - 1)])
            failures += 1

    async def _connect(self) -> psycopg.AsyncConnection[tuple[object, ...]]:
        keepalive = {"keepalives": 1, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
        if settings.DOORBELL_DATABASE_URL:
            return await psycopg.AsyncConnection.connect(settings.DOORBELL_DATABASE_URL, autocommit=True)
        arguments = store.connection_arguments() | keepalive | {"application_name": "parley-doorbell"}
        return await psycopg.AsyncConnection.connect(autocommit=True, **arguments)


doorbell = Doorbell()
