"""How processes that did not end in order are told."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import sonde
from sonde.session import ending, list_sessions, stack_table
from sonde.session.ending import describe_ends, find_ended_by_parents, wait_for_statuses
from sonde.session.records import Exit


class Ended:
    """The session of a process that has ended with this status."""

    def __init__(self, pid: int, status: int, ppid: int = 0) -> None:
        self.pid, self.host, self.id = pid, "vm", f"vm-{pid}"
        self.meta = SimpleNamespace(ppid=ppid, argv=["pool.py"])
        self._exit = Exit(status=status, exception="")  # none, and nothing to look for

    def find_state(self) -> str:
        return "ended"

    def read_exit(self) -> Exit:
        return self._exit


@pytest.mark.parametrize("code", [0, 3])
def test_workers_that_their_pool_ended_are_told_only_if_that_failed(code: int) -> None:
    workers = [Ended(pid, signal.SIGTERM, 1) for pid in (2, 3)]
    told = describe_ends([Ended(1, code << 8), *workers])
    each = "2 processes (2, 3): each was ended by SIGTERM"
    assert told == ([each, "pool.py (pid 1) ended with exit code 3"] if code else [])
    assert describe_ends(workers) == [each]


def test_who_was_ended_by_a_parent_that_ended_in_order_is_known(monkeypatch) -> None:
    monkeypatch.setattr(ending, "_find_unseen_end", lambda _session: None)
    workers = [Ended(2, signal.SIGTERM, 1), Ended(3, signal.SIGKILL, 1), Ended(4, 0, 1)]
    unseen = Ended(5, 0, 1)
    unseen.find_state = lambda: "killed"
    unseen.read_exit = lambda: Exit(status=None, exception="")
    assert find_ended_by_parents([Ended(1, 0), *workers, unseen]) == {"vm-2", "vm-5"}
    assert find_ended_by_parents([Ended(1, 3 << 8), *workers, unseen]) == set()


def test_workers_that_crash_are_told_whatever_became_of_their_parent() -> None:
    told = describe_ends([Ended(1, 0), Ended(2, signal.SIGSEGV, 1)])
    assert told == ["pool.py (pid 2) was ended by SIGSEGV"]


FAULT = """
import signal, time, sonde
sonde.start(collector=False)
time.sleep(0.3)
signal.raise_signal(signal.SIGSEGV)
"""


def test_a_fault_in_the_last_moment_is_most_likely_what_has_ended_it(run_anew, root: Path) -> None:
    # Older kernels tell nobody but the parent how a process ended.
    assert run_anew(FAULT, check=False).returncode == -signal.SIGSEGV
    (session,) = list_sessions(str(root))
    end = ending.find_ending(session)
    assert end is not None and end.sentence == "was most likely ended by SIGSEGV"
    assert end.word == "SIGSEGV?"


def test_a_program_that_goes_on_after_faults_was_not_ended_by_the_last_one(
    run_anew, root: Path
) -> None:
    run_anew(FAULT, check=False)
    (session,) = list_sessions(str(root))
    rows = list(stack_table.read_rows(session, "python.fatal_signal"))
    earlier = {**rows[0], "t_ns": rows[0]["t_ns"] - 2 * 10**9}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stack_table, "read_rows", lambda _session, _table: [earlier, *rows])
        assert ending.find_fault(session) is None
        patch.setattr(
            stack_table, "read_rows", lambda _session, _table: [{**rows[0], "signal": None}]
        )
        assert ending.find_fault(session) is None
    found = ending.find_fault(session)
    assert found is not None and (found.status, found.is_guess) == (signal.SIGSEGV, True)


NO_HOOKS = """
import ctypes, os, time, sonde
folder = sonde.start()
while not os.path.exists(os.path.join(folder, "system.process.ring")):   # the collector knows it
    time.sleep(0.01)
ctypes.CDLL(None)._exit(0)
"""


def test_who_ended_without_exit_hooks_just_now_is_not_called_killed(run, root) -> None:
    run(NO_HOOKS)
    [session] = list_sessions(str(root))
    wait_for_statuses([session], patience_s=60.0)
    assert session.find_state() == "ended"


def test_nobody_waits_for_the_reason_of_what_runs_or_has_ended_in_order(run, root) -> None:
    run("import sonde\nsonde.start()")
    sonde.start()
    begin = time.monotonic()
    wait_for_statuses(list(list_sessions(str(root))), patience_s=600.0)
    assert time.monotonic() - begin < 300.0
