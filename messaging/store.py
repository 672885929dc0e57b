"""How statements reach the database: two executors for one set of rules.

A rule is a generator ("steps") that yields `Statement`s, receives their rows, and returns its result. It knows no connection,
so one text of the rule runs on Django's connection (`run`: HTTP API, admin, commands, SQLite) and on psycopg's asynchronous
pool (`arun`: the long-poll doors on PostgreSQL), where neither a thread nor a Django request is held. `atomic` makes steps
one transaction. Both executors turn the drivers' failures into `errors.Unavailable`, so that a rule is never half done
unnoticed: whatever raises inside `atomic` has rolled back. The statements themselves stand in `statements`.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import cache, lru_cache
from typing import Any, NamedTuple, Protocol, TypeVar
from uuid import UUID
from weakref import WeakKeyDictionary

import psycopg
import psycopg_pool
from django.conf import settings
from django.db import Error as DjangoError
from django.db import connection, connections, transaction
from psycopg.types.json import Jsonb

from messaging import errors

T = TypeVar("T")
Row = tuple[Any, ...]


class Statement(NamedTuple):
    """One SQL text with `%s` for each parameter; it runs as it stands on PostgreSQL and SQLite.

    `many` says how several of the same text become one statement (`messaging.batches`); None if they do not.
    """

    sql: str
    params: Sequence[Any] = ()
    many: Many | None = None


class Many(Protocol):
    """How statements of one text are run as one. Those of a lower `rank` go first."""

    @property
    def rank(self) -> int: ...

    def combine(self, statements: Sequence[Statement]) -> Statement:
        """One statement that does what all of them would do."""

    def split(self, statements: Sequence[Statement], rows: list[Row]) -> list[list[Row]]:
        """Its rows as each of them would have returned them."""


class Json(NamedTuple):
    """A parameter for a JSON column."""

    value: Any


BEGIN = Statement("BEGIN")
COMMIT = Statement("COMMIT")
ROLLBACK = Statement("ROLLBACK")

Steps = Generator[Statement, list[Row], T]


@cache  # In an event loop each request would make a connection object, only to be asked this.
def on_postgres() -> bool:
    return connection.vendor == "postgresql"


def one_of(column: str) -> str:
    """The condition that a column is among the values of one list parameter."""
    return f"{column} = ANY(%s)" if on_postgres() else f"{column} IN (SELECT value FROM json_each(%s))"


def records(**columns: str) -> str:
    """A FROM item `v` with these columns (name and PostgreSQL type) for one `Json` parameter: a list of objects."""
    if on_postgres():
        return f"jsonb_to_recordset(%s) AS v({', '.join(f'{name} {kind}' for name, kind in columns.items())})"
    # Not `->>`, which SQLite has only since 3.38.
    fields = ", ".join(f"json_extract(value, '$.{name}') AS {name}" for name in columns)
    return f"(SELECT {fields} FROM json_each(%s)) AS v"


def as_text(time: datetime | None) -> str | None:
    """A time inside a `Json` parameter, so that it comes out as the database writes it in a column."""
    if time is None:
        return None
    return time.isoformat() if on_postgres() else str(time.astimezone(UTC).replace(tzinfo=None))


def utc(value: Any) -> datetime | None:
    """A time as a driver returned it (SQLite gives text, or a time without zone) as an aware time in UTC."""
    if value is None:
        return None
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    time: datetime = value
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def uid(value: Any) -> UUID:
    """An id as a driver returned it (SQLite gives 32 hexadecimal digits) as a UUID."""
    return value if isinstance(value, UUID) else UUID(value)


def atomic(steps: Steps[T]) -> Steps[T]:
    """The steps as one transaction: committed when they return, rolled back when they raise."""
    yield BEGIN
    try:
        result = yield from steps
    except BaseException:
        yield ROLLBACK
        raise
    yield COMMIT
    return result


def one(statement: Statement) -> Steps[list[Row]]:
    """A single statement as steps."""
    return (yield statement)


# --- Failures -------------------------------------------------------------------------------------------------------


def _busy() -> errors.Unavailable:
    return errors.Unavailable(
        "The hub is busy; nothing was stored. Try the same call again in a second, with the same idempotency key.",
        code="busy",
        retry_after_s=1,
    )


def _down() -> errors.Unavailable:
    return errors.Unavailable(
        # Not that nothing was stored: the connection may have been lost with the answer to the commit.
        "The hub cannot reach its database. Try the same call again in a few seconds, with the same idempotency key: nothing "
        "is sent twice.",
        code="database_unavailable",
        retry_after_s=3,
    )


def as_parley_error(failure: BaseException) -> BaseException:
    """What a driver's failure means for the caller; anything that is not about availability is returned as it is."""
    cause = failure.__cause__ if isinstance(failure, DjangoError) else failure
    if isinstance(cause, psycopg.errors.LockNotAvailable | psycopg.errors.DeadlockDetected):
        return _busy()
    if isinstance(cause, psycopg_pool.TooManyRequests):
        return _busy()
    if isinstance(cause, psycopg_pool.PoolTimeout):
        # Only Django's own pool comes here; that of the doors is asked in `arun`.
        return _exhausted(connection.pool)  # type: ignore[attr-defined]
    if isinstance(cause, sqlite3.OperationalError):
        primary = cause.sqlite_errorcode & 0xFF
        if primary in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            return _busy()
        # SQLITE_ERROR is a statement that is wrong: a fault of ours, which no waiting mends.
        return failure if primary == sqlite3.SQLITE_ERROR else _down()
    if isinstance(cause, psycopg.OperationalError | psycopg.InterfaceError | psycopg_pool.PoolClosed | OSError):
        return _down()
    return failure


def _exhausted(full_or_cut_off: Any) -> errors.Unavailable:
    """A pool gave no connection in time: all are in use, or it could not make any."""
    stats = full_or_cut_off.get_stats()
    return _busy() if stats["pool_size"] >= stats["pool_max"] else _down()


@contextmanager
def translated() -> Iterator[None]:
    """Turns the drivers' failures inside the block into `errors.Unavailable`."""
    try:
        yield
    except (DjangoError, psycopg.Error, sqlite3.Error, OSError) as failure:
        translation = as_parley_error(failure)
        if translation is failure:
            raise
        raise translation from failure


# --- Django's connection --------------------------------------------------------------------------------------------


class _Session:
    """What an executor needs of a connection; this one speaks through Django, on either engine."""

    def __init__(self) -> None:
        self._cursor = connection.cursor()
        self._adapt = _for_postgres if on_postgres() else _for_sqlite
        self._blocks: list[transaction.Atomic] = []

    def execute(self, statement: Statement) -> list[Row]:
        if statement is BEGIN:
            self._blocks.append(transaction.atomic())
            self._blocks[-1].__enter__()
        elif statement is COMMIT:
            self._blocks.pop().__exit__(None, None, None)
        elif statement is ROLLBACK:
            self._blocks.pop().__exit__(errors.ParleyError, errors.ParleyError("rolled back"), None)
        else:
            self._cursor.execute(statement.sql, [self._adapt(p) for p in statement.params])
            return self._cursor.fetchall() if self._cursor.description else []
        return []

    def close(self) -> None:
        while self._blocks:  # Interrupted between two statements.
            self.execute(ROLLBACK)
        self._cursor.close()


class _SqliteSession(_Session):
    """On the driver's connection under Django's, which halves what a send costs. Not inside a transaction of Django's."""

    def __init__(self) -> None:
        connection.ensure_connection()
        self._driver: sqlite3.Connection = connection.connection

    def execute(self, statement: Statement) -> list[Row]:
        if statement is BEGIN:
            self._driver.execute("BEGIN IMMEDIATE")
            return []
        if statement is ROLLBACK and not self._driver.in_transaction:
            return []  # SQLite rolls back by itself where it cannot go on, as when the disk is full.
        cursor = self._driver.execute(_question_marks(statement.sql), [_for_sqlite(p) for p in statement.params])
        return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        self.execute(ROLLBACK)  # Interrupted between two statements.


@lru_cache(maxsize=500)
def _question_marks(sql: str) -> str:
    """`%s` as SQLite writes it; none of our statements has the letters in a literal."""
    return sql.replace("%s", "?")


def _for_sqlite(value: Any) -> Any:
    match value:
        case str() | int() | None | bytes():
            return value
        case Json():
            return json.dumps(value.value, ensure_ascii=False)
        case datetime():
            return as_text(value)
        case UUID():
            return value.hex
        case list() | tuple():
            return json.dumps([_for_sqlite(v) for v in value])
        case _:
            return value


def _for_postgres(value: Any) -> Any:
    if isinstance(value, Json):
        return Jsonb(value.value)
    return [_for_postgres(v) for v in value] if isinstance(value, list) else value


def run(steps: Steps[T]) -> T:
    """Drives steps on this thread's Django connection and returns their result. Raises what they raise, or `Unavailable`."""
    rows: list[Row] | None = None  # What the generator is sent first has to be None.
    failure: BaseException | None = None
    with translated(), closing(_session()) as session:
        while True:
            try:
                statement = steps.throw(failure) if failure else steps.send(rows)  # type: ignore[arg-type]
            except StopIteration as end:
                result: T = end.value
                return result
            failure, rows = None, []
            try:
                rows = session.execute(statement)
            except (DjangoError, psycopg.Error, sqlite3.Error, OSError) as raised:
                failure = as_parley_error(raised)


def _session() -> _Session:
    return _Session() if on_postgres() or connection.in_atomic_block else _SqliteSession()


# --- Worker threads -------------------------------------------------------------------------------------------------

# 6: enough to keep two cores and the database busy; each holds a database connection only for one call. With those of
# Django's requests (`config.asgi`) they are as many as Django's pool has connections.
_workers = ThreadPoolExecutor(max_workers=6, thread_name_prefix="parley-db")


async def in_thread(work: Callable[[], T]) -> T:
    """Runs blocking work (Django's ORM) in a bounded pool of threads. It is finished even if the caller has gone meanwhile."""

    def call() -> T:
        with translated():
            try:
                return work()
            finally:
                if on_postgres():
                    connection.close()  # Hands it back to Django's pool.
                else:
                    connection.close_if_unusable_or_obsolete()

    return await asyncio.shield(asyncio.get_running_loop().run_in_executor(_workers, call))


# --- The asynchronous pool ------------------------------------------------------------------------------------------

_pools: WeakKeyDictionary[asyncio.AbstractEventLoop, psycopg_pool.AsyncConnectionPool[Any]] = WeakKeyDictionary()


def connection_arguments() -> dict[str, Any]:
    """How to reach the database of Django's settings with psycopg itself."""
    known = connections["default"].settings_dict
    wanted = {"dbname": known["NAME"], "user": known["USER"], "password": known["PASSWORD"], "host": known["HOST"]}
    options = f"-c lock_timeout={settings.LOCK_TIMEOUT_MS} -c timezone=UTC"
    arguments = {k: v for k, v in wanted.items() if v} | {"connect_timeout": 3, "options": options}
    return arguments | ({"port": known["PORT"]} if known["PORT"] else {}) | {"application_name": "parley"}


async def pool() -> psycopg_pool.AsyncConnectionPool[Any]:
    """The pool of this event loop, opened at first use."""
    loop = asyncio.get_running_loop()
    if loop not in _pools:
        _pools[loop] = psycopg_pool.AsyncConnectionPool(
            kwargs={"autocommit": True, **connection_arguments()},
            min_size=1,
            max_size=settings.DOOR_POOL_MAX,
            # 3 s: who cannot get a connection by then is told `busy` instead of queueing into the client's own limit.
            timeout=3,
            # Given up early, and begun anew by the next call: the pool's growing pauses would outlast a database's restart.
            reconnect_timeout=2,
            open=False,
        )
        await _pools[loop].open()
    return _pools[loop]


async def close_pool() -> None:
    """Closes the pool of this event loop, if there is one, for good: the loop is about to end.

    A pool left open would keep the loop from ending, as the pool's workers do not heed the cancelling of their tasks.
    """
    opened = _pools.get(asyncio.get_running_loop())
    if opened:
        await opened.close()


async def arun(steps: Steps[T]) -> T:
    """Drives steps without holding a thread where the driver can (PostgreSQL), in a worker thread where it cannot (SQLite).

    Raises what the steps raise, or `Unavailable`.
    """
    if not on_postgres():
        return await in_thread(lambda: run(steps))
    with translated():
        statement = next(steps)
        # A pooled connection may have died unnoticed since its last use (the server was restarted): as long as nothing was
        # done on it, another is taken. All may have died: the one after them is new.
        for _ in range(settings.DOOR_POOL_MAX + 1):
            opened = await pool()
            try:
                async with opened.connection() as taken:
                    try:
                        rows = await _execute(taken, statement)
                    except psycopg.OperationalError:
                        if taken.closed:
                            continue
                        raise
                    return await _drive(taken, steps, rows)
            except psycopg_pool.PoolTimeout as failure:
                raise _exhausted(opened) from failure
        raise _down()


async def _drive(taken: psycopg.AsyncConnection[Any], steps: Steps[T], rows: list[Row]) -> T:
    failure: BaseException | None = None
    while True:
        try:
            statement = steps.throw(failure) if failure else steps.send(rows)
        except StopIteration as end:
            result: T = end.value
            return result
        failure, rows = None, []
        try:
            if statement is not ROLLBACK or not taken.closed:
                rows = await _execute(taken, statement)
        except psycopg.Error as raised:
            failure = as_parley_error(raised)


async def _execute(taken: psycopg.AsyncConnection[Any], statement: Statement) -> list[Row]:
    params = [_for_postgres(p) for p in statement.params]
    cursor = await taken.execute(statement.sql, params or None, prepare=bool(params))
    return await cursor.fetchall() if cursor.description else []
