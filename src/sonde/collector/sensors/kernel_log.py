"""The kernel's log: processes killed for memory, errors of GPUs and of disks."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator

from sonde.collector.descriptor import Descriptor
from sonde.collector.sensors._files import Reader, Row
from sonde.errors import Unavailable
from sonde.tables.system import KernelLog

_RECORD_BYTES = 8192  # more than the kernel writes in one
_MOST_RECORDS = 10_000  # in one reading: a driver in trouble may write without end
_MOST_ROWS, _HOUR_NS = 100, 3600 * 10**9  # rows in an hour: their texts are kept for ever
_MOST_CHARS = 400
_KINDS = (
    ("oom", re.compile(r"out of memory|oom-kill|killed process|oom_reaper", re.IGNORECASE)),
    ("gpu", re.compile(r"NVRM: Xid|amdgpu.*(?:gpu reset|ring .* timeout)")),
    ("io", re.compile(r"I/O error|(?:EXT4|BTRFS|XFS)\b.*\b(?:error|corrupt)|nvme.*timeout", re.I)),
)
_HEAD = re.compile(r"(\d+),(\d+),\d+,[^;]*;(.*)")
_LEVELS = ("emergency", "alert", "critical", "error", "warning", "notice", "info", "debug")


class Sensor:
    """Reads what the kernel has written to /dev/kmsg since the last reading."""

    def __init__(self, reader: Reader) -> None:
        # Never /proc/kmsg: what one process reads there is gone for all others.
        self._path = "/dev/kmsg" if reader.is_real else f"{reader.proc}/dev-kmsg"
        self._clock = reader.clock
        self._file: Descriptor | None = None
        self._written_ns: deque[int] = deque(maxlen=_MOST_ROWS)

    def read_machine(self) -> Iterator[Row]:
        """Yield rows about the machine."""
        for _ in range(_MOST_RECORDS):
            data = self._read_next()
            if not data:
                return
            for line in data.decode("utf-8", "replace").splitlines():
                row = self._judge(line)
                if row is not None:
                    yield row

    def read_process(self, _pid: int) -> Iterator[Row]:
        """Yield nothing: the log is the machine's."""
        return iter(())

    def _read_next(self) -> bytes | None:
        """Return the next record; None if there is none yet."""
        if self._file is None:
            try:
                self._file = Descriptor(_open(self._path))
            except OSError as error:
                reason = f"the kernel's log cannot be read: {self._path}: {error.strerror}"
                raise Unavailable(reason) from None
            os.lseek(
                self._file.fileno(), 0, os.SEEK_END
            )  # what came before belongs to nobody's recording
        try:
            return os.read(self._file.fileno(), _RECORD_BYTES)
        except BlockingIOError:
            return None
        except BrokenPipeError:
            return b"\n"  # records were overwritten before we read them; the next ones are there

    def _judge(self, line: str) -> Row | None:
        found = _HEAD.match(line)
        if found is None:
            return None  # more about a record, such as its device
        priority, number, message = int(found[1]), int(found[2]), found[3]
        kind = next((name for name, pattern in _KINDS if pattern.search(message)), None)
        now_ns = self._clock()
        full = len(self._written_ns) == _MOST_ROWS and now_ns - self._written_ns[0] < _HOUR_NS
        if kind is None or full:
            return None
        self._written_ns.append(now_ns)
        return KernelLog, (now_ns, number, kind, _LEVELS[priority & 7], message[:_MOST_CHARS])


def _open(path: str) -> int:
    # Reading must never wait for the kernel to say something.
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
