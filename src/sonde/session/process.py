"""What tells processes apart: pids are reused, and mean nothing after a restart of the machine."""

from __future__ import annotations


def read_start_ticks(pid: int, proc: str = "/proc") -> int | None:
    """Return when a process started, in ticks of the kernel; None if it is gone or a zombie."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:
            # The name may hold spaces and brackets; the fields follow its last bracket.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def read_boot_id() -> str | None:
    """Return the id of this start of the machine; None if the kernel does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return None
