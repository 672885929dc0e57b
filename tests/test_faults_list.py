"""`docs/faults.md` and the tests agree, both ways: each row has a test, each test that bears a row's mark is listed.

A red `test_a_row_is_held_by_a_test_that_is_listed[S1]` says that row S1 has no line in the list whose test bears its mark.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

TESTS = Path(__file__).resolve().parent
LIST = TESTS.parent / "docs" / "faults.md"

# What the hub promises to hold so far.
ROWS = (
    *(f"L{n}" for n in range(1, 28) if n != 23),
    *(f"S{n}" for n in range(1, 9)),
    *(f"A{n}" for n in range(1, 11)),
    *(f"M{n}" for n in range(1, 14)),
    *(f"X{n}" for n in (1, 2, 5, 8, 9, 10, 12)),
    *(f"Q{n}" for n in (7, 14, 16)),
)


class Held(NamedTuple):
    """A row, and a test that holds it, like `tests/test_x.py::test_y`."""

    row: str
    test: str


@cache
def listed() -> list[Held]:
    """The lines of the list's tables."""
    line = re.compile(r"^\| *([A-Z]\d+) *\| *`(tests/[^`]+)` *\| *\S.* \|$", re.MULTILINE)
    return [Held(*found) for found in line.findall(LIST.read_text())]


@cache
def marked() -> list[Held]:
    """The tests that bear the mark `fault`, read without running them."""
    return [
        Held(row, f"tests/{path.relative_to(TESTS)}::{test}")
        for path in sorted(TESTS.glob("**/test_*.py"))
        for test, node in functions(ast.parse(path.read_text()))
        for row in rows_of(node)
    ]


def functions(module: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """The functions of a module and of its classes, with the names that pytest gives them."""
    for node in module.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from (
                (f"{node.name}::{inner.name}", inner) for inner in node.body if isinstance(inner, ast.FunctionDef)
            )


def rows_of(node: ast.FunctionDef) -> Iterator[str]:
    for decorator in node.decorator_list:
        match decorator:
            case ast.Call(func=ast.Attribute(attr="fault"), args=[ast.Constant(value=str(row))], keywords=[]):
                yield row
            case ast.Call(func=ast.Attribute(attr="fault")) | ast.Attribute(attr="fault"):
                raise AssertionError(f'{node.name}: write the mark as @pytest.mark.fault("L1"), once for each row')


@pytest.mark.parametrize("row", ROWS)
def test_a_row_is_held_by_a_test_that_is_listed(row):
    true = [held for held in listed() if held.row == row and held in marked()]
    assert true, f"no line of {LIST.name} for {row} names a test that bears its mark"


def test_each_line_names_a_test_that_bears_the_mark():
    assert not (wrong := set(listed()) - set(marked())), as_lines(wrong)


def test_each_test_that_bears_a_mark_is_listed():
    assert not (missing := set(marked()) - set(listed())), as_lines(missing)


def as_lines(held: set[Held]) -> str:
    """Ready to be pasted into the list."""
    return "\n".join(["", *(f"| {row} | `{test}` | ... |" for row, test in sorted(held))])


def test_no_line_stands_twice_and_each_table_is_in_order():
    lines = listed()
    assert len(lines) == len(set(lines))
    assert len(lines) == len(re.findall(r"^\| *[A-Z]\d+ *\|", LIST.read_text(), re.MULTILINE)), "a line is not readable"
    for section in re.split(r"^## ", LIST.read_text(), flags=re.MULTILINE):
        numbers = [int(number) for number in re.findall(r"^\| *[A-Z](\d+) *\|", section, re.MULTILINE)]
        assert numbers == sorted(numbers)
