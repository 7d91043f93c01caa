"""Instructions that a command executes: the same from run to run where times are not."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory


def find_method() -> str | None:
    """`perf` where the machine counts for us, else `valgrind`, else nothing."""
    if shutil.which("perf") and _count_perf(["true"], None) is not None:
        return "perf"
    return "valgrind" if shutil.which("valgrind") else None


def count(argv: list[str], environment: Mapping[str, str]) -> int | None:
    """User-space instructions of one run, of all its threads; None if nothing here counts them."""
    method = find_method()
    if method == "perf":
        return _count_perf(argv, environment)
    return _count_valgrind(argv, environment) if method == "valgrind" else None


def _run(argv: list[str], environment: Mapping[str, str] | None) -> int:
    return subprocess.run(
        argv,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=240,
        check=False,
    ).returncode


def _count_perf(argv: list[str], environment: Mapping[str, str] | None) -> int | None:
    with TemporaryDirectory() as folder:
        log = Path(folder, "log")
        counter = ["perf", "stat", "-x,", "-e", "instructions:u", "-o", str(log)]
        if _run([*counter, *argv], environment) != 0:
            return None
        found = re.search(r"^(\d+),", log.read_text(), re.MULTILINE)
    return int(found.group(1)) if found else None


def _count_valgrind(argv: list[str], environment: Mapping[str, str]) -> int | None:
    with TemporaryDirectory() as folder:
        log = Path(folder, "log")
        tool = ["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
        # A forked child would write its own count into the same log.
        tool.append("--child-silent-after-fork=yes")
        status = _run(["valgrind", *tool, f"--log-file={log}", *argv], environment)
        assert status == 0, f"{argv} ended with {status}: a part of it was counted"
        found = re.search(r"I +refs: +([\d,]+)", log.read_text())
    return int(found.group(1).replace(",", "")) if found else None
