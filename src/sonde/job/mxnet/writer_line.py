"""The connection from the job to the process that writes trace files.

Thanks to that process the job needs no Arrow and no database, and its GIL is free while a file is
written. The process reads the session folder like any reader; the connection only carries what to
write and when. When it breaks, because the job has ended in whatever way, the process writes the
last file on its own."""

from __future__ import annotations

import _socket  # `socket` would be one more import in the job
import json
import os
import select
import time
from _thread import RLock

from sonde import _core, launch

_MAX_UNSENT_BYTES = 2**20  # beyond this, the process at the other end is stopped or gone
_POLL_S = 0.01  # short, because another thread may have read our answer


class WriterLine:
    """Sends requests, one JSON object per line, and waits for answers. It never raises: a lost
    connection is simply no answer."""

    def __init__(self) -> None:
        self.lock = RLock()
        self._line: _socket.socket | None = None
        self._pid = 0
        self._unsent = self._unread = b""
        self._answers: dict[int, dict[str, object]] = {}
        self._last = 0

    @property
    def is_connected(self) -> bool:
        """Whether the process was started and has not been lost since."""
        return self._line is not None and self._pid == os.getpid()

    def start(self, root: str) -> bool:
        """Start the process if there is none; return False if that is not possible."""
        with self.lock:
            if self.is_connected:
                return True
            self._forget()
            command = launch.make_command("export.profiler_writer", root)
            if not command:
                return False
            kind = _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC
            try:
                ours, theirs = _socket.socketpair(_socket.AF_UNIX, kind)
            except OSError:
                return False
            try:
                _core.spawn(command, launch.make_environment(SONDE="0"), theirs.fileno())
            except OSError:
                ours.close()
                return False
            finally:
                theirs.close()
            self._line, self._pid = ours, os.getpid()
            return True

    def send(self, **request: object) -> None:
        """Send a request that needs no answer; never wait."""
        with self.lock:
            self._unsent += json.dumps(request).encode() + b"\n"
            self._flush()

    def ask(self, timeout_s: float, **request: object) -> dict[str, object] | None:
        """Send a request and return the answer, or None if it does not come in time."""
        deadline = time.monotonic() + timeout_s
        with self.lock:
            self._last += 1
            number = self._last
            self.send(**request, ask=number)
        while self.is_connected:
            with self.lock:
                self._flush()
                self._read()
                if number in self._answers:
                    return self._answers.pop(number)
                line = -1 if self._line is None else self._line.fileno()
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return None
            # Without the lock, so that other threads can send requests meanwhile.
            _wait(line, min(_POLL_S, left_s))
        return None

    def close(self) -> None:
        """Close the connection: the process finishes what it has and exits."""
        with self.lock:
            self._forget()

    def leave_parent(self) -> None:
        """Forget the connection in a forked child: it is the parent's, and so may be the lock."""
        self.lock = RLock()
        self._forget()

    def _forget(self) -> None:
        line, self._line = self._line, None
        self._unsent = self._unread = b""
        self._answers.clear()
        if line is not None:
            line.close()

    def _flush(self) -> None:
        if self._line is None:
            self._unsent = b""
            return
        try:
            self._line.settimeout(0)
            while self._unsent:
                # Without a signal, because SIGPIPE may end the program.
                sent = self._line.send(self._unsent, _socket.MSG_NOSIGNAL)
                self._unsent = self._unsent[sent:]
        except BlockingIOError:
            if len(self._unsent) > _MAX_UNSENT_BYTES:
                self._forget()
        except OSError:
            self._forget()

    def _read(self) -> None:
        if self._line is None:
            return
        try:
            self._line.settimeout(0)
            got = self._line.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            got = b""
        if not got:
            self._forget()
            return
        *lines, self._unread = (self._unread + got).split(b"\n")
        for line in lines:
            answer = json.loads(line)
            self._answers[answer["ask"]] = answer


def _wait(line: int, timeout_s: float) -> None:
    """Wait until there is something to read, or until the timeout."""
    poll = select.poll()
    if line >= 0:
        poll.register(line, select.POLLIN)
    poll.poll(timeout_s * 1000)
