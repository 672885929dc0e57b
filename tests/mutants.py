"""Proves that the tests can fail: `python -m tests.mutants [-k word]`.

Beside a test may stand one-line patches of the code that it must catch:

    @pytest.mark.mutant("messaging/delivery.py", "yield from locked(streams)", "yield from found(streams)")

Each is applied to a copy of the tree, its test is run there, and the test has to fail: by what it asserts, not because
something could not be imported or set up. First the same tests run unchanged and have to pass, else red would prove
nothing. `on="postgresql"` runs a mutant there, for what SQLite's single writer would hide.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest

from tests.run import LOCAL, why_not

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", "var", "node_modules", "__pycache__", ".*_cache", ".hypothesis", ".env"
)

# What a test says about a patch that broke the code, instead of changing what it does.
NO_PROOF = ("SyntaxError", "ImportError", "ModuleNotFoundError", "NameError")

# A test bounds its own waits by seconds; this ends one that a mutant has made wait for ever.
TIMEOUT_S = 120


class Mutant(NamedTuple):
    """One line of one file changed, and the test that must notice."""

    test: str
    file: str
    old: str
    new: str
    on: str = "sqlite"


class BadMutantError(Exception):
    """The patch itself is wrong: it no longer fits the code."""


class Collector:
    """A pytest plugin that notes the marks of the collected tests; of a parametrised test once."""

    def __init__(self) -> None:
        self.mutants: list[Mutant] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        found = [
            Mutant(item.nodeid.split("[")[0], *mark.args, **mark.kwargs)
            for item in session.items
            for mark in reversed(list(item.iter_markers("mutant")))
        ]
        self.mutants = list(dict.fromkeys(found))


def collect(arguments: list[str]) -> list[Mutant]:
    """The mutants that stand beside the tests."""
    collector = Collector()
    status = pytest.main(["--collect-only", "-qq", "--no-summary", *arguments], plugins=[collector])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        sys.exit("The tests could not be collected.")
    return collector.mutants


def patched(source: str, mutant: Mutant) -> str:
    """The file's text with the one line changed; raises `BadMutantError`."""
    if "\n" in mutant.old + mutant.new or mutant.old == mutant.new:
        raise BadMutantError("a mutant changes one line")
    if (times := source.count(mutant.old)) != 1:
        raise BadMutantError(f"its old text stands {times} times in the file, not once")
    changed = source.replace(mutant.old, mutant.new)
    if mutant.file.endswith(".py"):
        try:
            compile(changed, mutant.file, "exec")
        except SyntaxError as failure:
            raise BadMutantError(f"the result is not Python: {failure}") from failure
    return changed


@contextmanager
def applied(tree: Path, mutant: Mutant) -> Iterator[None]:
    path = tree / mutant.file
    if not path.is_file():
        raise BadMutantError("there is no such file")
    source = path.read_text()
    path.write_text(patched(source, mutant))
    try:
        yield
    finally:
        path.write_text(source)


def run(tree: Path, tests: list[str], on: str) -> str:
    """Runs tests in a tree; `passed`, `failed` (by a failure inside a test), or what else happened."""
    report = tree / "report.xml"
    report.unlink(missing_ok=True)
    # Without stored bytecode: a mutant of the same size within the same second would be taken for the original.
    environment = {k: v for k, v in os.environ.items() if k != "DATABASE_URL"} | {"PYTHONDONTWRITEBYTECODE": "1"}
    if on == "postgresql":
        environment["DATABASE_URL"] = os.environ.get("PARLEY_TEST_POSTGRES", LOCAL)
    options = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}", f"--timeout={TIMEOUT_S}"]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, check=False, timeout=2 * TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return "hung"
    if done.returncode == pytest.ExitCode.OK:
        return "passed"
    if done.returncode == pytest.ExitCode.TESTS_FAILED:
        failures = [failure.get("message", "") for failure in ElementTree.parse(report).iter("failure")]
        if failures and not any(message.startswith(NO_PROOF) for message in failures):
            return "failed"
    return f"broke (exit code {done.returncode})\n{done.stdout[-3000:]}{done.stderr[-1000:]}"


def controls(tree: Path, mutants: list[Mutant]) -> bool:
    """Whether the tests pass as long as nothing is changed."""
    good = True
    for on in sorted({m.on for m in mutants}):
        verdict = run(tree, sorted({m.test for m in mutants if m.on == on}), on)
        print(f"unchanged, on {on}: {verdict}", flush=True)
        good = good and verdict == "passed"
    return good


def verdict_on(tree: Path, mutant: Mutant) -> str:
    """`caught`, or why not."""
    try:
        with applied(tree, mutant):
            outcome = run(tree, [mutant.test], mutant.on)
    except BadMutantError as failure:
        return f"DOES NOT FIT: {failure}"
    return {"failed": "caught", "passed": "SURVIVED"}.get(outcome, f"PROVES NOTHING: {outcome}")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("-k", metavar="WORD", help="only mutants of the tests that pytest's -k would choose")
    chosen = parser.parse_args(arguments)
    sys.path.insert(0, str(ROOT))
    mutants = collect(["-k", chosen.k] if chosen.k else [])
    if any(m.on == "postgresql" for m in mutants) and (
        obstacle := why_not(os.environ.get("PARLEY_TEST_POSTGRES", LOCAL))
    ):
        print(f"NOT tried: the mutants for PostgreSQL, which did not answer: {obstacle}")
        if os.environ.get("CI") == "true":
            return 1
        mutants = [m for m in mutants if m.on != "postgresql"]
    caught = 0
    with tempfile.TemporaryDirectory(prefix="parley-mutants-") as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, ignore=LEFT_OUT, symlinks=True)
        if mutants and not controls(tree, mutants):
            return 1
        for mutant in mutants:
            started = time.monotonic()
            verdict = verdict_on(tree, mutant)
            caught += verdict == "caught"
            print(f"{verdict:<9} {time.monotonic() - started:5.1f} s  {mutant.on:<10}  {mutant.test}")
            print(f"{'':21}{mutant.file}: {mutant.old.strip()}  ->  {mutant.new.strip() or '(nothing)'}", flush=True)
    print(f"{caught} passed, {len(mutants) - caught} failed")
    return 0 if mutants and caught == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
