"""The collector's end of the processes that know machine code: one for each session that asks."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from typing import IO, Protocol

from sonde import _core, launch
from sonde.session import Session, files
from sonde.tables.recording import SourceLog

_NAME = "stack.native"


class Target(Protocol):
    """A live session."""

    session: Session

    def write(self, row: type, values: tuple[object, ...]) -> None:
        """Write a row into it."""


class NativeProcesses:
    """Keeps a process running for each session with native frames; see attach/machine_code.py."""

    def __init__(self) -> None:
        self._children: dict[str, subprocess.Popen[bytes] | None] = {}  # None: it has failed

    def keep(self, targets: Iterable[Target]) -> None:
        """Start those that are missing, note the end of those that failed, end all others."""
        wanted = {one.session.folder: one for one in targets if _asks(one.session)}
        for folder in self._children.keys() - wanted.keys():
            self._end(folder)
        for folder, target in wanted.items():
            child = self._children.get(folder)
            if folder not in self._children:
                if self._start(folder):
                    self._note(target, "on", None)
            elif child is not None and child.poll() is not None:
                why = _read_last(child.stderr) or "its process has ended"
                self._note(target, "unavailable", why)
                self._end(folder)
                self._children[folder] = None
            elif child is not None and (said := _read_last(child.stdout)):
                self._note(target, "on", said)

    def count(self) -> int:
        """Return how many run."""
        return sum(child is not None for child in self._children.values())

    def _start(self, folder: str) -> bool:
        """Start it; return False if there is no room for a process just now."""
        command, child = launch.make_command("attach.machine_code", folder), None
        if command:
            try:
                child = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
                )
            except OSError:
                return False  # the next look tries again
        self._children[folder] = child
        return True

    def _end(self, folder: str) -> None:
        child = self._children.pop(folder)
        if child is not None:
            child.kill()
            child.communicate()

    def _note(self, target: Target, state: str, why: str | None) -> None:
        target.write(SourceLog, (_core.clock_ns(), _NAME, state, why))


def _read_last(pipe: IO[bytes] | None) -> str | None:
    """Return the last line that a child has written since the last look; None if there is none."""
    assert pipe is not None
    os.set_blocking(pipe.fileno(), False)
    lines = (pipe.read() or b"").decode(errors="replace").splitlines()
    return lines[-1] if lines else None


def _asks(session: Session) -> bool:
    return os.path.exists(session.path(files.MACHINE_CODE)) and session.shares_pids()
