"""What asyncio's tasks await, twice a second."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
import weakref

import pytest

import sonde
from sonde.job.sources import _task_waits
from sonde.job.sources._task_waits import TaskWaits

PROGRAM = """
import asyncio
async def fetch(delay): await asyncio.sleep(delay)
async def work(number, end):
    await fetch(number * 0.003)  # not all at once
    while asyncio.get_running_loop().time() < end: await fetch(0.05)
async def main():
    end = asyncio.get_running_loop().time() + 3
    await asyncio.gather(*(work(n, end) for n in range(16)))
asyncio.run(main())
"""
PLACES = """
SELECT f.func, SUM(w.tasks) AS tasks, SUM(w.soon_ended) AS ended, SUM(w.soon_ns) AS ns
FROM python.task_wait AS w JOIN python.frame AS f USING (stack) WHERE f.depth = {} GROUP BY ALL"""


def test_a_program_of_tasks_says_what_they_await_and_how_long(run, root, sonde_cli) -> None:
    run(PROGRAM, SONDE="1", SONDE_COLLECTOR="off")
    recording = sonde.open("program.py")
    found = {row["func"]: row for row in recording.query(PLACES.format(1)).to_pylist()}
    fetch = found["fetch"]
    assert fetch["tasks"] > 1 and fetch["ended"] > 0 and fetch["ns"] > 0
    shown = sonde_cli("tree", "program.py").stdout.partition("tasks of asyncio awaited")[2]
    assert "/program.py:3 " in shown and "await asyncio.sleep(delay)" in shown


def test_without_the_setting_nobody_looks(run, root) -> None:
    run(PROGRAM, SONDE="1", SONDE_COLLECTOR="off", SONDE_STACK_TASKS="off")
    assert not sonde.open("program.py").query("SELECT * FROM python.task_wait").num_rows


class Sampler:
    def pause(self, us: int) -> None:
        time.sleep(us / 1e6)

    def put(self, frames: list[tuple[str, str, int, int]]) -> int:
        return hash(tuple(frames))


def look(waits: TaskWaits) -> None:
    """Have a thread without a loop look, as the one in the product: from 3.14 on it finds out which
    loops run by a mark of its own."""
    thread = threading.Thread(target=waits.look, args=(Sampler(),))
    thread.start()
    thread.join()


async def wait_at(future: asyncio.Future[None]) -> None:
    await future


def look_at(count: int, ends: int) -> list[tuple[object, ...]]:
    """Return the rows about tasks of which some end between two looks."""
    rows: list[tuple[object, ...]] = []
    waits = TaskWaits(lambda *row: rows.append(row))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in range(count)]
        tasks = [asyncio.create_task(wait_at(one)) for one in futures]
        await asyncio.sleep(0)
        look(waits)
        for one in futures[:ends]:
            one.set_result(None)
        waits._next_ns = 0
        look(waits)
        waits.write()
        for one in futures[ends:]:
            one.set_result(None)
        await asyncio.gather(*tasks)

    asyncio.run(main())
    return rows


@pytest.fixture
def one_period(monkeypatch) -> None:
    """All that is seen becomes one row, however busy the machine is."""
    monkeypatch.setattr(_task_waits, "_ROWS_NS", 10**18)


@pytest.mark.usefixtures("one_period")
def test_waits_that_end_between_two_looks_are_counted() -> None:
    (row,) = [row for row in look_at(5, 2) if row[5] >= 5]
    looks, tasks, soon, soon_ended, _, later, later_ended, later_ns = row[4:]
    assert (looks, tasks, soon, soon_ended, later, later_ended) == (2, 8, 8, 0, 5, 2)
    assert later_ns >= 5 * 10_000_000


@pytest.mark.usefixtures("one_period")
def test_of_many_tasks_some_are_looked_at_and_stand_for_the_others(monkeypatch) -> None:
    monkeypatch.setattr(_task_waits, "_MOST_TASKS", 10)
    (row,) = [row for row in look_at(95, 0) if row[5] > 20]
    looks, tasks, soon = row[4:7]
    assert looks == 2 and 160 <= tasks <= 200 and soon <= 22


def test_a_look_keeps_nothing_alive() -> None:
    waits, seen = TaskWaits(lambda *_: None), []

    async def main() -> None:
        future = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(wait_at(future))
        await asyncio.sleep(0)
        look(waits)
        seen.extend([weakref.ref(future), weakref.ref(task)])
        future.set_result(None)
        await task

    asyncio.run(main())
    gc.collect()
    assert [one() for one in seen] == [None, None]


FORKS = """
import asyncio, os, warnings
async def main():
    others = [asyncio.create_task(asyncio.sleep(60)) for _ in range(20)]
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(400):
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)
            await asyncio.sleep(0.002)
    print(len(seen))
asyncio.run(main())
"""


@pytest.mark.skipif(sys.version_info < (3, 12), reason="this Python does not warn of forks")
def test_nobody_is_warned_of_forks_because_tasks_are_looked_at(run_anew) -> None:
    said = {on: run_anew(FORKS, SONDE=on, SONDE_COLLECTOR="off").stdout for on in ("0", "1")}
    assert said["0"] == said["1"] == "0\n"
