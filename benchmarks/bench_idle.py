"""What being recorded costs a program that emits nothing: a loop of Python calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median

import child
import instruction
from result import Result

PART, UNIT = 10, 100  # units, rounds of work(): the recorder looks up a few times in a part
SMALL = 3  # the same where every instruction is counted
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
    bare, found = [], []
    for _ in range(max(3, rounds // 2)):
        with child.open_root() as root:
            bare.append(child.call(compare_bare, root=root))
            found.append(child.call(compare_recorded, root=root))
    counted, method = count_more()
    recorded, watcher, collector, memory = (list(column) for column in zip(*found, strict=True))
    return [
        Result(
            "recorded, idle: more CPU time",
            "%",
            recorded,
            0.1,
            peers={"bare against bare (noise)": bare},
            # Being recorded cannot make it faster: the spread of our own samples is noise, too.
            noise=max(*map(abs, bare), max(recorded) - min(recorded)),
            note="bare, recorded, bare in one process, all its threads counted; "
            f"recorded: {min(recorded):+.2f} … {max(recorded):+.2f} %, "
            f"bare throughout: {min(bare):+.2f} … {max(bare):+.2f} %",
        ),
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
        Result("collector beside an idle job: CPU of one core", "%", collector),
        Result("collector beside an idle job: RSS", "MB", memory),
    ]


# ---- time -------------------------------------------------------------------------------------


def time_part() -> list[float]:
    """CPU seconds of each unit of one part."""
    found = []
    for _ in range(PART):
        begin = time.process_time()
        work(UNIT)
        found.append(time.process_time() - begin)
    return found


def compare(first: list[float], second: list[float], third: list[float]) -> float:
    """Per cent that the second part takes more than those around it. By medians: a neighbour on
    the machine disturbs some units, not most."""
    return (median(second) / median(first + third) - 1) * 100


def compare_bare() -> float:
    """Three equal parts: what chance makes of nothing."""
    work(UNIT)
    return compare(time_part(), time_part(), time_part())


def compare_recorded() -> tuple[float, float, float, float]:
    """The same with a recording during the second part: more CPU time in per cent; per cent of a
    core that the recorder's thread and the collector take; the collector's memory in MB."""
    import sonde

    work(UNIT)
    first = time_part()
    folder = Path(sonde.start())
    # Its sensors write into the session: the collector is up and at its steady work.
    child.wait_until(lambda: any(folder.glob("system.*.ring")), SETTLE_S, "collector")
    [collector] = child.find_collectors(str(folder.parent))
    tasks = [path for path in Path("/proc/self/task").iterdir() if read_name(path) == "sonde"]
    beside = list(Path(f"/proc/{collector}/task").iterdir())
    begin = time.perf_counter(), read_cpu_s(tasks), read_cpu_s(beside)
    second = time_part()
    elapsed_s, watcher_s, collector_s = (
        now - before
        for now, before in zip(
            (time.perf_counter(), read_cpu_s(tasks), read_cpu_s(beside)), begin, strict=True
        )
    )
    memory_mb = read_rss_mb(collector)
    sonde.stop()
    child.wait_until((folder / "sealed.json").exists, SETTLE_S, "seal")
    third = time_part()
    more = compare(first, second, third)
    return more, watcher_s / elapsed_s * 100, collector_s / elapsed_s * 100, memory_mb


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

    assert sonde.start()
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
