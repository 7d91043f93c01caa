"""A job of many hosts: from 8 ranks to 1,024, shipped to one place and asked through agents."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import child
import fleet_job
from result import Result

_HERE = Path(__file__).resolve().parent
_HOSTS = (1, 8, 32, 128)
_RANKS = (8, 64, 1024)
OF_RANKS = " ranks: "  # between their number and what was measured
_PROCESSES = 4  # that the agents are spread over
_IDLE_S = 60.0
_SQL = ("SELECT rank, COUNT(*) AS n, AVG(dur_ns) AS mean, MAX(dur_ns) AS longest "
        "FROM python.torch_step GROUP BY rank ORDER BY rank")  # fmt: skip
_MODULES = ("SELECT module, stage, COUNT(*) AS calls, SUM(self_duration) AS s "
            "FROM python.torch_trace GROUP BY ALL ORDER BY s DESC")  # fmt: skip
_IDLE = "import sonde, time; sonde.start(); print(0, flush=True); time.sleep(3600)"
_TIME = "seconds of CPU: on one machine all share its cores"


def measure(rounds: int) -> list[Result]:
    """Seconds from the question to the whole answer, and the CPU that all of it took."""
    with child.open_root() as root:
        source = Path(root, "source")
        fleet_job.record(source)
        return [one for part in PARTS for one in measure_part(part, root, rounds)]


def measure_part(part: str, root: str, rounds: int) -> list[Result]:
    """Measure one part; what has been made of the recording in `root` is used again."""
    with _use(root):
        return PARTS[part](Path(root), rounds)


# ---- agents --------------------------------------------------------------------------------------


def _measure_agents(root: Path, rounds: int) -> list[Result]:
    results = []
    folder = root / "hosts"
    roots = sorted(folder.iterdir()) if folder.exists() else []
    with _serve(roots or fleet_job.make_folders(root / "source", folder)) as (hosts, processes):
        kinds = (_query, "query of all agents", 2.0), (_look, "stacks of all ranks, as text", 3.0)
        for ask, what, goal in kinds:
            for size in _HOSTS:
                is_last = size == _HOSTS[-1]
                wall, cpu = _repeat(rounds, ask, hosts[:size], processes)
                name = f"{fleet_job.EACH * size:,}{OF_RANKS}{what}"
                results.append(Result(name, "s", wall, goal if is_last else None))
                results.append(Result(f"{name}: CPU", "s", cpu, note=_TIME))
        for words in (("query", _SQL), ("stacks",)):
            target = f"@hosts:{','.join(hosts)}"
            command = [sys.executable, "-m", "sonde", words[0], target, *words[1:]]
            results.append(Result(f"1,024{OF_RANKS}`sonde {words[0]}`, the whole command", "s",
                                  [_run(command)[0] for _ in range(rounds)]))  # fmt: skip
    return results


@contextmanager
def _use(root: str) -> Iterator[None]:
    """Have sonde use this root and credentials of its own."""
    before = {name: os.environ.get(name) for name in ("SONDE_DIR", "SONDE_FLEET")}
    os.environ |= {"SONDE_DIR": root, "SONDE_FLEET": os.path.join(root, ".fleet")}
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


@contextmanager
def _serve(roots: list[Path]) -> Iterator[tuple[list[str], list[int]]]:
    from sonde.fleet.credentials import make_credentials

    make_credentials()
    hosts: list[str] = []
    pids: list[int] = []
    each = len(roots) // _PROCESSES
    with ExitStack() as stack:
        for at in range(0, len(roots), each):
            words = [sys.executable, str(_HERE / "fleet_agents.py"), str(at)]
            process = stack.enter_context(
                subprocess.Popen([*words, *map(str, roots[at : at + each])], text=True,
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            )  # fmt: skip
            assert process.stdin is not None and process.stdout is not None
            stack.callback(process.stdin.close)
            hosts += [f"127.0.0.1:{port}" for port in json.loads(process.stdout.readline())]
            pids.append(process.pid)
        yield hosts, pids


def _repeat(
    rounds: int, ask: Callable[[list[str]], None], hosts: list[str], processes: list[int]
) -> tuple[list[float], list[float]]:
    ask(hosts)  # the first connects more slowly
    wall, cpu = [], []
    for _ in range(rounds):
        begin, used = time.perf_counter(), _read_cpu(processes)
        ask(hosts)
        wall.append(time.perf_counter() - begin)
        cpu.append(_read_cpu(processes) - used)
    return wall, cpu


def _read_cpu(processes: list[int]) -> float:
    """Return the CPU time of these processes and of this one, in seconds."""
    return time.process_time() + sum(map(_read_cpu_of, processes))


def _read_cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _query(hosts: list[str]) -> None:
    from sonde.fleet.hosts import Cluster
    from sonde.fleet.query import query_cluster

    rows, found = query_cluster(Cluster("all", hosts), _SQL, 60.0, "1GiB")
    assert rows.num_rows >= 8 * len(hosts) - 1, found.describe_missing()


def _look(hosts: list[str]) -> None:
    from sonde.cli._rank_text import RankText
    from sonde.cli._stack_text import Painter
    from sonde.fleet.cluster import ask_all, read_processes_of
    from sonde.fleet.hosts import Cluster

    found = ask_all(Cluster("all", hosts), {"request": "stacks"}, 60.0)
    rows = read_processes_of(found)
    text = "\n".join(RankText(Painter(coloured=False), rows).draw())
    assert len(rows) == 8 * len(hosts) and "wait in all_reduce" in text


# ---- one place -----------------------------------------------------------------------------------


def _measure_places(root: Path, _rounds: int) -> list[Result]:
    """Once, whatever the rounds: an hour of 1,024 ranks takes minutes to make."""
    results = []
    for ranks in _RANKS:
        place = root / "places" / str(ranks)
        if not place.exists():
            fleet_job.make_place(root / "source", place, ranks)
        size = sum(file.stat().st_size for file in place.rglob("*.parquet"))
        sonde = [sys.executable, "-m", "sonde"]
        asked = _run([*sonde, "query", str(place), _MODULES, "--memory", "1GiB"])
        told = _run([*sonde, "advise", f"{place}#{fleet_job.JOB}"])
        if ranks > fleet_job.EACH:
            slow = min(fleet_job.SLOW_HOST, ranks // fleet_job.EACH - 1)
            assert f"Host node{slow:03} is slower" in told[3] and "[missing_rank]" in told[3]
        of = f"{ranks:,}{OF_RANKS}an hour"
        is_last = ranks == _RANKS[-1]
        results += [
            Result(f"{of} in the place, per rank", "KB", [size / ranks / 1e3],
                   note="a step in 5 s, 65 rows of modules in each, one sample a second"),
            Result(f"{of}, GROUP BY module", "s", [asked[0]], 10.0 if is_last else None),
            Result(f"{of}, GROUP BY module, CPU", "s", [asked[1]]),
            Result(f"{of}, GROUP BY module, peak memory", "MB", [asked[2]],
                   1000.0 if is_last else None),
            Result(f"{of}, advise", "s", [told[0]], 60.0 if is_last else None),
            Result(f"{of}, advise, CPU", "s", [told[1]]),
            Result(f"{of}, advise, peak memory", "MB", [told[2]]),
        ]  # fmt: skip
    return results


def _run(command: list[str]) -> tuple[float, float, float, str]:
    """Return the seconds, CPU seconds and peak megabytes of a command, and what it printed."""
    begin = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        text = process.stdout.read()
        _pid, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    spent = time.perf_counter() - begin
    return spent, used.ru_utime + used.ru_stime, used.ru_maxrss / 1e3, text


# ---- the collector -------------------------------------------------------------------------------


def _measure_shipping(_root: Path, _rounds: int) -> list[Result]:
    """An idle process: what shipping adds to the CPU of its collector and its children."""
    with child.open_root() as plain, child.open_root() as shipped:
        more = {"SONDE_ARCHIVE_TO": os.path.join(shipped, "place"), "SONDE_DIR": shipped}
        used = [_watch_idle(plain, {"SONDE_DIR": plain}), _watch_idle(shipped, more)]
    pct = [100 * one / _IDLE_S for one in used]
    return [
        Result("collector of an idle process, of a core", "%", [pct[0]]),
        Result("collector and shipper of an idle process, above that", "%", [pct[1] - pct[0]], 0.5,
               note=f"one minute each, after the first {_IDLE_S:g} s"),
    ]  # fmt: skip


def _watch_idle(root: str, more: dict[str, str]) -> float:
    command = [sys.executable, "-c", _IDLE]
    with subprocess.Popen(command, env={**os.environ, **more}, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(_IDLE_S)
            found = _list_with_children(child.find_collectors(root))
            before = sum(map(_read_cpu_of, found))
            time.sleep(_IDLE_S)
            return sum(map(_read_cpu_of, found)) - before
        finally:
            process.kill()


def _list_with_children(pids: list[int]) -> list[int]:
    found = list(pids)
    for pid in pids:
        words = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        found += map(int, words)
    return found


PARTS: dict[str, Callable[[Path, int], list[Result]]] = {
    "agents": _measure_agents, "places": _measure_places, "shipping": _measure_shipping,
}  # fmt: skip
