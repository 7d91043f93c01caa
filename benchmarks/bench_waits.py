"""How far off the times of waits are, beside a program's own clocks; and what they cost."""

from __future__ import annotations

import os
import select
import threading
import time
from pathlib import Path

import child
from result import Result

SECONDS = 20.0
NAPS = 8  # threads that sleep and wake a thousand times a second: each sample asks the kernel
NAP_S = 6.0


def measure(rounds: int) -> list[Result]:
    """Points between sampled and measured shares; per cent of a core of the recorder's thread."""
    errors, wrong, naps, idle = [], [], [], []
    for _ in range(max(2, rounds)):
        with child.open_root() as root:
            for values, found in zip(
                (errors, wrong), child.call(find_errors, root=root), strict=True
            ):
                values.append(found)
            naps.append(child.call(nap_in_threads, NAPS, root=root))
            idle.append(child.call(nap_in_threads, 0, root=root))
    return [
        Result(
            f"largest error of the shares of four waits and work, 100 Hz, {SECONDS:g} s",
            "points",
            errors,
            note="beside the program's own clocks around each of its waits",
        ),
        Result("the same: waits that are called by a wrong kind", "% of all time", wrong),
        Result(
            f"CPU of the recorder's thread, {NAPS} threads that wait for something else each time",
            "% of a core",
            naps,
            peers={"off: no such threads": idle},
        ),
    ]


def find_errors() -> tuple[float, float]:
    """Wait in four ways by turns, and compute; compare what the recording says with our clocks.

    Where a thread waits it also waits for a CPU or the GIL when it is over, which our clocks cannot
    tell apart. So parts are told by their lines; and of the other waits at a line, all should be of
    its one kind."""
    import sonde

    assert sonde.start(collector="off")
    true_s = wait_by_turns()
    rows = sonde.open(os.getpid()).query(
        "SELECT func, kind, SUM(wall_ns)::BIGINT AS wall_ns FROM python.thread_time "
        "WHERE name = 'turns' GROUP BY ALL"
    )
    seen, wrong = dict.fromkeys(true_s, 0), 0
    for row in rows.to_pylist():
        part = row["func"].rpartition(".")[2].removeprefix("do_")
        if part in seen:
            seen[part] += row["wall_ns"]
            wrong += row["wall_ns"] * (row["kind"] not in (part, "cpu", "cpu_queue", "gil"))
    whole, whole_s = sum(seen.values()), sum(true_s.values())
    shares = [abs(seen[part] / whole - own_s / whole_s) for part, own_s in true_s.items()]
    return max(shares) * 100, wrong / whole * 100


class Turns:
    """A thread that waits in four ways by turns and measures that; another one ends its waits."""

    def __init__(self) -> None:
        self.here, self.there = os.pipe()
        self.lock, self.turn, self.poll = threading.Lock(), threading.Barrier(2), select.epoll()

    def do_lock(self) -> None:
        self.lock.acquire()
        self.lock.release()

    def do_pipe(self) -> None:
        os.read(self.here, 1)

    def do_sleep(self) -> None:
        time.sleep(0.017)

    def do_poll(self) -> None:
        self.poll.poll(0.007)

    def do_cpu(self) -> None:
        end = time.thread_time() + 0.005
        while time.thread_time() < end:
            pass

    def answer(self) -> None:
        while True:
            with self.lock:
                self.turn.wait()
                time.sleep(0.012)
            time.sleep(0.009)
            os.write(self.there, b"x")
            self.turn.wait()  # else the lock might be taken again before the other waits for it

    def measure(self, true_s: dict[str, float]) -> None:
        end = time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            self.turn.wait()
            for kind in true_s:
                part, begin = getattr(self, f"do_{kind}"), time.perf_counter()
                part()
                true_s[kind] += time.perf_counter() - begin
            self.turn.wait()


def wait_by_turns() -> dict[str, float]:
    """The seconds that a thread spent in each kind of wait, by its own clock."""
    true_s = dict.fromkeys(("lock", "pipe", "sleep", "poll", "cpu"), 0.0)
    turns = Turns()
    threading.Thread(target=turns.answer, daemon=True).start()
    worker = threading.Thread(target=turns.measure, args=(true_s,), name="turns")
    worker.start()
    worker.join()
    return true_s


def nap_in_threads(threads: int) -> float:
    """Per cent of a core that the recorder's thread takes."""
    import sonde

    def nap() -> None:
        while True:
            time.sleep(0.001)

    for _ in range(threads):
        threading.Thread(target=nap, daemon=True).start()
    assert sonde.start(collector="off")
    time.sleep(NAP_S)
    tasks = Path("/proc/self/task").iterdir()
    [own] = [path for path in tasks if (path / "comm").read_text() == "sonde\n"]
    return int((own / "schedstat").read_text().split()[0]) / NAP_S / 1e7
