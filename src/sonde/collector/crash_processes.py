"""The collector's end of the processes that unwind what programs have left at a fault."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from typing import BinaryIO, Generic, NamedTuple, Protocol, TypeVar

from sonde import launch
from sonde.errors import Error
from sonde.session import Session, crash_file
from sonde.session.ending import find_end_wall_ns
from sonde.session.files import remove_quietly
from sonde.tables.recording import SourceLog

NAME = "stack.crash"
_MOST = 2  # at a time: a job of many processes may crash as a whole
_MOST_S = 60.0  # for one; the debugging symbols of big libraries take seconds
_LEAST_S = 0.2  # before another try, where there is no room for a process
_MOST_CHARS = 1000  # of what it says


class Crashed(Protocol):
    """A session whose program is gone."""

    session: Session

    def write(self, row: type, values: tuple[object, ...]) -> None:
        """Write a row into it."""


T = TypeVar("T", bound=Crashed)


class _Child(NamedTuple):
    """A process that unwinds, and where what it says is kept: nobody reads while it runs."""

    process: subprocess.Popen[bytes]
    said: BinaryIO
    complaints: BinaryIO
    begun_s: float

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.said.close()
        self.complaints.close()


class _Refusal(NamedTuple):
    """There was no room for a process: since when, and when to try again."""

    since_s: float
    again_s: float


class CrashProcesses(Generic[T]):
    """Runs one process for each session with a crash; see attach/crash_stacks.py."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._taken: list[T] = []
        self._children: dict[str, _Child] = {}
        self._refusals: dict[str, _Refusal] = {}

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
        for one in done:
            self._refusals.pop(one.session.folder, None)
        return done

    def count(self) -> int:
        """Return how many run."""
        return len(self._children)

    def end(self) -> None:
        """End all: whoever comes next begins anew."""
        for child in self._children.values():
            child.end()
        self._children.clear()

    def _is_pending(self, target: T) -> bool:
        folder = target.session.folder
        if folder in self._children:
            return not self._has_ended(target, self._children[folder])
        if not os.path.exists(target.session.path(crash_file.NAME)):
            return False  # the session was removed
        return len(self._children) >= _MOST or self._start(target)

    def _start(self, target: Crashed) -> bool:
        """Start its process, now or at a later look; return False if there can be none."""
        refusal = self._refusals.get(target.session.folder)
        if refusal is not None and self._now() < refusal.again_s:
            return True
        command = launch.make_command("attach.crash_stacks", target.session.folder)
        if not command:
            self._fail(target, "there is no Python that could unwind them")
            return False
        try:
            self._children[target.session.folder] = _start_child(command, self._now())
        except (FileNotFoundError, PermissionError) as error:
            self._fail(target, f"{error.filename}: {error.strerror}")
            return False
        except OSError as error:
            return self._put_off(target, error)
        return True

    def _put_off(self, target: Crashed, error: OSError) -> bool:
        """Try again, ever more rarely, because there may be no more processes, files or memory at
        this moment; return False once that was so for too long."""
        now_s = self._now()
        since_s = self._refusals.get(target.session.folder, _Refusal(now_s, now_s)).since_s
        if now_s - since_s > _MOST_S:
            self._fail(target, f"no process could be started for {_MOST_S:.0f} s: {error.strerror}")
            return False
        again_s = now_s + max(_LEAST_S, now_s - since_s)
        self._refusals[target.session.folder] = _Refusal(since_s, again_s)
        return True

    def _has_ended(self, target: Crashed, child: _Child) -> bool:
        code = child.process.poll()
        if code is None and self._now() - child.begun_s <= _MOST_S:
            return False
        del self._children[target.session.folder]
        notes, complaints = _read(child.said), _read(child.complaints)
        child.end()
        if code is None:
            self._fail(target, f"it took longer than {_MOST_S:.0f} s")
        elif code:
            self._fail(target, (complaints or ["its process has ended"])[-1])
        else:
            self._note(target, "on", "; ".join(notes) or None)
        return True

    def _fail(self, target: Crashed, why: str) -> None:
        remove_quietly(target.session.path(crash_file.NAME))
        self._note(target, "unavailable", why)

    def _note(self, target: Crashed, state: str, why: str | None) -> None:
        if why is not None and len(why) > _MOST_CHARS:
            why = f"{why[:_MOST_CHARS]}\N{HORIZONTAL ELLIPSIS}"
        # The session was removed meanwhile, or cannot be read, or the disk is full.
        with suppress(OSError, Error):
            # As of the end of the program: the newest row says when that was.
            end_ns = find_end_wall_ns(target.session) - target.session.wall_offset_ns
            target.write(SourceLog, (end_ns, NAME, state, why))


def _start_child(command: list[bytes], now_s: float) -> _Child:
    said, complaints = (os.fdopen(os.memfd_create("sonde-crash"), "w+b") for _ in range(2))
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=complaints)
    return _Child(process, said, complaints, now_s)


def _read(file: BinaryIO) -> list[str]:
    file.seek(0)
    return file.read().decode(errors="replace").splitlines()
