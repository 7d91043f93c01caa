"""The whole command `sonde query` over a million live rows."""

from __future__ import annotations

import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import child
import layout
from holder import ROWS, TABLE, hold_rows
from result import Result, interleave

_SQL = f"SELECT name, COUNT(*), AVG(x) FROM {TABLE} GROUP BY name"
_IMPORTS = "import duckdb, pyarrow, pyarrow.compute, pyarrow.dataset, pyarrow.parquet"


def measure(rounds: int) -> list[Result]:
    """Seconds from the shell's point of view: start of the command to its end."""
    command = str(Path(sys.executable).parent / "sonde")
    with child.open_root() as root, hold_rows(root) as (pid, _folder):
        query = [command, "query", str(pid), _SQL, "--format", "csv"]
        answer = child.run(query, root)
        assert sum(int(line.split(",")[1]) for line in answer.splitlines()[1:]) == ROWS
        found = interleave(
            2 * rounds,
            {
                "query": partial(time_command, query, root),
                "none": partial(time_command, [*query[:3], "SELECT 1"], root),
                "imports": partial(time_command, [sys.executable, "-c", _IMPORTS], root),
                "python": partial(time_command, [sys.executable, "-c", "pass"], root),
            },
        )
    parts = {
        "sonde query 'SELECT 1'": found["none"],
        "only: import duckdb and pyarrow": found["imports"],
        "only: python -c pass": found["python"],
    }
    return [
        Result(f"sonde query, GROUP BY over {ROWS:,} rows", "s", found["query"], 1, peers=parts)
    ]


def time_command(argv: list[str], root: str) -> float:
    begin = time.perf_counter()
    subprocess.run(
        argv,
        env=child.make_environment(root, **layout.draw()),
        stdout=subprocess.DEVNULL,
        timeout=child.TIMEOUT_S,
        check=True,
    )
    return time.perf_counter() - begin
