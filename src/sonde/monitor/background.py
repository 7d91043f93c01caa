"""Run the monitor in the background: it goes on after the shell that started it has ended."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from sonde import environ
from sonde.errors import Error
from sonde.monitor.folder import MEASURING, WAITING, Folder, open_new, read_state

LOG = "log.txt"
# Not `-m sonde`: a file in the job's folder may be called like one of our modules.
_CODE = "import sys; sys.path.pop(0); from sonde.cli import main; sys.exit(main())"
READY_S = 30.0


def start(path: str, words: list[str]) -> int:
    """Start a monitor, wait until it measures or waits for its condition, and return its pid."""
    Folder(path).close()  # if another monitor uses it, say so now and not in a log
    log = os.path.join(path, LOG)
    with open_new(log) as file:
        process = subprocess.Popen(
            [sys.executable, "-c", _CODE, "monitor", *words], stdin=subprocess.DEVNULL,
            stdout=file, stderr=file, start_new_session=True,
            env=environ.make_child_environment(SONDE="0"),
        )  # fmt: skip
    deadline = time.monotonic() + READY_S
    while read_state(path) not in ((str(process.pid), WAITING), (str(process.pid), MEASURING)):
        if process.poll() is not None:
            raise Error(f"the monitor ended at once: {_read_end(log)}")
        if time.monotonic() > deadline:
            raise Error(f"the monitor has not started to measure after {READY_S:g} s; see {log}")
        time.sleep(0.05)
    return process.pid


def _read_end(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = file.read().strip().splitlines()
    return lines[-1].removeprefix("sonde: ") if lines else "see its log"
