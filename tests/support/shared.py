"""What several files need and one worker makes: the others wait for it, and only read it."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.places import TESTS

sys.path.append(str(TESTS / "scenarios"))
from run import Scenario, end_collector, list_names

__all__ = ["Scenario", "list_names", "make_once", "record_scenario"]

SCENARIO_S = 6.0


def make_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder of this name, filled by `make` in whichever worker asks for it first."""
    base = factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, done = base / f"shared-{name}", base / f"shared-{name}.done"
    with open(base / f"shared-{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            done.touch()
    return folder


def record_scenario(factory: pytest.TempPathFactory, name: str) -> Path:
    """The root into which a program of tests/scenarios was recorded."""

    def record(folder: Path) -> None:
        try:
            Scenario(name).record(folder / "sonde", SCENARIO_S)
        finally:
            end_collector(folder / "sonde")

    return make_once(factory, name, record) / "sonde"
