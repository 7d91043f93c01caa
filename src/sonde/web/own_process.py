"""Run a module of ours in a process of its own, which can be given up."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

from sonde import environ
from sonde.errors import Error


def run_module(
    module: str, words: list[str], timeout_s: float, too_late: str, *, niceness: int = 0
) -> bytes:
    """Return what a module prints; raise the last line of its complaint, or `too_late`. With a
    `niceness` it gives way to others: to the job, and to the browser of whoever waits for it."""
    # Not the modules of the folder that the server was started in, and no recording of our own.
    env = environ.make_child_environment(PYTHONSAFEPATH="1", SONDE="0")
    with subprocess.Popen([sys.executable, "-m", module, *words], env=env,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as process:  # fmt: skip
        with contextlib.suppress(OSError):  # it has ended, or our own is lower still
            os.setpriority(os.PRIO_PROCESS, process.pid, niceness)
        try:
            said, complaint = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise Error(too_late) from None
    if process.returncode:
        lines = complaint.decode("utf-8", "replace").strip().splitlines()
        raise Error(lines[-1] if lines else f"it ended with code {process.returncode}")
    return said
