"""Identify processes: pids are reused, and mean nothing after a boot or in another namespace."""

from __future__ import annotations

import os

WHOLE_MACHINE = 0xEFFFFFFC  # the namespace of pids that is there from the start, on every Linux


def read_start_ticks(pid: int, proc: str = "/proc") -> int | None:
    """Return when a process started, in ticks of the kernel; None if it has ended."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:
            # The name may contain spaces and brackets; the fields follow the last bracket.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def read_boot_id() -> str | None:
    """Return the id of the machine's current boot; None if the kernel does not provide one."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return None


def read_pid_namespace() -> int | None:
    """Return the number of the namespace that the pids of this process are of; None if the kernel
    does not provide one."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return None
