"""A pytest plugin: each engine runs its own tests, and CI skips nothing.

A test marked `sqlite` or `postgresql` exists on that engine only; on the other it is left out, not skipped. What remains
must run: with CI=true a skip, also one of a whole module, turns the run red and is named.
"""

from __future__ import annotations

import os

import pytest

_skipped = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_skipped] = []
    config.pluginmanager.register(_Watch(config.stash[_skipped]), "parley-no-skips")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    from django.db import connection

    other = "sqlite" if connection.vendor == "postgresql" else "postgresql"
    left_out = [item for item in items if item.get_closest_marker(other)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker(other)]


class _Watch:
    """Notes each skip as it is reported, of a test and of a module alike."""

    def __init__(self, skipped: list[str]) -> None:
        self.skipped = skipped

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped:
            self.skipped.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.skipped.append(report.nodeid)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if session.config.stash[_skipped] and os.environ.get("CI") == "true" and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    skipped = config.stash[_skipped]
    if skipped and os.environ.get("CI") == "true":
        terminalreporter.section("skipped, which CI does not allow", red=True)
        for nodeid in skipped:
            terminalreporter.write_line(nodeid)
