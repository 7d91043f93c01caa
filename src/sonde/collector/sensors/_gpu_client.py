"""The collector's end of the connection to the process that queries NVIDIA's library."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from typing import Any

from sonde import environ, plugins
from sonde.collector.sensors._files import Reader
from sonde.errors import Unavailable

_CODE = (
    "import sys; sys.path[0] = sys.argv.pop(1); "
    "from sonde.collector.sensors._gpu_process import main; main()"
)
_WAIT_S = 0.05  # in one reading; an answer that takes longer comes with the next
_FIRST_S = 60.0  # the library wakes all GPUs when it starts
_LATE_S = 5.0
# One of these exists if there is a driver; /dev/dxg is a GPU that Windows shares with Linux.
_SIGNS = ("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/dxg")


class Answer:
    """The state of all GPUs at one moment, from NVIDIA's library; raises ValueError if invalid."""

    __slots__ = ("error", "gpus", "lost")

    def __init__(self, found: object) -> None:
        if not isinstance(found, dict):
            raise ValueError("NVML's process did not write an answer")
        error = found.get("error")
        self.error = None if error is None else str(error)
        self.gpus: list[dict[str, Any]] = list(found.get("gpus", []))
        self.lost = [str(line) for line in found.get("lost", [])]


class Gpus:
    """Starts that process at the first request, and ends it when it does not answer."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._child: subprocess.Popen[bytes] | None = None
        self._dying: list[subprocess.Popen[bytes]] = []
        self._text = b""
        self._asked_ns: int | None = None  # when the pending request was sent
        self._answers = 0
        self._last: tuple[int, Answer | None] = (-1, None)

    def ask(self) -> Answer | None:
        """Return the answer for this reading, or None if there is none yet.

        Raise Unavailable or OSError if there cannot be one; a later request starts the process
        again."""
        if self._last[0] != self._reader.number:
            self._last = (self._reader.number, self._ask())
        return self._last[1]

    def _ask(self) -> Answer | None:
        self._dying = [child for child in self._dying if child.poll() is None]
        if self._child is None:
            self._start()
        wait_s = 0.0
        if self._asked_ns is None:
            self._send()
            wait_s = _WAIT_S
        answer = self._receive(wait_s)
        if answer is None and self._asked_ns is not None:
            late_s = _LATE_S if self._answers else _FIRST_S
            if self._reader.clock() - self._asked_ns > late_s * 1e9:
                self.end()
                raise TimeoutError(f"NVML has not answered for {late_s:g} s; sonde will try again")
        if answer is not None and answer.error is not None:
            self.end()
            raise Unavailable(answer.error)
        return answer

    def _start(self) -> None:
        fake = environ.find_nvml()
        if fake is None and not any(os.path.exists(path) for path in _SIGNS):
            raise Unavailable("this machine has no NVIDIA driver")
        here = os.path.dirname(plugins.PACKAGE)
        folders = [] if fake is None else [fake]
        self._child = subprocess.Popen(
            [sys.executable, "-c", _CODE, here, *folders], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
        )  # fmt: skip
        self._text, self._asked_ns, self._answers = b"", None, 0

    def _send(self) -> None:
        assert self._child is not None and self._child.stdin is not None
        self._asked_ns = self._reader.clock()
        try:
            self._child.stdin.write(b"\n")
        except OSError:
            self._fail()

    def _receive(self, wait_s: float) -> Answer | None:
        """Return the answer if it comes in time."""
        assert self._child is not None and self._child.stdout is not None
        end_ns = self._reader.clock() + int(wait_s * 1e9)
        while b"\n" not in self._text:
            left_s = max(0.0, (end_ns - self._reader.clock()) / 1e9)
            poll = select.poll()  # select.select() fails from the 1024th open file on
            poll.register(self._child.stdout, select.POLLIN)
            if not poll.poll(left_s * 1000):
                return None
            piece = os.read(self._child.stdout.fileno(), 65536)
            if not piece:
                self._fail()
            self._text += piece
        line, _, self._text = self._text.partition(b"\n")
        self._asked_ns = None
        self._answers += 1
        return Answer(json.loads(line))

    def _fail(self) -> None:
        child = self._child
        assert child is not None
        self.end()
        try:
            code = child.wait(0.1)
        except subprocess.TimeoutExpired:
            code = None
        died = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        raise ChildProcessError(
            f"the process that queries NVML died ({died}); sonde will try again"
        )

    def end(self) -> None:
        """Kill the process. One that hangs in the driver cannot be waited for now."""
        if self._child is not None:
            self._child.kill()
            for pipe in (self._child.stdin, self._child.stdout):
                assert pipe is not None
                pipe.close()
            self._dying.append(self._child)
            self._child = None

    def close(self) -> None:
        """End all such processes."""
        self.end()
        for child in self._dying:
            try:
                child.wait(1.0)
            except subprocess.TimeoutExpired:
                continue  # it ends when its call to the driver does
