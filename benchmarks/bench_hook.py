"""What the .pth hook costs every start of Python while SONDE is not set."""

from __future__ import annotations

import shutil
import sys
import sysconfig
import time
from functools import partial
from pathlib import Path

import child
import instruction
from result import Result, interleave

# -I -S: no other .pth file has a part in it. site reads the folder just as it reads site-packages.
_PYTHON = [sys.executable, "-I", "-S", "-c"]
_ADD = "import site, sys; site.addsitedir(sys.argv[1])"
_TIME = """
import site, sys, time
begin = time.perf_counter()
site.addpackage(sys.argv[1], "sonde.pth", set())
print((time.perf_counter() - begin) * 1e3)
assert not any(name.startswith("sonde") for name in sys.modules)
"""


def measure(rounds: int) -> list[Result]:
    """Milliseconds in site.addpackage, whole starts with and without it, and instructions."""
    with child.open_root() as root:
        with_hook, without = Path(root, "with"), Path(root, "without")
        with_hook.mkdir()
        without.mkdir()
        shutil.copy(Path(sysconfig.get_path("purelib"), "sonde.pth"), with_hook)
        inside = partial(child.run, [*_PYTHON, _TIME, str(with_hook)], root)
        found = interleave(
            10 * rounds,
            {
                "hook": lambda: float(inside()),
                "with": partial(time_start, with_hook, root),
                "without": partial(time_start, without, root),
                "again": partial(time_start, without, root),
            },
        )
        more = count_more(with_hook, without, root)
    gained = [a - b for a, b in zip(found["with"], found["without"], strict=True)]
    noise = [a - b for a, b in zip(found["again"], found["without"], strict=True)]
    counted = [] if more is None else [(more[0] - more[1]) / 1e6]
    return [
        Result(
            ".pth hook, SONDE unset",
            "ms",
            found["hook"],
            1,
            peers={"Python's start without it": found["without"]},
            note="time in site.addpackage('sonde.pth'), in a fresh `python -I -S` each",
        ),
        Result(
            ".pth hook: difference of whole starts",
            "ms",
            gained,
            1,
            peers={"without - without (noise)": noise},
        ),
        Result(
            ".pth hook: instructions added",
            "M",
            counted,
            peers={} if more is None else {"Python's start without it": [more[1] / 1e6]},
            note=f"counted by {instruction.find_method() or 'nothing: no perf, no valgrind'}",
        ),
    ]


def time_start(folder: Path, root: str) -> float:
    begin = time.perf_counter()
    child.run([*_PYTHON, _ADD, str(folder)], root)
    return (time.perf_counter() - begin) * 1e3


def count_more(with_hook: Path, without: Path, root: str) -> tuple[int, int] | None:
    environment = child.make_environment(root)
    hooked = instruction.count([*_PYTHON, _ADD, str(with_hook)], environment)
    plain = instruction.count([*_PYTHON, _ADD, str(without)], environment)
    return None if hooked is None or plain is None else (hooked, plain)
