"""The monitored command: start it, pass signals on, wait for it, and exit with its code."""

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

# A command gets all of these; without a command we handle the first two ourselves.
_STOPPING = (signal.SIGINT, signal.SIGTERM)
_PASSED_ON = (*_STOPPING, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_FROM_TERMINAL = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class Command:
    """A command, or none. Whatever goes wrong with measuring, leaving the `with` block waits for
    the command to end, and only its exit code matters."""

    def __init__(self, command: list[str], env: Mapping[str, str]) -> None:
        self._command, self._env = command, env
        self._process: subprocess.Popen[bytes] | None = None
        self._before: dict[int, object] = {}
        self._is_starting = False
        self._missed: list[int] = []  # signals that came while the command was starting
        self.signals = 0  # how often we were asked to stop
        self.code = 0

    def __enter__(self) -> Command:
        for number in _PASSED_ON if self._command else _STOPPING:
            before = signal.getsignal(number)
            # What is ignored here (nohup, a shell's background job) the command ignores as well.
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
        # The command has done its work; a problem of ours must not change its exit code.
        try:
            if isinstance(error, Error):
                print(f"sonde: {error}", file=sys.stderr)
            else:
                traceback.print_exception(kind, error, trace)
        except OSError:
            # Nobody reads stderr any more; the interpreter's final flush must not fail either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
        return True

    def start(self) -> None:
        """Start the command with the files, terminal, group and signals it has without us."""
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
        """Whether there was a command that has ended."""
        return self._process is not None and self._process.poll() is not None

    def wait(self) -> None:
        """Wait until the command has ended."""
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
            raise SystemExit(128 + number)  # the command never starts: there is nothing to measure
        elif self.signals > 1:
            raise SystemExit(self.code if self._process is not None else 128 + number)

    def _pass_on(self, number: int) -> None:
        assert self._process is not None
        if not (number in _FROM_TERMINAL and _has_terminal()):
            self._process.send_signal(number)


def _has_terminal() -> bool:
    """Tell whether we are in the foreground of a terminal, which signals the command as well."""
    # Our own files do not show it: all may be redirected while the terminal is still ours.
    with contextlib.suppress(OSError):
        fd = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            return os.tcgetpgrp(fd) == os.getpgrp()
        finally:
            os.close(fd)
    return False
