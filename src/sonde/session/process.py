"""Which process it is: pids are used again, within one start of the machine and across two."""

from __future__ import annotations


def read_start_ticks(pid: int, proc: str = "/proc") -> int | None:
    """When the kernel says a process started; None if it is gone or a zombie."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:
            # The name may hold spaces and brackets; the fields follow its last bracket.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def read_boot_id() -> str | None:
    """Which start of the machine this is: pids mean nothing across two of them."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return None
