"""Processes that the kernel has killed for memory, as its log says.

Our collector gives way first when memory runs out, so that the job may live on. If the job is
killed all the same, nobody is left to say by what, except the kernel."""

from __future__ import annotations

import os
import re
import time

_LOG = "/dev/kmsg"
_RECORD_BYTES = 8192  # more than the kernel writes in one
_MOST_RECORDS = 100_000
_NEAR_NS = 10 * 10**9  # a recording's last row may be some seconds older than its end
_KILLED = re.compile(rb"\d+,\d+,(\d+),[^;]*;(.*)Killed process (\d+) \(")
_MOST_AGE_S = 1.0

_Kill = tuple[int, int, str]  # when, which process, for want of whose memory
_read: tuple[float, list[_Kill]] | None = None


def find_kill(pid: int, end_wall_ns: int) -> str | None:
    """Return whose memory was used up when the kernel killed a process that ended about then:
    `cgroup` or `machine`; None if the log does not say that, or may not be read."""
    for wall_ns, killed, whose in _list_kills():
        if killed == pid and abs(wall_ns - end_wall_ns) < _NEAR_NS:
            return whose
    return None


def _list_kills() -> list[_Kill]:
    """Return all that the log has now; it is read once for many sessions."""
    global _read
    if _read is None or time.monotonic() - _read[0] > _MOST_AGE_S:
        _read = time.monotonic(), _read_log()
    return _read[1]


def _read_log() -> list[_Kill]:
    found: list[_Kill] = []
    try:
        file = os.open(_LOG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return found  # only root may, on most machines
    start_ns = time.time_ns() - time.monotonic_ns()
    try:
        for _ in range(_MOST_RECORDS):
            try:
                data = os.read(file, _RECORD_BYTES)
            except BrokenPipeError:  # the oldest records were overwritten meanwhile
                continue
            if not data:
                break
            for since_us, text, pid in _KILLED.findall(data):
                whose = "cgroup" if b"cgroup" in text else "machine"
                found.append((start_ns + int(since_us) * 1000, int(pid), whose))
    except OSError:
        pass  # there is no more
    finally:
        os.close(file)
    return found
