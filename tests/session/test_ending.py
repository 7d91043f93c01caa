"""How processes that did not end in order are told."""

from __future__ import annotations

import signal
from types import SimpleNamespace

import pytest

from sonde.session.ending import describe_ends
from sonde.session.records import Exit


class Ended:
    """The session of a process that has ended with this status."""

    def __init__(self, pid: int, status: int, parent: str | None = None) -> None:
        self.pid = pid
        self.meta = SimpleNamespace(id=f"vm-{pid}", parent=parent, argv=["pool.py"])
        self._exit = Exit(status=status, exception="")  # none, and nothing to look for

    def find_state(self) -> str:
        return "ended"

    def read_exit(self) -> Exit:
        return self._exit


@pytest.mark.parametrize("code", [0, 3])
def test_workers_that_their_pool_ended_are_told_only_if_that_failed(code: int) -> None:
    workers = [Ended(pid, signal.SIGTERM, "vm-1") for pid in (2, 3)]
    told = describe_ends([Ended(1, code << 8), *workers])
    each = "2 processes (2, 3): each was ended by SIGTERM"
    assert told == ([each, "pool.py (pid 1) ended with exit code 3"] if code else [])
    assert describe_ends(workers) == [each]


def test_workers_that_crash_are_told_whatever_became_of_their_parent() -> None:
    told = describe_ends([Ended(1, 0), Ended(2, signal.SIGSEGV, "vm-1")])
    assert told == ["pool.py (pid 2) was ended by SIGSEGV"]
