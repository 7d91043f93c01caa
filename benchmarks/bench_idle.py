"""What being recorded costs a program that emits nothing: a loop of Python calls."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import mean, median

import child
import instruction
from result import Result, find_noise

UNIT = 25  # rounds of work(): some 60 ms
PAIRS = 6  # of one process
LONG = 1000  # rounds of work(): some seconds, in which the recorder looks up a few times
SMALL = 3  # rounds where every instruction is counted
SETTLE_S = 20.0


class Counter:
    def __init__(self) -> None:
        self.turns = 0

    def add(self, n: int) -> None:
        self.turns = n


def climb(n: int) -> None:
    """The calls of fib(n) without its sums."""
    if n > 1:
        climb(n - 1)
        climb(n - 2)


def work(rounds: int) -> None:
    """Calls, and numbers small enough to be shared: what an allocation costs depends on what was
    allocated before, by 5 % in this loop, and that would drown what is looked for."""
    counter = Counter()
    for _ in range(rounds):
        climb(19)
        for _ in range(100):
            for i in range(200):
                counter.add(i)


def measure(rounds: int) -> list[Result]:
    """Per cent of CPU time, of instructions, and of the recorder's own thread."""
    nothing, recorder, collector, shares = [], [], [], []
    for _ in range(max(2, rounds)):
        with child.open_root() as root:
            nothing += child.call(switch_nothing, root=root)
            recorder += child.call(switch_recorder, root=root)
        # A folder of its own: there the collector has no ended recordings to work on.
        with child.open_root() as root:
            pairs, *share = child.call(switch_collector, root=root)
        collector += pairs
        shares.append(share)
    counted, method = count_more()
    watcher, beside, memory = (list(column) for column in zip(*shares, strict=True))
    return [
        describe_switch("recorded, idle: more CPU time for the recorder", recorder, nothing),
        describe_switch("recorded, idle: more CPU time for a collector beside", collector, nothing),
        Result(
            "recorded, idle: more instructions",
            "%",
            counted,
            0.1,
            note=f"counted by {method}: the loop once and twice, so that the start cancels out",
        ),
        Result(
            "recorded, idle: CPU of the recorder's thread",
            "%",
            watcher,
            0.1,
            note="of the elapsed time, by the scheduler: all that runs in the job beside the job",
        ),
        Result("collector beside an idle job: CPU of one core", "%", beside),
        Result("collector beside an idle job: RSS", "MB", memory),
    ]


def describe_switch(what: str, pairs: list[float], nothing: list[float]) -> Result:
    # What is found where nothing is switched is an error of the method, and so is a gain: being
    # recorded makes nothing faster.
    noise = find_noise(pairs) + max(abs(median(nothing)), -median(pairs))
    note = f"switched on and off every quarter of a second, {len(pairs)} times; ± {noise:.2f} %"
    peers = {"nothing switched (noise)": nothing}
    return Result(what, "%", pairs, 0.1, peers=peers, noise=noise, note=note)


# ---- time -------------------------------------------------------------------------------------


def time_unit() -> float:
    begin = time.process_time()
    work(UNIT)
    return time.process_time() - begin


def time_pairs(on: Callable[[], object], off: Callable[[], object]) -> list[float]:
    """Per cent of CPU time that the work takes more while switched on, pair by pair.

    In one process and in quick turns: two processes differ by more than what is looked for, and
    so do two moments of a machine that others use."""
    work(4 * UNIT)
    found = []
    for _ in range(PAIRS):
        before = [time_unit(), time_unit()]
        on()
        during = [time_unit() for _ in range(4)]
        off()
        after = [time_unit(), time_unit()]
        found.append((mean(during) / mean(before + after) - 1) * 100)
    return found


def switch_nothing() -> list[float]:
    def pause() -> None:
        time.sleep(0.02)

    return time_pairs(pause, pause)


def switch_recorder() -> list[float]:
    import sonde

    def start() -> None:
        assert sonde.start(collector="off", source_stack="off")

    return time_pairs(start, sonde.stop)


def switch_collector() -> tuple[list[float], float, float, float]:
    """Pairs with the collector running and stopped beside us; before that, the per cent of a core
    that the recorder's thread and the collector take; the collector's memory in MB."""
    import sonde

    folder = Path(sonde.start(source_stack="off"))
    # Its sensors write into the session: the collector is up and at its steady work.
    child.wait_until(lambda: any(folder.glob("system.*.ring")), SETTLE_S, "collector")
    [collector] = child.find_collectors(str(folder.parent))
    shares = measure_shares(collector)
    try:
        os.kill(collector, signal.SIGSTOP)
        pairs = time_pairs(
            lambda: os.kill(collector, signal.SIGCONT), lambda: os.kill(collector, signal.SIGSTOP)
        )
    finally:
        os.kill(collector, signal.SIGCONT)
    return pairs, *shares, read_rss_mb(collector)


def measure_shares(collector: int) -> tuple[float, float]:
    [own] = [path for path in Path("/proc/self/task").iterdir() if read_name(path) == "sonde"]
    beside = list(Path(f"/proc/{collector}/task").iterdir())
    begin, own_s, beside_s = time.perf_counter(), read_cpu_s([own]), read_cpu_s(beside)
    work(LONG)
    elapsed_s = time.perf_counter() - begin
    return (
        (read_cpu_s([own]) - own_s) / elapsed_s * 100,
        (read_cpu_s(beside) - beside_s) / elapsed_s * 100,
    )


def read_name(task: Path) -> str:
    return (task / "comm").read_text().strip()


def read_cpu_s(tasks: Iterable[Path]) -> float:
    """What the scheduler has given these threads, to the nanosecond."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def read_rss_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Rss:")) * 1024 / 1e6


# ---- instructions -----------------------------------------------------------------------------


def work_bare(rounds: int) -> None:
    work(rounds)


def work_recorded(rounds: int) -> None:
    import sonde

    assert sonde.start(source_stack="off")
    work(rounds)


def count_more() -> tuple[list[float], str]:
    """Per cent more instructions of the loop while recorded; how they were counted."""
    method = instruction.find_method()
    if method is None:
        return [], "nothing: no perf, no valgrind"
    loops = []
    for way in (work_bare, work_recorded):
        once, twice = (count(way, times * SMALL) for times in (1, 2))
        loops.append(twice - once)
    return [(loops[1] / loops[0] - 1) * 100], method


def count(way: Callable[[int], None], rounds: int) -> int:
    # A folder for each: the collector is started every time, or the starts would not cancel out.
    with child.open_root() as root:
        return instruction.count(child.name_call(way, rounds), child.make_environment(root))
