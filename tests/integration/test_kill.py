"""A job that is killed at any moment leaves every finished row, and a count of what it does not."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import sonde
from conftest import wait_for
from sonde.errors import NoSession
from sonde.session import Session

THREADS = 3
PROGRAM = """
import sys
import threading
import sonde

class Beat:
    thread: sonde.i32
    n: sonde.i64
    check: sonde.i64
    word: sonde.text | None

emit = sonde.table(Beat)
pace = threading.Event()

def work(thread, pause_s):
    n = 0
    while True:
        for n in range(n, n + 500):
            word = None if n % 5 == 0 else f"word {n % 16}"
            emit(thread, n, (thread * 7919 + n) * 31 % 1000000007, word)
        n += 1
        if pause_s:
            pace.wait(pause_s)

sys.setswitchinterval(1e-4)  # threads take turns within a ring's length
sonde.start(ring_bytes=sys.argv[1])
for thread in range(int(sys.argv[2])):
    threading.Thread(target=work, args=(thread, float(sys.argv[3])), daemon=True).start()
print("ready", flush=True)
threading.Event().wait()
"""
ROWS = """
SELECT thread, count(*) AS kept, count(DISTINCT n) AS different, min(n) AS first, max(n) AS last,
    count(*) FILTER (
        "check" IS DISTINCT FROM (thread * 7919 + n) * 31 % 1000000007
        OR word IS DISTINCT FROM CASE WHEN n % 5 = 0 THEN NULL ELSE 'word ' || (n % 16) END
    ) AS wrong
FROM job.beat GROUP BY thread
"""
LOSS = "SELECT * FROM sonde.loss WHERE table_name = 'job.beat'"
ROUNDS = 2  # `make stress` kills more
PARTS = ("kept", "dropped", "unfinished", "overwritten", "corrupt", "expired")
Start = Callable[..., subprocess.Popen[str]]


def _kill_after(process: subprocess.Popen[str], delay_s: float) -> None:
    with pytest.raises(subprocess.TimeoutExpired):  # it never ends by itself
        process.wait(delay_s)
    process.kill()
    process.wait()


def _require_right(threads: list[dict[str, int]]) -> None:
    """Only rows that were written, and each once."""
    assert {one["thread"] for one in threads} <= set(range(THREADS))
    assert [one["wrong"] for one in threads] == [0] * len(threads)
    assert all(one["different"] == one["kept"] for one in threads), threads


def _require_counted(threads: list[dict[str, int]], loss: dict[str, int]) -> None:
    """Every row is kept or counted, and no thread's rows have a gap that is not."""
    assert sum(loss[part] for part in PARTS) == loss["written"], loss
    assert loss["kept"] == sum(one["kept"] for one in threads), (loss, threads)
    assert loss["corrupt"] == loss["misfit"] == loss["text_lost"] == 0, loss
    # A thread counts its rows from 0, so its last one tells how many it asked for.
    asked = sum(one["last"] + 1 for one in threads)
    assert asked <= loss["written"], (loss, threads)
    if len(threads) == THREADS:
        assert loss["written"] - asked <= loss["unfinished"] + loss["dropped"], (loss, threads)
    gaps = sum(one["last"] - one["first"] + 1 - one["kept"] for one in threads)
    early = sum(one["first"] for one in threads)
    assert gaps <= loss["dropped"] + loss["unfinished"] + loss["overwritten"], (loss, threads)
    assert early <= loss["overwritten"] + loss["dropped"] + loss["expired"], (loss, threads)


def _audit(pid: int) -> int:
    """Check what a killed process left; how many rows were kept."""
    recording = sonde.open(pid)
    if "job.beat" not in [schema.table for schema in recording.tables()]:
        return 0  # killed before it made the table
    threads = recording.query(ROWS).to_pylist()
    (loss,) = recording.query(LOSS).to_pylist()
    _require_right(threads)
    _require_counted(threads, loss)
    assert loss["unfinished"] <= THREADS, loss
    return int(loss["kept"])


def test_a_killed_job_keeps_every_finished_row(start: Start) -> None:
    dice, kept = random.Random(1), 0
    for ring_bytes in ["8KiB", "256KiB", "4MiB"] * 2 * ROUNDS:
        process = start(PROGRAM, ring_bytes, str(THREADS), "0", SONDE_COLLECTOR="off")
        _kill_after(process, dice.uniform(0, 0.06))
        kept += _audit(process.pid)
    assert kept > 1000


def test_a_job_that_is_killed_while_it_starts_leaves_nothing_or_a_sound_session(
    start: Start,
) -> None:
    dice = random.Random(2)
    for _ in range(3 * ROUNDS):
        process = start(PROGRAM, "64KiB", str(THREADS), "0", ready=False, SONDE_COLLECTOR="off")
        _kill_after(process, dice.uniform(0, 0.25))
        try:
            _audit(process.pid)
        except NoSession:
            continue  # killed before its folder got a name


def _is_sealed(root: Path, pid: int) -> bool:
    (folder,) = root.glob(f"*-{pid}-*")
    return Session(str(folder)).read_sealed() is not None


def test_the_collector_archives_all_that_a_killed_job_finished(start: Start, root: Path) -> None:
    dice = random.Random(3)
    for _ in range(ROUNDS):
        process = start(PROGRAM, "4MiB", str(THREADS), "0.01", SONDE_ARCHIVE_EVERY="100ms")
        _kill_after(process, dice.uniform(0.1, 1.2))
        # While the collector is at it: whatever is there is right.
        _require_right(sonde.open(process.pid).query(ROWS).to_pylist())
        wait_for(lambda pid=process.pid: _is_sealed(root, pid))
        assert _audit(process.pid) > 0
