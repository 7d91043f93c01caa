"""`sonde ps`: in which order recordings are listed, and what an empty list says."""

from __future__ import annotations

from sonde.cli.ps import (
    _calm_workers,
    _describe_none,
    _fold_workers,
    _put_jobs_together,
)


def make(pid: int, job: str | None, rank: int | None = None) -> dict[str, object]:
    return {"pid": pid, "job": job, "rank": rank, "session": f"vm-{pid}"}


def test_the_processes_of_a_job_stand_together_with_its_ranks_in_order() -> None:
    rows = [make(1, "torchrun-1"), make(5, "fetch-5"), make(3, "torchrun-1", 1),
            make(30, "pool-30"), make(9, "pool-30"), make(2, "torchrun-1", 0), make(6, None),
            make(8, "pool-30")]  # fmt: skip
    assert [row["pid"] for row in _put_jobs_together(rows)] == [1, 2, 3, 5, 30, 8, 9, 6]


def test_a_process_alone_shows_only_a_job_that_somebody_named() -> None:
    rows = [make(5, "fetch-5"), make(7, "nightly"), make(8, "pool-8"), make(9, "pool-8")]
    jobs = [row["job"] for row in _put_jobs_together(rows)]
    assert jobs == [None, "nightly", "pool-8", "pool-8"]


def test_an_empty_list_says_whether_anything_was_recorded_before() -> None:
    assert "try `sonde run train.py`" in _describe_none("/r", [])
    told = _describe_none("/r", [make(1, None), make(2, None)])
    assert told.startswith("nothing is being recorded now; 2 recordings in /r have ended")


def show(pid: int, state: str = "ended", rank: int | None = None) -> dict[str, object]:
    return {"pid": pid, "job": "pool-1", "rank": rank, "state": state, "lasted": "2.0 s",
            "size": "1 KiB", "size_bytes": 1024, "command": "pool.py"}  # fmt: skip


def test_many_workers_that_ended_in_order_are_one_line() -> None:
    rows = [*[show(pid) for pid in range(2, 10)], show(10, "SIGKILL"), show(11, "running")]
    folded, killed, running = _fold_workers(rows)
    assert folded["command"] == "pool.py (8 of these; -l lists them)"
    assert (folded["pid"], folded["size"]) == (None, "8 KiB")
    forked = [
        {**show(pid), "command": "\N{BOX DRAWINGS LIGHT UP AND RIGHT} forked by 1"}
        for pid in range(2, 10)
    ]
    (folded,) = _fold_workers(forked)
    assert folded["command"] == "\N{BOX DRAWINGS LIGHT UP AND RIGHT} 8 forked by 1 (-l: each)"
    assert (killed["pid"], running["pid"]) == (10, 11)
    ranks = [show(pid, rank=pid) for pid in range(8)]
    assert _fold_workers(ranks) == ranks and _fold_workers(rows[:4]) == rows[:4]


def test_workers_that_their_pool_ended_are_no_alarm_but_others_that_were_killed_are() -> None:
    def make_row(session: str, parent: str | None, state: str, **more: object) -> dict[str, object]:
        return {"session": session, "parent": parent, "state": state, "word": more.get("signal"),
                "exit_code": more.get("code"), "exit_signal": more.get("signal"),
                "is_unseen": more.get("unseen", False), "host": "here", "job": None, "pid": 0,
                "ppid": 0}  # fmt: skip

    rows = [
        make_row("pool", None, "ended", code=0),
        make_row("worker", "pool", "killed", signal="SIGTERM"),
        make_row("quick", "pool", "killed", unseen=True),
        make_row("crashed", "pool", "killed", signal="SIGSEGV"),
        make_row("failed", None, "ended", code=1),
        make_row("child", "failed", "killed", signal="SIGTERM"),
        make_row("alone", "failed", "killed", unseen=True),
    ]
    shown = [(row["word"] or row["state"]) for row in _calm_workers(rows)]
    assert shown == ["ended", "ended", "ended", "SIGSEGV", "ended", "SIGTERM", "killed"]
