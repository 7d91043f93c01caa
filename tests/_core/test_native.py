"""Tests of the core in C, in their own processes; `make check-native` runs them for longer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable

import pytest

from support.places import NATIVE

RUN = NATIVE / "run.py"
pytestmark = pytest.mark.skipif(
    shutil.which(os.environ.get("CC", "cc")) is None, reason="no C compiler here"
)


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], None]:
    """Return a function that runs one part in each of its builds, and fails with its output."""
    folder = tmp_path_factory.mktemp("native")

    def native(part: str) -> None:
        command = [sys.executable, str(RUN), "--only", part, "--seconds", "1"]
        done = subprocess.run(
            [*command, "--build", str(folder)], capture_output=True, text=True, timeout=300,
            check=False,
        )  # fmt: skip
        if "no memory build here" in done.stderr:
            pytest.skip(done.stderr.strip())
        assert done.returncode == 0, done.stdout + done.stderr

    return native


def test_threads_tear_no_row_and_lose_none_uncounted(native: Callable[[str], None]) -> None:
    native("threads")


def test_processes_tear_no_row_and_lose_none_uncounted(native: Callable[[str], None]) -> None:
    native("processes")


def test_a_killed_writer_leaves_one_unfinished_row_and_a_ring_that_heals(
    native: Callable[[str], None],
) -> None:
    native("killed")


def test_a_signal_handler_may_append_in_the_middle_of_an_append(
    native: Callable[[str], None],
) -> None:
    native("signals")


def test_threads_that_intern_the_same_text_get_the_same_id(native: Callable[[str], None]) -> None:
    native("shared")


def test_a_full_intern_table_refuses_and_counts(native: Callable[[str], None]) -> None:
    native("full")


@pytest.mark.parametrize("part", ["ring", "intern", "control", "nodes", "lines"])
def test_a_damaged_file_is_refused_or_read_within_its_bounds(
    native: Callable[[str], None], part: str
) -> None:
    native(part)
