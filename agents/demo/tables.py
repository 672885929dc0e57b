"""What the demo prints: tables, and what has to hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Must:
    """One value that has to hold, beside what was published for it, if anything was."""

    what: str
    published: str
    ours: str
    required: str
    holds: bool


@dataclass(frozen=True, slots=True)
class Result:
    """One experiment: its table, and what of it has to hold."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    musts: Sequence[Must] = ()
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        return "\n".join(
            ["", self.title, "", *aligned(self.columns, self.rows), *(["", *self.notes] if self.notes else [])]
        )


def summary(musts: Sequence[Must]) -> str:
    columns = ("what", "published", "ours", "has to be", "holds")
    rows = [(m.what, m.published, m.ours, m.required, "yes" if m.holds else "NO") for m in musts]
    return Result("What has to hold", columns, rows).text()


def aligned(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of equal columns; a column whose cells all begin with a digit is one of figures, and ends flush right."""
    table = [list(columns), *map(list, rows)]
    widths = [max(len(line[i]) for line in table) for i in range(len(columns))]
    figures = [all(row[i][:1].isdigit() or row[i] in {"", "–"} for row in rows) for i in range(len(columns))]
    table.insert(1, ["-" * width for width in widths])
    return [
        "  "
        + "  ".join(
            c.rjust(w) if right else c.ljust(w) for c, w, right in zip(line, widths, figures, strict=True)
        ).rstrip()
        for line in table
    ]


def of(number: int, total: int) -> str:
    return f"{number}/{total}"
