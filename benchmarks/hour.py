"""A recording of an hour of eight busy threads at 100 Hz, without waiting for it.

    python benchmarks/hour.py [HOURS]       # into $SONDE_DIR; prints the folder

A real program with many stacks is recorded for a few seconds. Its samples then become an hour's, in
the archive of the same session: eight threads, each at any of several hundred stacks at any moment.
Few real programs are as varied, so this is a hard case."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

THREADS, RATE = 8, 100
_ROWS_AT_ONCE = 500_000


def work_in_threads(seconds: float) -> None:
    """Be a program with a few hundred distinct stacks."""
    import sonde

    folder = sonde.start(stack_every="2ms")
    end = time.monotonic() + seconds

    def parse(depth: int) -> None:
        (leaf if depth <= 0 else random.choice((parse, plan, render)))(depth - 1)

    def plan(depth: int) -> None:
        (leaf if depth <= 0 else random.choice((parse, render)))(depth - 1)

    def render(depth: int) -> None:
        (leaf if depth <= 0 else random.choice((parse, plan)))(depth - 1)

    def leaf(_depth: int) -> None:
        json.dumps(list(range(random.randrange(100, 2000))))

    def serve() -> None:
        while time.monotonic() < end:
            parse(random.randrange(9))

    threads = [threading.Thread(target=serve, name=f"worker-{at}") for at in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(folder)


def make_hour(hours: float = 1.0) -> Path:
    """Record, and stretch the recording; return its folder."""
    code = "import hour; hour.work_in_threads(6.0)"
    made = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, check=True,
                          capture_output=True, text=True, timeout=240)  # fmt: skip
    folder = Path(made.stdout.strip())
    deadline = time.monotonic() + 120
    while not (folder / "sealed.json").exists():
        assert time.monotonic() < deadline, "the session is not sealed"
        time.sleep(0.1)
    stretch(folder, hours)
    return folder


def stretch(folder: Path, hours: float) -> None:
    """Put an hour's samples in place of those that were taken."""
    import duckdb

    import sonde
    from sonde.session import Session
    from sonde.session.files import SEALED
    from sonde.session.records import Sealed
    from sonde.store import archive

    session, table = Session(str(folder)), "python.stack_sample"
    samples = sonde.open(str(folder)).query(
        f"SELECT * FROM {table} WHERE NOT idle AND thread <> pid ORDER BY t_ns"
    )
    connection = duckdb.connect()
    connection.register("samples", samples)
    names = [
        name
        for name in samples.column_names
        if name not in ("t_ns", "ts", "thread", "stack", "wall_ns")
    ]
    kept = ", ".join(f"one.{name}" for name in names)
    count = round(hours * 3600 * RATE)
    sql = f"""
    WITH one AS (SELECT *, row_number() OVER () - 1 AS number FROM samples),
    thread AS (SELECT DISTINCT thread FROM samples ORDER BY 1 LIMIT {THREADS}),
    tick AS (SELECT range AS tick_of FROM range({{first}}, {{last}}))
    SELECT {session.meta.monotonic_ns} + (tick_of + 1) * {10**9 // RATE} AS t_ns,
        make_timestamptz({session.start_wall_ns // 1000} + (tick_of + 1) * {10**6 // RATE}) AS ts,
        thread.thread, one.stack, {10**9 // RATE} AS wall_ns, {kept}
    FROM tick CROSS JOIN thread JOIN one
        ON one.number = (hash(tick_of, thread.thread) % {samples.num_rows})::BIGINT
    ORDER BY tick_of"""
    shutil.rmtree(session.path("archive", table))
    step = _ROWS_AT_ONCE // THREADS
    written = 0
    for first in range(0, count, step):
        last = min(first + step, count)
        rows = connection.sql(sql.format(first=first, last=last)).to_arrow_table()
        rows = rows.select(samples.column_names).cast(samples.schema)
        archive.write_segment(session, table, rows, written, written + rows.num_rows, 0)
        written += rows.num_rows
    sealed = Sealed.read(session.path(SEALED))
    sealed.tables[table].head = written
    sealed.end_wall_ns = session.start_wall_ns + count * 10**9 // RATE
    os.unlink(session.path(SEALED))
    sealed.write(session.path(SEALED))


if __name__ == "__main__":
    print(make_hour(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0))
