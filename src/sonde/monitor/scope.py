"""What is watched: the tree of one process, or all of the container or machine."""

from __future__ import annotations

from dataclasses import dataclass

GIB, KIB = 2**30, 2**10


@dataclass(frozen=True)
class Scope:
    """Whose CPU time, memory and disk traffic count.

    `pid` is the top of a tree, 0 for everything that is here. With a command the top is the
    monitor itself, which is left out: `depth` is 1 then. After the command's end, at `ended_ns`,
    its traffic since the last look that saw it is found in that of the monitor, to which the kernel
    has added it."""

    pid: int = 0
    depth: int = 0
    ended_ns: int = 2**62

    @property
    def is_tree(self) -> bool:
        """Is it a tree of processes?"""
        return self.pid != 0

    def describe(self) -> str:
        """In words, for the report."""
        if self.depth:
            return "the command and every process below it"
        if self.pid:
            return f"process {self.pid} and every process below it"
        return "everything in this container, or on this machine"


@dataclass(frozen=True)
class Gpu:
    """One GPU at one look."""

    util_pct: float | None
    memory_util_pct: float | None
    used_bytes: float | None
    total_bytes: float | None


@dataclass(frozen=True)
class Look:
    """What one look at the machine found; rates are per second, NULL is None."""

    t_ns: int
    interval_ns: int
    cpu_pct: float | None
    used_bytes: float | None
    total_bytes: float | None
    read_bytes_s: float | None
    written_bytes_s: float | None
    received_bytes_s: float | None
    sent_bytes_s: float | None
    gpus: dict[int, Gpu]

    @property
    def rates(self) -> tuple[float | None, ...]:
        """Disk read and written, network received and sent."""
        return self.read_bytes_s, self.written_bytes_s, self.received_bytes_s, self.sent_bytes_s
