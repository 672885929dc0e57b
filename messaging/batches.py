"""Many sends in one transaction: the same steps, driven side by side, one statement for all that stand at the same place.

A commit costs a write to the disk and each statement a round trip; sixteen senders who share them cost little more than one.
`together` drives several steps at once; a statement says by its `many` how it is combined with others of its text. Whoever is
refused leaves the others alone: steps undo what they wrote before they raise. `Writer` gathers what an event loop wants to
send while the transaction before is under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any, Generic, TypeVar
from uuid import UUID
from weakref import WeakKeyDictionary

from messaging import errors, store
from messaging.store import Row, Statement, Steps

T = TypeVar("T")

# 64: beyond it a batch only gets slower, and everybody in it waits for the last.
MAX_TOGETHER = 64

_POSTGRES_TYPES = {int: "bigint", str: "text", UUID: "uuid", bytes: "bytea", datetime: "timestamptz", bool: "boolean"}


class ForEach:
    """A SELECT with scalar parameters, for a list of parameter rows."""

    def __init__(self, rank: int = 0) -> None:
        self.rank = rank

    def combine(self, statements: Sequence[Statement]) -> Statement:
        columns = list(zip(*(s.params for s in statements), strict=True))
        types = tuple(_POSTGRES_TYPES[type(column[0])] for column in columns)
        return Statement(_for_each(statements[0].sql, types), [list(column) for column in columns])

    def split(self, statements: Sequence[Statement], rows: list[Row]) -> list[list[Row]]:
        parts: list[list[Row]] = [[] for _ in statements]
        for number, *row in rows:
            parts[number - 1].append(tuple(row))
        return parts


@lru_cache(maxsize=100)
def _for_each(sql: str, types: tuple[str, ...]) -> str:
    pieces = sql.split("%s")
    inner = "".join(piece + (f"v.p{i}" if i < len(pieces) - 1 else "") for i, piece in enumerate(pieces))
    arrays = ", ".join(f"%s::{kind}[]" for kind in types)
    names = ", ".join(f"p{i}" for i in range(len(types)))
    return f"SELECT v.number, q.* FROM unnest({arrays}) WITH ORDINALITY AS v({names}, number) CROSS JOIN LATERAL ({inner}) AS q"


@dataclass(frozen=True, slots=True)
class Insert:
    """An INSERT of rows: its columns with their PostgreSQL types. `returns` is the column that a RETURNING clause gives."""

    rank: int
    table: str
    columns: dict[str, str]
    suffix: str = ""
    returns: str | None = None

    def of(self, *rows: Sequence[Any]) -> Statement:
        """The statement for some rows."""
        places = f"({', '.join(['%s'] * len(self.columns))})"
        sql = f"INSERT INTO {self.table} ({', '.join(self.columns)}) VALUES {', '.join([places] * len(rows))}{self.suffix}"
        return Statement(sql, [value for row in rows for value in row], self)

    def combine(self, statements: Sequence[Statement]) -> Statement:
        width = len(self.columns)
        by_column: list[list[Any]] = [[v for s in statements for v in s.params[i::width]] for i in range(width)]
        arrays = ", ".join(f"%s::{kind}[]" for kind in self.columns.values())
        sql = f"INSERT INTO {self.table} ({', '.join(self.columns)}) SELECT * FROM unnest({arrays}) AS v{self.suffix}"
        return Statement(sql, by_column)

    def split(self, statements: Sequence[Statement], rows: list[Row]) -> list[list[Row]]:
        if self.returns is None:
            return [[] for _ in statements]
        place = list(self.columns).index(self.returns)
        returned = {row[0] for row in rows}
        return [[(s.params[place],)] if s.params[place] in returned else [] for s in statements]


# --- Driving --------------------------------------------------------------------------------------------------------


def together(sends: Sequence[Steps[T]]) -> Steps[list[T | errors.ParleyError]]:
    """Drives steps side by side; returns for each its result, or the error it was refused with."""
    outcomes: dict[int, T | errors.ParleyError] = {}
    waiting: dict[int, Statement] = {}

    def go_on(number: int, rows: list[Row] | None) -> None:
        try:
            waiting[number] = sends[number].send(rows)  # type: ignore[arg-type]
        except StopIteration as end:
            outcomes[number] = end.value
        except errors.ParleyError as refused:
            outcomes[number] = refused

    for number in range(len(sends)):
        go_on(number, None)
    while waiting:
        first = min(waiting.values(), key=lambda s: s.many.rank if s.many else 0)
        group = [n for n, s in waiting.items() if s is first or (first.many and s.many and s.many == first.many)]
        if first.many is None or isinstance(first.many, ForEach):
            group = [n for n in group if waiting[n].sql == first.sql]
        statements = [waiting.pop(n) for n in group]
        if len(statements) == 1 or first.many is None or not store.on_postgres():
            for number, statement in zip(group, statements, strict=True):
                go_on(number, (yield statement))
        else:
            rows = yield first.many.combine(statements)
            for number, part in zip(group, first.many.split(statements, rows), strict=True):
                go_on(number, part)
    return [outcomes[number] for number in range(len(sends))]


@dataclass(slots=True)
class _Waiting(Generic[T]):
    make: Callable[[], Steps[T]]
    alone: Any
    done: asyncio.Future[T]


@dataclass(slots=True)
class Writer(Generic[T]):
    """Commits what one event loop sends, in as few transactions as arise by themselves: one is under way at a time."""

    waiting: list[_Waiting[T]] = field(default_factory=list)
    task: asyncio.Task[None] | None = None

    async def write(self, make: Callable[[], Steps[T]], *, alone: Any) -> T:
        """Runs the steps that `make` makes in a transaction, perhaps with others. No two with an equal `alone` share one.

        It goes on if the caller is cancelled meanwhile. Raises what the steps raise, or `Unavailable`.
        """
        mine = _Waiting(make, alone, asyncio.get_running_loop().create_future())
        self.waiting.append(mine)
        if self.task is None or self.task.done():
            self.task = asyncio.get_running_loop().create_task(self._work(), name="parley-writer")
        return await asyncio.shield(mine.done)

    async def _work(self) -> None:
        while self.waiting:
            batch = self._next()
            results: Sequence[T | BaseException]
            try:
                results = await self._commit(batch)
            except BaseException as failure:
                results = [failure] * len(batch)
            for one, result in zip(batch, results, strict=True):
                if isinstance(result, BaseException):
                    one.done.set_exception(result)
                    one.done.exception()  # Whoever asked may have gone: then nobody takes it.
                else:
                    one.done.set_result(result)

    def _next(self) -> list[_Waiting[T]]:
        batch: dict[Any, _Waiting[T]] = {}
        left: list[_Waiting[T]] = []
        for one in self.waiting:
            if len(batch) < MAX_TOGETHER and one.alone not in batch:
                batch[one.alone] = one
            else:
                left.append(one)
        self.waiting = left
        return list(batch.values())

    async def _commit(self, batch: list[_Waiting[T]]) -> list[T | BaseException]:
        if len(batch) == 1:
            return [await store.arun(store.atomic(batch[0].make()))]
        try:
            return list(await store.arun(store.atomic(together([one.make() for one in batch]))))
        except Exception as failure:
            if isinstance(failure, errors.Unavailable) and failure.code != "busy":
                raise
            # One of them broke the transaction of all, or waited in vain for a row that somebody else holds: each has its own
            # now, and only that one fails.
            outcomes = [store.arun(store.atomic(one.make())) for one in batch]
            return list(await asyncio.gather(*outcomes, return_exceptions=True))


_writers: WeakKeyDictionary[asyncio.AbstractEventLoop, Writer[Any]] = WeakKeyDictionary()


def writer() -> Writer[Any]:
    """The writer of this event loop."""
    return _writers.setdefault(asyncio.get_running_loop(), Writer())
