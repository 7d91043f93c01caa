"""A program that ends with the tests: also when they are killed, and with all that it has started.

Run as a program, this file starts another one, and kills everything in its own session as soon as its
standard input ends, which the kernel sees to when whoever holds the other end is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO


def start_guarded(
    words: list[str], env: Mapping[str, str], log: IO[bytes] | int = subprocess.DEVNULL,
    cwd: Path | None = None,
) -> subprocess.Popen[bytes]:  # fmt: skip
    """Start a program in a session of its own, which ends with this process."""
    return subprocess.Popen(
        [sys.executable, __file__, *words], env={**env, "SONDE": "0"}, cwd=cwd,
        stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


def end_guarded(process: subprocess.Popen[bytes]) -> None:
    """Kill such a program, with all that it has started."""
    kill_session(process.pid)
    process.wait()
    assert process.stdin is not None
    process.stdin.close()


def list_session(leader: int) -> list[int]:
    """The processes of a session, which a process began."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.getsid(int(name)) == leader:
                found.append(int(name))
        except (ProcessLookupError, PermissionError):
            continue
    return found


def kill_session(leader: int) -> None:
    """Kill the processes of a session, the caller last."""
    for pid in sorted(list_session(leader), key=lambda pid: pid == os.getpid()):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _wait_for_the_end() -> None:
    sys.stdin.buffer.read()
    kill_session(os.getsid(0))


if __name__ == "__main__":
    threading.Thread(target=_wait_for_the_end, daemon=True).start()
    sys.exit(subprocess.run(sys.argv[1:], stdin=subprocess.DEVNULL).returncode)
