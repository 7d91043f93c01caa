"""What native frames cost: in samples, and for a busy thread that is looked at.

While it is looked at, the thread only computes. So the time in which it neither had a processor nor
waited for one, as the scheduler counts both, is the time in which it was stopped, however busy the
machine is."""

from __future__ import annotations

import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

import child
import spy
from bench_stack import Program, compare_times, open_program
from result import Result, find_noise, interleave

UNITS, BLOCKS = 12, 20  # some 30 ms each
RATE_HZ = 100
GOAL_PCT = 1.0
WARM_S = 60.0  # to learn the machine code of the program
LOOKS = 3  # of each round
OFF_S = 0.3  # as long as a look takes, about
TOOLS = {
    "py-spy dump --native": ["py-spy", "dump", "--native", "--pid"],
    "pystack remote --native": ["pystack", "remote", "--native"],
}


def measure(rounds: int) -> list[Result]:
    from sonde.attach import libdw

    try:
        libdw.load()
    except libdw.NoUnwinder as error:
        return [Result("native frames", "%", [], note=f"not measured: {error}")]
    return [*measure_samples(max(3, rounds)), measure_looks(rounds)]


# ---- in samples ----------------------------------------------------------------------------------


def measure_samples(rounds: int) -> list[Result]:
    """Per cent more time for the same work while it is sampled; a value is a process."""
    ways = ["on", "off", "nobody (noise)"] + ["py-spy --native"] * (spy.find("py-spy") is not None)
    walls: dict[str, list[float]] = {way: [] for way in ways}
    cpus: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(rounds):
        with open_program() as (program, root):
            program.call("time_native", UNITS, BLOCKS)
            for way in ways[turn % len(ways) :] + ways[: turn % len(ways)]:
                wall, cpu = compare(way, program, root)
                walls[way].append(wall)
                cpus[way].append(cpu)
    return [
        describe("of the clock", walls),
        describe("of CPU time of its own thread", cpus),
    ]


def describe(what: str, found: dict[str, list[float]]) -> Result:
    own = found.pop("on")
    noise = find_noise(own) + abs(median(found["nobody (noise)"]))
    return Result(
        f"stack.native=on at {RATE_HZ} Hz: slower by, {what}", "%", own, GOAL_PCT,
        peers={"stack.native=off": found.pop("off"), **found}, noise=noise,
        note=f"{len(own)} memory layouts; beside blocks that nobody samples; ± {noise:.2f} %",
    )  # fmt: skip


def compare(way: str, program: Program, root: Path) -> tuple[float, float]:
    """Per cent more seconds, of the clock and of CPU, than right before and after."""
    off = program.call("time_native", UNITS, BLOCKS)
    with sample(way, program, root):
        on = program.call("time_native", UNITS, 2 * BLOCKS)
    off += program.call("time_native", UNITS, BLOCKS)
    return compare_times(on, off, 0), compare_times(on, off, 1)


@contextmanager
def sample(way: str, program: Program, root: Path) -> Iterator[None]:
    """Have the program sampled, from when its machine code is known on."""
    if way == "py-spy --native":
        with spy.attach("py-spy", program.pid, RATE_HZ, root / "found", "--native"):
            yield
        assert spy.read_stacks("py-spy", root / "found"), "py-spy found nothing"
    elif way == "nobody (noise)":
        yield
    else:
        settings = {"stack_native": way, "source_gc": "off"}
        folder = program.call("start_sonde", f"{1000 // RATE_HZ}ms", settings)
        if way == "on":
            wait_for_names(program, folder)
        yield
        program.call("stop_sonde")


def wait_for_names(program: Program, folder: str) -> None:
    """Work until the samples go on below Python, as far as they do in this work."""
    deadline, before = time.monotonic() + WARM_S, (0, 0)
    while True:
        program.call("time_native", UNITS, BLOCKS)
        now = count_samples(folder)
        native, taken = now[0] - before[0], now[1] - before[1]
        if taken > 20 and native > 0.15 * taken:
            return
        assert time.monotonic() < deadline, (
            f"native frames in {native} samples of {taken}; {read_reason(folder)}"
        )
        before = now


def read_reason(folder: str) -> str:
    """What the recording says about native frames."""
    import sonde

    rows = sonde.open(folder).query(
        "SELECT state, detail FROM sonde.source WHERE source = 'stack.native'"
    )
    return ", ".join(f"{row['state']}: {row['detail']}" for row in rows.to_pylist()) or "no word"


def count_samples(folder: str) -> tuple[int, int]:
    """How many samples have native frames, and how many there are."""
    import sonde

    rows = sonde.open(folder).query(
        "SELECT COALESCE(SUM(samples) FILTER (stack IN (SELECT stack FROM python.frame WHERE"
        " depth = 0 AND lineno = 0 AND file LIKE '/%')), 0)::BIGINT AS native,"
        " COALESCE(SUM(samples), 0)::BIGINT AS taken FROM python.stack"
    )
    return rows["native"][0].as_py(), rows["taken"][0].as_py()


# ---- by a look -----------------------------------------------------------------------------------


def measure_looks(rounds: int) -> Result:
    """Milliseconds for the main thread of a program with PyTorch, where that is installed."""
    found: dict[str, list[float]] = {}
    for _ in range(max(2, rounds)):
        with child.open_root() as root, child.hold(spin, root=root) as job:
            assert job.stdout.readline() == "ready\n"
            for name, values in interleave(LOOKS, list_looks(job)).items():
                found.setdefault(name, []).extend(values)
    own = found.pop("sonde stacks --native")
    return Result(
        "sonde stacks --native: how long a busy thread is stopped",
        "ms",
        own,
        peers=found,
        note="`off` is the same with nobody looking: what the clocks are apart",
    )


def list_looks(job: subprocess.Popen) -> dict[str, Callable[[], float]]:
    own = [sys.executable, "-m", "sonde", "stacks", "--native"]
    looks = {"sonde stacks --native": own, "off": []}
    for name, (tool, *words) in TOOLS.items():
        path = shutil.which(tool)
        if path is not None:
            looks[name] = [path, *words]
    return {name: lambda words=words: stop_during(job, words) for name, words in looks.items()}


def stop_during(job: subprocess.Popen, words: list[str]) -> float:
    """How long the program was stopped, in ms, while somebody looked at it."""
    before = read_stopped_ms(job.pid)
    if words:
        subprocess.run([*words, str(job.pid)], stdout=subprocess.DEVNULL, check=True)
    else:
        time.sleep(OFF_S)
    return read_stopped_ms(job.pid) - before


def read_stopped_ms(pid: int) -> float:
    """The time, from any moment on, in which the main thread neither ran nor waited to run."""
    ran_ns, waited_ns, _times = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()
    return (time.perf_counter_ns() - int(ran_ns) - int(waited_ns)) / 1e6


def spin() -> None:
    """Compute until the input ends."""
    with suppress(ImportError):
        import torch  # noqa: F401
    print("ready", flush=True)
    poll = select.poll()
    poll.register(sys.stdin, select.POLLIN)
    while not poll.poll(0):
        sum(range(20_000))
