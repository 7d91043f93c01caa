"""The processor's counter in place of the clock: what takes long by one takes as long by the other."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from support.places import CORE, NATIVE

CLOCKSOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
PARTS = (NATIVE / "instants.c", CORE / "kernel/instant.c", CORE / "format/clock.c")
pytestmark = pytest.mark.skipif(
    shutil.which(os.environ.get("CC", "cc")) is None, reason="no C compiler here"
)


@pytest.fixture(scope="module")
def measure(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[str]]:
    """Return a function that runs the program that times the same with both."""
    path = tmp_path_factory.mktemp("instants") / "instants"
    command = [os.environ.get("CC", "cc"), "-std=gnu11", "-O2", "-Wall", "-Werror", f"-I{CORE}"]
    subprocess.run([*command, "-o", path, *PARTS], check=True)

    def measure(*arguments: str) -> list[str]:
        done = subprocess.run(
            [path, *arguments], check=True, capture_output=True, text=True, timeout=60
        )
        return done.stdout.splitlines()

    return measure


def test_the_counter_agrees_with_the_clock(measure) -> None:
    source = CLOCKSOURCE.read_text().strip() if CLOCKSOURCE.exists() else ""
    if platform.machine() == "x86_64" and source != "tsc":
        pytest.skip("the kernel does not trust the counter of this machine")
    assert measure(source) == ["counter", "0 counter"]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the counter is always trusted here")
def test_where_the_kernel_counts_by_something_else_the_clock_is_asked(measure) -> None:
    assert measure("hpet") == ["clock", "0 clock"]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the counter is always trusted here")
def test_a_counter_that_no_longer_agrees_is_not_used_again(measure) -> None:
    source = CLOCKSOURCE.read_text().strip() if CLOCKSOURCE.exists() else ""
    if source != "tsc":
        pytest.skip("the kernel does not trust the counter of this machine")
    first, (wrong, kind) = (lines := measure(source, "broken"))[0], lines[1].split()
    assert (first, kind) == ("counter", "clock")
    assert 0 < int(wrong) < 160  # until the first check, half a second later
