"""What sampling all stacks costs, and how true the samples are, beside other samplers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import child
import spy
import subject
from bench_idle import UNIT, read_cpu_s, read_name
from result import Result, find_noise

GOALS = {100: 0.3, 1000: 2.0, 10000: 15.0}  # Hz: per cent
INSIDE = ("pyinstrument", "cProfile", "yappi")
QUIET = {"collector": "off", "source_gc": "off"}  # the row is about stacks
STEADY_S = 4.0
SHARES_S = 10.0
MEMORY_S = 10.0
SETTLE_S = 30.0


def measure(rounds: int) -> list[Result]:
    """Slowdown, CPU, samples, shares, memory."""
    return [
        *measure_slowdown(rounds),
        *measure_cpu(max(2, rounds // 2)),
        *measure_shares(max(1, rounds // 2)),
        *measure_memory(),
    ]


class Program:
    """A subject in a process of its own."""

    def __init__(self, process: object) -> None:
        self._process = process
        self.pid: int = json.loads(process.stdout.readline())

    def call(self, name: str, *args: object) -> object:
        """Have it call one of its functions; what that returns."""
        self._process.stdin.write(json.dumps([name, *args]) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def list_tasks(self, name: str) -> list[Path]:
        """Its threads of this name."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return [task for task in tasks if read_name(task) == name]


@contextmanager
def open_program() -> Iterator[tuple[Program, Path]]:
    with child.open_root() as root, child.hold(subject.serve, root=root) as process:
        yield Program(process), Path(root)


@contextmanager
def sample(tool: str, program: Program, root: Path, rate_hz: int) -> Iterator[object]:
    """Have the program sampled: gives the session folder, or the sampler's process."""
    if tool == "sonde":
        folder = program.call("start_sonde", f"{1_000_000 // rate_hz}us", QUIET)
        assert folder
        yield folder
        program.call("stop_sonde")
    elif tool in INSIDE:
        program.call("start_inside", tool)
        yield None
        program.call("stop_inside", tool)
    else:
        with spy.attach(tool, program.pid, rate_hz, root / "found") as process:
            yield process
        assert spy.read_stacks(tool, root / "found"), f"{tool} found nothing"


def list_spies() -> list[str]:
    return [name for name in spy.NAMES if spy.find(name)]


# ---- slowdown ----------------------------------------------------------------------------------


def measure_slowdown(rounds: int) -> list[Result]:
    """Per cent more time for the same work while it is sampled."""
    ways = [(tool, rate) for rate in GOALS for tool in ("sonde", *list_spies())]
    ways += [(tool, 1000) for tool in INSIDE]
    found: dict[tuple[str, int], list[tuple[float, float]]] = {way: [] for way in ways}
    nothing: list[float] = []
    for _ in range(rounds):
        with open_program() as (program, root):
            program.call("time_work", UNIT, 10)
            for tool, rate in ways:
                found[tool, rate].append(compare(tool, program, root, rate))
            nothing.append(compare_nothing(program))
    return [describe_slowdown(rate, found, nothing) for rate in GOALS] + [
        Result(
            "the same at 1 kHz: more CPU time of the program's own thread",
            "%",
            [cpu for _wall, cpu in found["sonde", 1000]],
            peers={tool: [cpu for _wall, cpu in found[tool, 1000]] for tool in list_spies()},
            note="a second witness that other programs disturb less; being stopped is not in it",
        )
    ]


def compare(tool: str, program: Program, root: Path, rate_hz: int) -> tuple[float, float]:
    """Per cent more seconds, of the clock and of CPU, than right before and after."""
    off = program.call("time_work", UNIT, 4)
    with sample(tool, program, root, rate_hz):
        on = program.call("time_work", UNIT, 10)
    off += program.call("time_work", UNIT, 4)
    return compare_times(on, off, 0), compare_times(on, off, 1)


def compare_nothing(program: Program) -> float:
    """The same with nobody sampling: what the method finds where there is nothing."""
    off = program.call("time_work", UNIT, 4)
    on = program.call("time_work", UNIT, 10)
    return compare_times(on, off + program.call("time_work", UNIT, 4), 0)


def compare_times(on: list[list[float]], off: list[list[float]], at: int) -> float:
    return (median(t[at] for t in on) / median(t[at] for t in off) - 1) * 100


def describe_slowdown(
    rate: int, found: dict[tuple[str, int], list[tuple[float, float]]], nothing: list[float]
) -> Result:
    tools = {tool: found[tool, rate] for tool, at in found if at == rate}
    walls = {tool: [wall for wall, _cpu in pairs] for tool, pairs in tools.items()}
    own = walls.pop("sonde")
    noise = abs(median(nothing)) + (find_noise(own) if len(own) > 1 else 0.0)
    return Result(
        f"pure Python sampled at {rate:,} Hz: slower by",
        "%",
        own,
        GOALS[rate],
        peers={**walls, "nobody (noise)": nothing},
        noise=noise,
        note=f"of the clock, against right before and after; ± {noise:.1f} %"
        + ("; pyinstrument every 1 ms; cProfile and yappi trace" if rate == 1000 else ""),
    )


# ---- CPU ---------------------------------------------------------------------------------------


def measure_cpu(rounds: int) -> list[Result]:
    """Per cent of a core that the sampler itself takes at 100 Hz."""
    results = []
    for leaf, doing in (("spin", "working"), ("wait", "waiting")):
        found: dict[str, list[float]] = {tool: [] for tool in ("sonde", *list_spies())}
        with open_program() as (program, root):
            program.call("spread", leaf, subject.THREADS, subject.DEPTH)
            for _ in range(rounds):
                for tool, shares in found.items():
                    shares.append(measure_share(tool, program, root))
        own = found.pop("sonde")
        best = min((median(shares) for shares in found.values()), default=None)
        what = f"sampler's CPU, {subject.THREADS} {doing} threads of {subject.DEPTH} frames, 100 Hz"
        note = "goal: less than the best of the others; theirs is their whole process"
        goal = None if best is None else round(best, 2)
        results.append(Result(what, "%", own, goal, peers=found, note=note))
    return [*results, measure_collector()]


def measure_share(tool: str, program: Program, root: Path) -> float:
    with sample(tool, program, root, 100) as sampler:
        if tool == "sonde":
            return time_share(lambda: read_cpu_s(program.list_tasks("sonde")))
        tasks = Path(f"/proc/{sampler.pid}/task")
        return time_share(lambda: read_cpu_s(tasks.iterdir()))


def time_share(read: Callable[[], float]) -> float:
    """Per cent of a core over some steady seconds."""
    begin, cpu_s = time.perf_counter(), read()
    time.sleep(STEADY_S)
    return (read() - cpu_s) / (time.perf_counter() - begin) * 100


def measure_collector() -> Result:
    with open_program() as (program, root):
        program.call("spread", "spin", subject.THREADS, subject.DEPTH)
        folder = Path(program.call("start_sonde", "10ms", {"archive_every": "2"}))
        child.wait_until(lambda: any(folder.glob("system.*.ring")), SETTLE_S, "collector")
        [pid] = child.find_collectors(str(root))
        tasks = Path(f"/proc/{pid}/task")
        share = time_share(lambda: read_cpu_s(tasks.iterdir()))
    return Result(
        "collector's CPU beside the 8 working threads, archiving every 2 s",
        "%",
        [share],
        note="in a process of its own; by default it archives every 10 min, or when it must",
    )


# ---- samples and shares --------------------------------------------------------------------------


def measure_shares(rounds: int) -> list[Result]:
    """How far the shares of a known program are off, and how many samples came."""
    errors: dict[str, list[float]] = {}
    delivered: dict[str, list[float]] = {}
    with open_program() as (program, root):
        for _ in range(rounds):
            for tool in ("sonde", *list_spies(), *INSIDE):
                error, part = find_error(tool, program, root)
                errors.setdefault(tool, []).append(error)
                if part is not None:
                    delivered.setdefault(tool, []).append(part)
    return [
        Result(
            "samples at 1 kHz: taken of those asked for",
            "%",
            delivered.pop("sonde"),
            99.0,
            at_least=True,
            peers=delivered,
            note="needs a core that is idle when a sample is due; see the load above",
        ),
        Result(
            "shares of a 50/30/15/5 program, 1 kHz, 10 s: largest error",
            "points",
            errors.pop("sonde"),
            1.0,
            peers=errors,
            note="against the program's own clock; sampling alone is off by some 0.5 (one sigma)",
        ),
    ]


def find_error(tool: str, program: Program, root: Path) -> tuple[float, float | None]:
    """The largest error in points; the per cent of samples that came, of samplers."""
    part: float | None = None
    if tool in INSIDE:
        program.call("start_inside", tool)
        truth = program.call("run_shares", SHARES_S)
        found = program.call("stop_inside", tool)
    else:
        begin = time.perf_counter()
        with sample(tool, program, root, 1000) as sampler:
            truth = program.call("run_shares", SHARES_S)
            elapsed_s = time.perf_counter() - begin
        if tool == "sonde":
            found, part = read_own(sampler)
        else:
            found, count = read_spy(tool, root / "found")
            part = count / (1000 * elapsed_s) * 100
    total = sum(found.values())
    return max(abs(found.get(f, 0.0) / total - truth[f]) * 100 for f in truth), part


def read_spy(tool: str, output: Path) -> tuple[dict[str, float], float]:
    """Weight of each function of known share; how many samples there were."""
    found: dict[str, float] = {}
    stacks = spy.read_stacks(tool, output)
    for stack, weight in stacks:
        for name in {name for name in stack if name.startswith("share_")}:
            found[name] = found.get(name, 0.0) + weight
    # py-spy adds the samples up, austin writes each.
    count = sum(weight for _stack, weight in stacks) if tool == "py-spy" else len(stacks)
    return found, count


def read_own(folder: str) -> tuple[dict[str, float], float]:
    """The same from the tables that a user would ask."""
    import sonde

    recording = sonde.open(folder)
    rows = recording.query(
        "SELECT f.func, SUM(s.samples) AS n FROM python.stack s JOIN python.frame f USING (stack)"
        " WHERE f.func LIKE 'share\\_%' ESCAPE '\\' GROUP BY 1"
    ).to_pylist()
    sums = recording.query("SELECT * FROM python.sampling ORDER BY t_ns DESC LIMIT 1").to_pylist()
    found = {row["func"]: float(row["n"]) for row in rows}
    return found, sums[0]["taken"] / sums[0]["due"] * 100


# ---- memory --------------------------------------------------------------------------------------


def measure_memory() -> list[Result]:
    """Growth of the job, and of the archive."""
    with open_program() as (program, _root):
        program.call("spread", "spin", subject.THREADS, subject.DEPTH)
        before = program.call("read_rss_mb")
        assert program.call("start_sonde", "1ms", QUIET)
        program.call("pause", MEMORY_S)
        grown = program.call("read_rss_mb") - before
    row_bytes, rings_mb = measure_archive()
    rows = subject.THREADS * 100 * 86400
    return [
        Result(
            "job's memory after 10 s at 1 kHz, 8 working threads: RSS",
            "MB",
            [grown],
            note=f"start() included; its tables of stacks have {rings_mb:.0f} MB and never more",
        ),
        Result(
            "archive of 24 h at 100 Hz, 8 working threads (estimate)",
            "MB",
            [rows * row_bytes / 1e6],
            note=f"{row_bytes:.1f} bytes a row, measured on segments as the collector writes them,"
            f" times {rows / 1e6:.0f} M rows; retention keeps to 1 GiB",
        ),
    ]


def measure_archive() -> tuple[float, float]:
    """Bytes of a sample in the archive; MB of all that is mapped for stacks."""
    import pyarrow.parquet as pq

    with open_program() as (program, _root):
        program.call("spread", "spin", subject.THREADS, subject.DEPTH)
        folder = Path(program.call("start_sonde", "1ms", {"source_gc": "off"}))
        # A quarter of a ring makes a segment; that is how long they are for ever.
        pattern = "archive/**/*.parquet"
        child.wait_until(
            lambda: any("stack_sample" in str(path) for path in folder.glob(pattern)), 60, "segment"
        )
        paths = [path for path in folder.glob(pattern) if "stack_sample" in str(path)]
        rows = sum(pq.read_metadata(path).num_rows for path in paths)
        size = sum(path.stat().st_size for path in paths)
        mapped = [*folder.glob("python.*.ring"), *folder.glob("*.nodes"), *folder.glob("*.intern")]
        return size / rows, sum(path.stat().st_size for path in mapped) / 1e6
