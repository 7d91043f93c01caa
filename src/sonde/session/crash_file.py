"""crash.stacks: the native stacks of all threads at a fault, not unwound yet."""

from __future__ import annotations

import struct

from sonde.errors import Damaged

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "crash.stacks"
FAULT, WAITS, RUNS = range(3)  # as in crash_stacks.c, and so is what follows
FORBIDDEN, NO_ROOM = 1, 2  # why threads lack
_MAGIC, _VERSION = 0x68736172636E6F73, 1
_MAPS, _THREAD, _GAP = 1, 2, 3
_HEAD = struct.Struct("<QIIqQ")
_RECORD = struct.Struct("<II")
_REASON = struct.Struct("<I")
_ABOUT = struct.Struct("<QQQIIIIII")


class CrashThread:
    """One thread: where it was, a copy of its stack, and what Python had of it."""

    __slots__ = ("depth", "ends", "first", "how", "pc", "registers", "sp", "stack", "tid")

    def __init__(self, data: bytes) -> None:
        (self.tid, self.pc, self.sp, self.how, self.first, registers, ends, self.depth, _) = (
            _ABOUT.unpack_from(data)
        )
        at = _ABOUT.size
        self.registers = list(struct.unpack_from(f"<{registers}Q", data, at))  # from `first` on
        at += 8 * registers
        # For each call of the interpreter's C function: how many frames of Python end with it.
        self.ends = list(struct.unpack_from(f"<{ends}I", data, at))
        self.stack = data[at + 4 * ends :]  # from `sp` on


class CrashFile:
    """The contents of the file, as far as the program got to write it."""

    def __init__(self, path: str) -> None:
        with open(path, "rb") as file:
            data = file.read()
        try:
            magic, version, _, self.t_ns, self.thread = _HEAD.unpack_from(data)
            if (magic, version) != (_MAGIC, _VERSION):
                raise Damaged(f"{path} is damaged")
            self.maps, self.threads = b"", list[CrashThread]()
            self.gap = 0  # why it ends early, if it does
            for kind, part in _split(data):
                if kind == _MAPS:
                    self.maps += part
                elif kind == _THREAD:
                    self.threads.append(CrashThread(part))
                elif kind == _GAP:
                    (self.gap,) = _REASON.unpack_from(part)
            self.maps = self.maps[: self.maps.rfind(b"\n") + 1]  # without half a line
        except struct.error:
            raise Damaged(f"{path} is damaged") from None


def _split(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the records that are complete."""
    at = _HEAD.size
    while at + _RECORD.size <= len(data):
        kind, size = _RECORD.unpack_from(data, at)
        at += _RECORD.size
        if at + size <= len(data):
            yield kind, data[at : at + size]
        at += size
