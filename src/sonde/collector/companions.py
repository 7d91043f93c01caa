"""The collector's own child processes: the one that ships, the agent of the host, and those that
look for native functions."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from typing import Protocol

from sonde import launch
from sonde.collector.native_process import NativeProcesses, Target
from sonde.session.shipped import has_unshipped

_REST_S = (1.0, 300.0)  # before one is started again: at first, and at most
_SOUND_S = 60.0  # one that ran so long had no trouble of its own


class Wishes(Target, Protocol):
    """What a recorded process asks of the collector."""

    is_shipped: bool
    agent: str  # the address at which an agent is to answer; empty: none


class Companions:
    """Keeps them running as long as a recorded process wants them."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._shipper, self._agent = _Companion(), _Companion()
        self._native = NativeProcesses()
        self._looks = True  # for sessions that an earlier collector left behind

    @property
    def is_busy(self) -> bool:
        """Whether one has something to do although nothing is recorded."""
        return self._shipper.is_running

    def keep(self, watched: Iterable[Wishes], now_s: float) -> None:
        """Start what is wanted and does not run; end an agent that nobody wants any more."""
        known = list(watched)
        self._native.keep(known)
        if self._shipper.is_due(now_s):
            ships = any(one.is_shipped for one in known)
            if not ships:
                ships, self._looks = self._looks and has_unshipped(self._root), False
            if ships:
                self._shipper.start(launch.make_command("collector.shipper", self._root), now_s)
        address = next((one.agent for one in known if one.agent), "")
        if not address:
            self._agent.end()
        elif self._agent.is_due(now_s):
            report = launch.agent_report(self._root)
            words = launch.make_command("fleet.companion", self._root, address, report=report)
            self._agent.start(words, now_s)

    def count(self) -> int:
        """Return how many run."""
        return self._shipper.is_running + self._agent.is_running + self._native.count()

    def end(self) -> None:
        """End all: the shipper goes on where it was when another one is started."""
        self._native.keep(())
        self._shipper.end()
        self._agent.end()


class _Companion:
    """One child process, which ends when its stdin does; started again after growing pauses."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._begun_s = self._rest_s = 0.0
        self._again_s = float("-inf")

    @property
    def is_running(self) -> bool:
        """Whether it ran when it was last looked at."""
        return self._child is not None

    def is_due(self, now_s: float) -> bool:
        """Note its end; tell whether it may be started now."""
        if self._child is not None:
            code = self._child.poll()
            if code is None:
                return False
            self.end()
            self._rest_s = 0.0 if now_s - self._begun_s > _SOUND_S or code == 0 else self._rest_s
            self._rest(now_s)
        return now_s >= self._again_s

    def start(self, command: list[bytes], now_s: float) -> None:
        """Start it; without a command, this Python cannot be started."""
        if not command:
            return
        self._begun_s = now_s
        try:
            self._child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        except OSError:  # there may be no more processes, files or memory at this moment
            self._rest(now_s)

    def _rest(self, now_s: float) -> None:
        self._rest_s = min(_REST_S[1], max(_REST_S[0], 2 * self._rest_s))
        self._again_s = now_s + self._rest_s

    def end(self) -> None:
        """End it."""
        if self._child is not None:
            self._child.kill()
            assert self._child.stdin is not None
            self._child.stdin.close()
            self._child.wait()
            self._child = None
