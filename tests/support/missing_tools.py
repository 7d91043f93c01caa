"""Tests that need a package of sonde[tools] are left out where that cannot be installed.

DuckDB has no wheel for free-threaded Pythons. What is recorded there is tested all the same; what
reads it with SQL is not, and says so."""

from __future__ import annotations

import subprocess
from collections.abc import Generator, Iterator
from importlib.util import find_spec

import pytest

from sonde.errors import TOOLS


class MissingTools:
    """A plugin of pytest: a failure for lack of a package that is really not there is a skip."""

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        # One file that cannot be imported would keep all others from being run.
        report = yield
        name = find_missing(str(report.longrepr)) if report.failed else None
        if name is not None:
            report.outcome = "skipped"
            report.longrepr = (str(collector.path), 0, f"Skipped: {name} is not installed")
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Iterator[None]:
        return (yield from _forgive())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        return (yield from _forgive())


def _forgive() -> Iterator[None]:
    try:
        return (yield)
    except ImportError as error:
        name = find_missing(str(error))
        if name is None:
            raise
        pytest.skip(f"{name} is not installed")


def check_output(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    """Return what a command left, unless it ended for lack of a package: then leave the test out."""
    name = find_missing(done.stderr) if done.returncode else None
    if name is not None:
        pytest.skip(f"{name} is not installed")
    return done


def find_missing(text: str) -> str | None:
    """Return the package of the tools that a message says is missing, if it really is."""
    for name in TOOLS:
        words = (f"needs {name} (", f"No module named '{name}")
        if any(one in text for one in words) and find_spec(name) is None:
            return name
    return None
