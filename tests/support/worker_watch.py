"""Ends a worker of the tests that has been silent for so long that nothing else will end it.

A test that hangs is interrupted, and one that no signal reaches ends its worker. What is left are a
worker that was stopped, and one that is gone while a child of it still holds its pipe: the tests would
wait for it for ever. Whoever holds the pipe is named, told where they stand, and killed; the test that
ran counts as failed, and a new worker goes on with the rest.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.zygote import describe_process

_EVERY_S = 5.0


class WorkerWatch:
    """A plugin of the process that hands out the tests."""

    def __init__(self, silence_s: float, write: Callable[[str], object]) -> None:
        self._silence_s = silence_s
        self._write = write
        self._last: dict[object, float] = {}  # when each worker was heard
        self._running: set[str] = set()
        self._lock = threading.Lock()
        self._over = threading.Event()

    def pytest_sessionstart(self) -> None:
        threading.Thread(target=self._watch, name="watch of the workers", daemon=True).start()

    def pytest_sessionfinish(self) -> None:
        self._over.set()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodeready(self, node: object) -> None:
        self._hear(node)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        with self._lock:
            self._last.pop(node, None)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running.add(nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._running.discard(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        node = getattr(report, "node", None)
        if node in self._last:
            self._hear(node)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, sched: object) -> None:
        """Leave out what ended a worker, and files that are done: the scheduler hands out both again,
        the first until no worker is left, and waits for ever for the end of the second."""
        self._running.discard(crashitem)
        for scope, tests in list(sched.workqueue.items()):
            if crashitem in tests:
                tests[crashitem] = True
            if all(tests.values()):
                del sched.workqueue[scope]

    def _hear(self, node: object) -> None:
        with self._lock:
            self._last[node] = time.monotonic()

    def _watch(self) -> None:
        while not self._over.wait(_EVERY_S):
            now = time.monotonic()
            with self._lock:
                silent = [one for one, at in self._last.items() if now - at > self._silence_s]
                for node in silent:
                    self._last[node] = now
            for node in silent:
                self._end(node)

    def _end(self, node: object) -> None:
        process = node.gateway._io.popen
        running = ", ".join(sorted(self._running)) or "none"
        self._write(f"\n{node} is silent for {self._silence_s:g} s; tests that run: {running}")
        for pid in _list_holders(process.stdout.fileno()):
            with contextlib.suppress(OSError):
                self._write(describe_process(pid))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _list_holders(fd: int) -> list[int]:
    """The other processes that have this pipe open."""
    name = os.readlink(f"/proc/self/fd/{fd}")
    found = []
    for path in Path("/proc").glob("[0-9]*/fd"):
        if int(path.parent.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if any(os.readlink(one) == name for one in path.iterdir()):
                found.append(int(path.parent.name))
    return found
