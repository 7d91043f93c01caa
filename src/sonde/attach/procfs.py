"""A running process as /proc shows it: what it is, who traces it, what it has mapped."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Mapping:
    """A range of mapped memory."""

    start: int
    end: int
    is_executable: bool
    offset: int
    device: tuple[int, int]
    inode: int
    path: str


def read_mappings(maps: bytes) -> list[Mapping]:
    """Return the mapped memory that the file `maps` of a process tells."""
    found = []
    for line in maps.decode(errors="surrogateescape").splitlines():
        span, rights, offset, device, inode, *path = line.split(None, 5)
        start, _, end = span.partition("-")
        major, _, minor = device.partition(":")
        found.append(
            Mapping(int(start, 16), int(end, 16), "x" in rights, int(offset, 16),
                    (int(major, 16), int(minor, 16)), int(inode), path[0] if path else "")
        )  # fmt: skip
    return found


class ProcessFiles:
    """What /proc says of a pid now; FileNotFoundError if the process is gone."""

    def __init__(self, pid: int, proc: str = "/proc") -> None:
        self.pid, self.folder = pid, f"{proc}/{pid}"

    def read(self, name: str) -> bytes:
        """Read a file of the process."""
        with open(f"{self.folder}/{name}", "rb") as file:
            return file.read()

    def read_status(self, name: str = "status") -> dict[str, str]:
        """Return the lines of `status` by name, of the process or of one of its threads."""
        lines = self.read(name).decode(errors="replace").splitlines()
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}

    def read_link(self, name: str) -> str:
        """Return where a link of the process points."""
        return os.readlink(f"{self.folder}/{name}")

    def read_words(self, name: str) -> list[str]:
        """Return the words of `cmdline` or `environ`."""
        return os.fsdecode(self.read(name)).rstrip("\0").split("\0")

    def find_start(self) -> int:
        """Return when the process began, in nanoseconds since 1970; 0 if its files are not those
        that we see."""
        if self.read_link("root") != "/":
            return 0
        ticks = int(self.read("stat").rpartition(b")")[2].split()[19])
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        return time.time_ns() - round(age_s * 1e9)

    def list_threads(self) -> list[int]:
        """Return the thread ids, the main thread last."""
        threads = [int(name) for name in os.listdir(f"{self.folder}/task")]
        return sorted(threads, key=lambda tid: (tid == self.pid, tid))

    def find_processor(self, tid: int) -> int:
        """Return the processor on which a thread last ran."""
        return int(self.read(f"task/{tid}/stat").rpartition(b")")[2].split()[36])

    def list_mappings(self) -> list[Mapping]:
        """Return the mapped memory; anonymous parts have no path."""
        return read_mappings(self.read("maps"))

    def find_file(self, path: str) -> str:
        """Return the path by which we see a file of the process's own file system."""
        return f"{self.folder}/root{path}"
