"""A recording of a day of eight ranks that train together, without waiting for it.

    python benchmarks/day.py [HOURS [RANKS]]        # into $SONDE_DIR; prints the target

Eight real ranks, or as many as are asked for, are recorded for forty seconds. What they did in
forty of their steps, with their samples, modules, collectives and the readings of the machine, is
then repeated until the time is over, in the archives of the same sessions."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RANKS, JOB = 8, "day"  # unless it is told how many
_SECONDS = 40.0
_FIRST, _STEPS = 8, 40  # the steps that are repeated
_ROWS_AT_ONCE = 500_000
PROGRAM = """
import sys, time, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
dist.init_process_group("gloo")
block = lambda: torch.nn.Sequential(torch.nn.LayerNorm(64), torch.nn.Linear(64, 256),
                                    torch.nn.GELU(), torch.nn.Linear(256, 64))
model = DistributedDataParallel(torch.nn.Sequential(*(block() for _ in range(6))))
optimizer = torch.optim.AdamW(model.parameters())

def load(batch):
    time.sleep(0.35)
    return torch.randn(batch, 64)

end = time.time() + float(sys.argv[1])
going = torch.ones(1)
while going.item():
    batch = load(256)
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    going.fill_(time.time() < end)
    dist.all_reduce(going, op=dist.ReduceOp.MIN)
"""


def record(root: str, ranks: int = RANKS) -> None:
    """Run the ranks, until their sessions are sealed."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "train.py"
        program.write_text(PROGRAM)
        env = {**os.environ, "SONDE": "1", "SONDE_DIR": root, "SONDE_JOB": JOB,
               "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
               "MASTER_PORT": "29517"}  # fmt: skip
        running = [
            subprocess.Popen([sys.executable, str(program), str(_SECONDS)],
                             env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank in range(ranks)
        ]  # fmt: skip
        assert not any(process.wait(timeout=600) for process in running)
    deadline = time.monotonic() + 120
    while len(list(Path(root).glob("*/sealed.json"))) < ranks:
        assert time.monotonic() < deadline, "the sessions are not sealed"
        time.sleep(0.2)


def stretch(hours: float) -> None:
    """Repeat the steps of all ranks until so many hours have passed."""
    import sonde
    from sonde.session import Session
    from sonde.session.files import SEALED
    from sonde.session.records import Sealed
    from sonde.store import archive

    recording = sonde.open(f"job:{JOB}")
    begin, end = recording.query(
        f"SELECT MIN(t_ns) FILTER (step = {_FIRST}), MIN(t_ns) FILTER (step = {_FIRST + _STEPS}) "
        "FROM python.torch_step"
    ).to_pylist()[0].values()  # fmt: skip
    times = int(hours * 3600e9 / (end - begin))
    for one in recording.sessions:
        session = Session(one.folder)
        sealed = Sealed.read(session.path(SEALED))
        for table in set(archive.list_tables(session)) & set(sealed.tables):
            sealed.tables[table].head = _repeat(session, table, begin, end, times)
        sealed.end_wall_ns = session.start_wall_ns + (
            begin - session.meta.monotonic_ns + times * (end - begin)
        )
        os.unlink(session.path(SEALED))
        sealed.write(session.path(SEALED))


def _repeat(session: object, table: str, begin: int, end: int, times: int) -> int:
    """Write a table anew; return how many rows it has."""
    import duckdb
    import pyarrow as pa

    from sonde.store import archive

    parts = archive.list_segments(session, table)
    rows = pa.concat_tables([archive.read_segment(part) for part in parts])
    if "t_ns" not in rows.column_names:
        return parts[-1].last
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.register("rows", rows)
    [(count,)] = connection.sql(
        f"SELECT COUNT(*) FROM rows WHERE t_ns >= {begin} AND t_ns < {end}"
    ).fetchall()
    shutil.rmtree(session.path("archive", table))
    written = _write(session, table, connection, rows, f"FROM rows WHERE t_ns < {begin}", 0)
    if not count:
        return written
    step = max(1, _ROWS_AT_ONCE // count)
    shown = ", ".join(_shift(name, table, end - begin) for name in rows.column_names)
    for first in range(0, times, step):
        sql = (
            f"SELECT {shown} FROM range({first}, {min(first + step, times)}) AS turn(number), "
            f"rows AS one WHERE one.t_ns >= {begin} AND one.t_ns < {end} ORDER BY one.t_ns"
        )
        sql = f"FROM ({sql}) ORDER BY t_ns"
        written = _write(session, table, connection, rows, sql, written)
    return written


def _shift(name: str, table: str, width_ns: int) -> str:
    """Return SQL for a column of the turn with this number."""
    if name == "t_ns":
        return f"one.t_ns + number * {width_ns} AS t_ns"
    if name == "ts":
        return f"one.ts + INTERVAL (number * {width_ns // 1000}) MICROSECOND AS ts"
    if name == "step":
        return f"one.step + number * {_STEPS} AS step"
    if name == "seq" or (table == "python.sampling" and name in ("due", "taken", "cpu_ns")):
        turn = f'(MAX(one."{name}") OVER () - MIN(one."{name}") OVER () + 1)'
        return f'one."{name}" + number * {turn} AS "{name}"'
    return f'one."{name}"'


def _write(session, table, connection, rows, sql, written):  # type: ignore[no-untyped-def]
    from sonde.store import archive

    made = connection.sql(sql).to_arrow_table().cast(rows.schema)
    if made.num_rows:
        archive.write_segment(session, table, made, written, written + made.num_rows, 0)
    return written + made.num_rows


if __name__ == "__main__":
    record(os.environ["SONDE_DIR"], int(sys.argv[2]) if len(sys.argv) > 2 else RANKS)
    stretch(float(sys.argv[1]) if len(sys.argv) > 1 else 24.0)
    print(f"job:{JOB}")
