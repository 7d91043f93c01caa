"""Asking a cluster: from 1 agent to 128 on this machine, from 8 ranks to 1,024."""

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
from result import Result

_HERE = Path(__file__).resolve().parent
_SIZES = (1, 8, 32, 128)
_PROCESSES = 4  # that the agents are spread over
_SQL = ("SELECT rank, COUNT(*) AS n, AVG(dur_ns) AS mean, MAX(dur_ns) AS longest "
        "FROM python.gc_pause GROUP BY rank ORDER BY rank")  # fmt: skip
_PROGRAM = """
import gc, sonde
sonde.start(collector="off")
for _ in range(500): gc.collect(0)
"""


def measure(rounds: int) -> list[Result]:
    """Seconds from the question to the whole answer, in a program that has imported everything,
    and of the whole command for the largest cluster."""
    with child.open_root() as root, _use(root), _serve() as hosts:
        results = []
        for size in _SIZES:
            some = hosts[:size]
            note = "all agents and whoever asks share the cores" if size == 1 else ""
            results.append(Result(f"query of {size} hosts", "s", _repeat(rounds, _query, some),
                                  2.0 if size == 128 else None, note=note))  # fmt: skip
        for size in _SIZES:
            what = f"stacks of {8 * size:,} ranks on {size} hosts, as text"
            results.append(Result(what, "s", _repeat(rounds, _look, hosts[:size]),
                                  3.0 if size == 128 else None))  # fmt: skip
        for words in (("query", _SQL), ("stacks",)):
            target = f"@hosts:{','.join(hosts)}"
            command = [sys.executable, "-m", "sonde", words[0], target, *words[1:]]
            results.append(Result(f"`sonde {words[0]}` of 128 hosts, the whole command", "s",
                                  [_run(command) for _ in range(rounds)]))  # fmt: skip
        return results


@contextmanager
def _use(root: str) -> Iterator[None]:
    """Have sonde use this root and credentials of its own, with a small recording of 8 ranks."""
    before = {name: os.environ.get(name) for name in ("SONDE_DIR", "SONDE_FLEET")}
    os.environ |= {"SONDE_DIR": root, "SONDE_FLEET": os.path.join(root, ".fleet")}
    try:
        for rank in range(8):
            subprocess.run([sys.executable, "-c", _PROGRAM], check=True,
                           env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "8"})  # fmt: skip
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


@contextmanager
def _serve() -> Iterator[list[str]]:
    from sonde.fleet.credentials import make_credentials

    make_credentials()
    hosts: list[str] = []
    each = _SIZES[-1] // _PROCESSES
    with ExitStack() as stack:
        for at in range(_PROCESSES):
            words = [sys.executable, str(_HERE / "fleet_agents.py"), str(each * at), str(each)]
            process = stack.enter_context(
                subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            assert process.stdin is not None and process.stdout is not None
            stack.callback(process.stdin.close)
            hosts += [f"127.0.0.1:{port}" for port in json.loads(process.stdout.readline())]
        yield hosts


def _repeat(rounds: int, ask: Callable[[list[str]], None], hosts: list[str]) -> list[float]:
    ask(hosts)  # the first connects more slowly
    found = []
    for _ in range(rounds):
        begin = time.perf_counter()
        ask(hosts)
        found.append(time.perf_counter() - begin)
    return found


def _query(hosts: list[str]) -> None:
    from sonde.fleet.hosts import Cluster
    from sonde.fleet.query import query_cluster

    rows, found = query_cluster(Cluster("all", hosts), _SQL, 60.0, "1GiB")
    assert rows.num_rows == 8 and len(found.tables) == len(hosts), found.describe_missing()


def _look(hosts: list[str]) -> None:
    from sonde.cli._rank_text import RankText
    from sonde.cli._stack_text import Painter
    from sonde.fleet.cluster import ask_all, read_processes_of
    from sonde.fleet.hosts import Cluster

    found = ask_all(Cluster("all", hosts), {"request": "stacks"}, 60.0)
    rows = read_processes_of(found)
    text = "\n".join(RankText(Painter(coloured=False), rows).draw())
    assert len(rows) == 8 * len(hosts) and "wait in all_reduce" in text


def _run(command: list[str]) -> float:
    begin = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin
