"""What is watched: a process tree, or the whole container or machine."""

from __future__ import annotations

from dataclasses import dataclass

GIB, KIB = 2**30, 2**10


@dataclass(frozen=True)
class Scope:
    """Whose CPU time, memory and disk traffic count.

    `pid` is the top of a process tree; 0 means everything in this container or on this machine.
    With a command the top is the monitor itself, which is left out: `depth` is 1 then. When the
    command ends, at `ended_ns`, the kernel adds its traffic to the monitor's: what it did after its
    last reading is found there. `has_own_network`: see network_owner.py."""

    pid: int = 0
    depth: int = 0
    ended_ns: int = 2**62
    has_own_network: bool = False

    @property
    def is_tree(self) -> bool:
        """Whether it is a process tree."""
        return self.pid != 0

    @property
    def network_of(self) -> str:
        """Whose traffic the network's numbers are; empty if it is that of what is watched."""
        is_own = self.has_own_network or not self.is_tree
        return "" if is_own else "the whole container or machine"

    def describe(self) -> str:
        """Return it in words, for the report."""
        if self.depth:
            return "the command and every process below it"
        if self.pid:
            return f"process {self.pid} and every process below it"
        return "everything in this container, or on this machine"


@dataclass(frozen=True)
class GpuReading:
    """One GPU in one reading."""

    util_pct: float | None
    memory_util_pct: float | None
    used_bytes: float | None
    total_bytes: float | None


@dataclass(frozen=True)
class Reading:
    """One reading of the sensors; rates are per second, unknown values are None."""

    t_ns: int
    interval_ns: int
    cpu_pct: float | None
    used_bytes: float | None
    total_bytes: float | None
    read_bytes_s: float | None
    written_bytes_s: float | None
    received_bytes_s: float | None
    sent_bytes_s: float | None
    gpus: dict[int, GpuReading]

    @property
    def rates(self) -> tuple[float | None, ...]:
        """The rates of disk reads and writes, and of the network in and out."""
        return self.read_bytes_s, self.written_bytes_s, self.received_bytes_s, self.sent_bytes_s
