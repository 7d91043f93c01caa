"""The command that is monitored: started, told of signals, waited for; its exit code is ours."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping
from types import FrameType, TracebackType

from sonde.errors import Error

# With a command all of these are its own business; without one only the first two are ours.
_STOPPING = (signal.SIGINT, signal.SIGTERM)
_PASSED_ON = (*_STOPPING, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_FROM_TERMINAL = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class Job:
    """A command, or none. Whatever goes wrong with measuring, leaving this waits for the command's
    end, and nothing but its exit code comes out."""

    def __init__(self, command: list[str], env: Mapping[str, str]) -> None:
        self._command, self._env = command, env
        self._process: subprocess.Popen[bytes] | None = None
        self._before: dict[int, object] = {}
        self._is_starting = False
        self._missed: list[int] = []  # signals that came while it started
        self.signals = 0  # how often we were asked to stop
        self.code = 0

    def __enter__(self) -> Job:
        for number in _PASSED_ON if self._command else _STOPPING:
            before = signal.getsignal(number)
            # Ignored here (nohup, a shell's background job) means ignored by the command, too.
            if before is not signal.SIG_IGN and before is not None:
                self._before[number] = before
                signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:  # fmt: skip
        had_begun = self._process is not None
        try:
            self.wait()
        finally:
            for number, before in self._before.items():
                signal.signal(number, before)  # type: ignore[arg-type]
        if not had_begun or kind is None or not issubclass(kind, Exception):
            return False
        # The command has done its work; what is wrong with us must not change its exit code.
        try:
            if isinstance(error, Error):
                print(f"sonde: {error}", file=sys.stderr)
            else:
                traceback.print_exception(kind, error, trace)
        except OSError:
            # Nobody reads stderr any more; the interpreter's own flush must not fail either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
        return True

    def start(self) -> None:
        """Start it: same files, terminal, group and signals as without us."""
        if not self._command:
            return
        self._is_starting = True
        try:
            self._process = subprocess.Popen(self._command, env=dict(self._env))
        except OSError as error:
            raise Error(f"{self._command[0]}: {error.strerror}") from None
        for number in self._missed:
            self._pass_on(number)

    @property
    def has_ended(self) -> bool:
        """Was there a command, and is it over?"""
        return self._process is not None and self._process.poll() is not None

    def wait(self) -> None:
        """Until it has ended."""
        if self._process is not None:
            code = self._process.wait()
            self.code = 128 - code if code < 0 else code

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if number in _STOPPING:
            self.signals += 1
        if self._process is not None and self._process.returncode is None:
            self._pass_on(number)
        elif self._process is None and self._is_starting:
            self._missed.append(number)
        elif self._process is None and self._command:
            raise SystemExit(128 + number)  # then there is nothing to measure: it never starts
        elif self.signals > 1:
            raise SystemExit(self.code if self._process is not None else 128 + number)

    def _pass_on(self, number: int) -> None:
        assert self._process is not None
        if not (number in _FROM_TERMINAL and _has_terminal()):
            self._process.send_signal(number)


def _has_terminal() -> bool:
    """Are we in the foreground of a terminal? Then it has sent the command the same signal."""
    # Not asked of our own files: they may all lead elsewhere, and the terminal is still ours.
    with contextlib.suppress(OSError):
        fd = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            return os.tcgetpgrp(fd) == os.getpgrp()
        finally:
            os.close(fd)
    return False
