"""The collector's end of the processes that unwind what programs have left at a fault."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from sonde import _core, launch
from sonde.session import Session, crash_file
from sonde.session.files import remove_quietly
from sonde.tables.recording import SourceLog

NAME = "stack.crash"
_MOST = 2  # at a time: a job of many processes may crash as a whole
_MOST_S = 60.0  # for one; the debugging symbols of big libraries take seconds


class Crashed(Protocol):
    """A session whose program is gone."""

    session: Session

    def write(self, row: type, values: tuple[object, ...]) -> None:
        """Write a row into it."""


T = TypeVar("T", bound=Crashed)


class CrashProcesses(Generic[T]):
    """Runs one process for each session with a crash; see attach/crash_stacks.py."""

    def __init__(self) -> None:
        self._taken: list[T] = []
        self._children: dict[str, tuple[subprocess.Popen[str], float]] = {}

    @property
    def is_busy(self) -> bool:
        """Whether a session was taken and not given back."""
        return bool(self._taken)

    def take(self, target: T) -> bool:
        """Take a session that has something to be unwound; return False if this one has not."""
        if not os.path.exists(target.session.path(crash_file.NAME)):
            return False
        self._taken.append(target)
        return True

    def give_back(self) -> list[T]:
        """Return those that are done, and begin with others."""
        done = [one for one in self._taken if not self._is_pending(one)]
        self._taken = [one for one in self._taken if one not in done]
        return done

    def count(self) -> int:
        """Return how many run."""
        return len(self._children)

    def end(self) -> None:
        """End all: whoever comes next begins anew."""
        for child, _begun_s in self._children.values():
            child.kill()
            child.communicate()
        self._children.clear()

    def _is_pending(self, target: T) -> bool:
        folder = target.session.folder
        if folder in self._children:
            return not self._has_ended(target, *self._children[folder])
        if not os.path.exists(target.session.path(crash_file.NAME)):
            return False  # the session was removed
        if len(self._children) < _MOST:
            self._start(target)
            return folder in self._children
        return True

    def _start(self, target: Crashed) -> None:
        command = launch.make_command("attach.crash_stacks", target.session.folder)
        if not command:
            self._fail(target, "there is no Python that could unwind them")
            return
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._children[target.session.folder] = child, time.monotonic()

    def _has_ended(self, target: Crashed, child: subprocess.Popen[str], begun_s: float) -> bool:
        is_late = time.monotonic() - begun_s > _MOST_S
        if child.poll() is None and not is_late:
            return False
        if is_late:
            child.kill()
        del self._children[target.session.folder]
        said, complaints = child.communicate()
        if child.returncode or is_late:
            why = (complaints.splitlines() or ["its process has ended"])[-1]
            self._fail(target, f"it took longer than {_MOST_S:.0f} s" if is_late else why)
        else:
            notes = "; ".join(said.splitlines()) or None
            self._note(target, "on", notes)
        return True

    def _fail(self, target: Crashed, why: str) -> None:
        remove_quietly(target.session.path(crash_file.NAME))
        self._note(target, "unavailable", why)

    def _note(self, target: Crashed, state: str, why: str | None) -> None:
        with suppress(OSError):  # the session was removed meanwhile, or the disk is full
            target.write(SourceLog, (_core.clock_ns(), NAME, state, why))
