"""What several files need and one worker makes: the others wait for it, and only read it."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from support.places import CORE, TESTS, TOP

sys.path.append(str(TESTS / "scenarios"))
from run import Scenario, end_collector, list_names

__all__ = ["Scenario", "build_wheel", "call", "list_names", "record_scenario"]

SCENARIO_S = 6.0
BUILD_S = 2400.0  # no build takes as long
CORE_FILE = f"_core{sysconfig.get_config_var('EXT_SUFFIX')}"
BUILT = ("pyproject.toml", "setup.py", "sonde.pth", "README.md", "LICENSE", "src")


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


def call(*words: object, **options: object) -> str:
    """Run a command that must succeed; what it printed."""
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, timeout=BUILD_S,
        check=False, **options,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def build_wheel(factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel of a clean tree, and with that tree: its objects are in `build`."""

    def build(folder: Path) -> None:
        tree = folder / "tree"
        tree.mkdir()
        call("cp", "-rp", *(TOP / name for name in BUILT), tree)
        _bring_objects(tree)
        # How fast the code is does not matter here, and the compiler takes long to make it so.
        quick = {**os.environ, "SONDE_CFLAGS": "-O0"}
        words = ("-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, tree)
        call(sys.executable, *words, env=quick)

    return make_once(factory, "wheel", build)


def _bring_objects(tree: Path) -> None:
    """Bring what our own installation compiled: it is compiled again only if a source is newer."""
    platform, tag = sysconfig.get_platform(), sys.implementation.cache_tag
    names = [f"build/{part}.{platform}-{tag}" for part in ("temp", "lib")]
    objects, library = TOP / names[0] / "src", TOP / names[1] / "sonde" / CORE_FILE
    wanted = {path.relative_to(TOP / "src").with_suffix(".o") for path in CORE.rglob("*.c")}
    if library.exists() and wanted == {path.relative_to(objects) for path in objects.rglob("*.o")}:
        for path in (objects, library):
            into = tree / path.relative_to(TOP)
            into.parent.mkdir(parents=True)
            call("cp", "-rp", path, into)
