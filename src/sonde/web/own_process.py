"""Run a module of ours in a process of its own, which can be given up."""

from __future__ import annotations

import subprocess
import sys

from sonde import environ
from sonde.errors import Error


def run_module(module: str, words: list[str], timeout_s: float, too_late: str) -> bytes:
    """Return what a module prints; raise the last line of its complaint, or `too_late`."""
    # Not the modules of the folder that the server was started in, and no recording of our own.
    env = environ.make_child_environment(PYTHONSAFEPATH="1", SONDE="0")
    try:
        done = subprocess.run([sys.executable, "-m", module, *words], env=env,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s,
                              check=False)  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Error(too_late) from None
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise Error(lines[-1] if lines else f"it ended with code {done.returncode}")
    return done.stdout
