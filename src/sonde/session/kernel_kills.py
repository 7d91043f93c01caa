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
_DRIFT = 10_000  # the log's clock is not set by any other: it goes wrong by one part in this many
_NEVER_NS = 2**63  # later than anything
_RECORD = re.compile(rb"^\d+,\d+,(\d+),[^;]*;(.*)$", re.MULTILINE)
_KILLED = re.compile(rb"Killed process (\d+) \(")
_MOST_AGE_S = 1.0

_Kill = tuple[int, int, str]  # when, by the log's clock; which process; for want of whose memory
_read: tuple[float, int, list[_Kill]] | None = None  # when, the oldest record, all kills


def find_kill(pid: int, end_ns: int) -> str | None:
    """Return whose memory was full when the kernel killed a process that ended about then, by the
    monotonic clock: `cgroup` or `machine`; an empty text if it did not kill it; None if the log may
    not be read, or has forgotten."""
    oldest_ns, kills = _read_now()
    near_ns = _NEAR_NS + end_ns // _DRIFT
    for t_ns, killed, whose in kills:
        if killed == pid and abs(t_ns - end_ns) < near_ns:
            return whose
    return "" if oldest_ns < end_ns - near_ns or oldest_ns < _NEAR_NS else None


def _read_now() -> tuple[int, list[_Kill]]:
    """Return the time of the oldest record, and all kills; the log is read once for many
    sessions."""
    global _read
    if _read is None or time.monotonic() - _read[0] > _MOST_AGE_S:
        _read = time.monotonic(), *_read_log()
    return _read[1:]


def _read_log() -> tuple[int, list[_Kill]]:
    found: list[_Kill] = []
    oldest_ns = _NEVER_NS
    try:
        file = os.open(_LOG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return oldest_ns, found  # only root may, on most machines
    try:
        for _ in range(_MOST_RECORDS):
            try:
                data = os.read(file, _RECORD_BYTES)
            except BrokenPipeError:  # the oldest records were overwritten meanwhile
                oldest_ns = _NEVER_NS
                continue
            if not data:
                break
            for since_us, text in _RECORD.findall(data):
                t_ns = int(since_us) * 1000
                oldest_ns = min(oldest_ns, t_ns)
                for pid in _KILLED.findall(text):
                    whose = "cgroup" if b"cgroup" in text else "machine"
                    found.append((t_ns, int(pid), whose))
    except OSError:
        pass  # there is no more
    finally:
        os.close(file)
    return oldest_ns, found
