"""One real recording, multiplied into a job of many ranks: what no test machine can run.

    python benchmarks/fleet_job.py record SOURCE            # two ranks of a real job, recorded here
    python benchmarks/fleet_job.py place SOURCE PLACE [RANKS] [MINUTES]
    python benchmarks/fleet_job.py folders SOURCE FOLDER [RANKS]

A step, with its modules, its collective and its samples, is a real one; the job repeats it. Eight
ranks share a host. Hosts differ in speed, the ranks of host 17 (the last one, of fewer) need half
as much time again, so that all others wait for them in the collective; one rank has no recording;
the clock of each host is up to 10 ms wrong. `place` is what collectors ship and `sonde compact`
merges; `folders` is one root for each host, as its own collector leaves it. Agents serve these:
see fleet_agents.py."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

EACH, SLOW_HOST, JOB = 8, 17, "train-7"
STEP_NS, SLOW = 5 * 10**9, 1.5
_WORK = 0.6  # of a step, on a host of usual speed
_MISSING = 0.49  # where in the job the rank is that has no recording
_HOST = ("host", "pid", "rank", "job", "session")
_STEPS, _CALLS = "python.torch_step", "python.torch_trace"
_COLLECTIVES, _SAMPLES = "python.collective", "python.stack_sample"
_REPEATED = (_STEPS, _CALLS, _COLLECTIVES, _SAMPLES)
_STACKS = "python.stack"
_KEPT = (*_REPEATED, _STACKS, "python.thread", "python.torch_module")  # in folders
_LEFT_OUT = ("sonde.source_log",)
PROGRAM = """
import sys, time, torch
import torch.distributed as dist
import sonde
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
dist.init_process_group("gloo")
block = lambda: torch.nn.Sequential(torch.nn.LayerNorm(64), torch.nn.Linear(64, 256),
                                    torch.nn.GELU(), torch.nn.Linear(256, 64))
model = torch.nn.Sequential(*(block() for _ in range(6)))
model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())
end = time.time() + float(sys.argv[1])
going = torch.ones(1)
while going.item():
    model(torch.randn(64, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    going.fill_(time.time() < end)
    dist.all_reduce(going, op=dist.ReduceOp.MIN)
"""


class Rank(NamedTuple):
    """One process of the job."""

    rank: int
    host: str
    pid: int
    speed: float  # times as long for its own work
    skew_ns: int  # how far its clock is ahead

    @property
    def session(self) -> str:
        return f"{self.host}-{self.pid}-20300101T000000.000000"


def list_ranks(count: int) -> Iterator[Rank]:
    """Yield the ranks that have a recording."""
    slow = min(SLOW_HOST, (count - 1) // EACH)
    for rank in range(count):
        host = rank // EACH
        if count > EACH and rank == round(_MISSING * count):
            continue
        speed = SLOW if host == slow and count > EACH else 1 + 0.01 * (host * 7 % 5)
        yield Rank(rank, f"node{host:03}", 4000 + rank, speed, (host * 37 % 21 - 10) * 10**6)


# ---- the real one --------------------------------------------------------------------------------


def record(source: Path, seconds: float = 20.0) -> None:
    """Record two ranks for a while; `source` gets their folders and what was shipped of them."""
    env = {**os.environ, "SONDE_DIR": str(source / "root"), "SONDE_ARCHIVE_TO": f"{source}/place",
           "SONDE_JOB": JOB, "SONDE": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
           "MASTER_PORT": "29511", "SONDE_ARCHIVE_SHIP_EVERY": "2s"}  # fmt: skip
    source.mkdir(parents=True)
    (source / "train.py").write_text(PROGRAM)
    words = [sys.executable, str(source / "train.py"), str(seconds)]
    running = [subprocess.Popen(words, env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank)})
               for rank in range(2)]  # fmt: skip
    assert not any(process.wait(timeout=600) for process in running)
    deadline = time.monotonic() + 300
    while not all(map(_is_shipped, (source / "root").glob("*-*-*/"))):
        assert time.monotonic() < deadline, "the recording was not shipped"
        time.sleep(0.5)


def _is_shipped(folder: Path) -> bool:
    file = folder / "shipped.json"
    return file.exists() and '"whole":true' in file.read_text().replace(" ", "")


class Source:
    """The tables of rank 0 of the real recording."""

    def __init__(self, source: Path) -> None:
        self.tables: dict[str, pa.Table] = {}
        for folder in sorted((source / "place").iterdir()):
            rows = pa.concat_tables(
                [pq.read_table(file) for file in sorted(folder.rglob("*.parquet"))],
                promote_options="default",
            )
            rows = rows.filter(pc.equal(rows["rank"], 0)) if "rank" in rows.column_names else rows
            if rows.num_rows and folder.name not in _LEFT_OUT:
                self.tables[folder.name] = rows
        self.session = self.tables.pop("sonde.session").to_pylist()[0]
        self.start_ns = int(self.session["start_wall_ns"])
        chosen = self._choose_step()
        self.step_ns = int(chosen["dur_ns"])
        for name in _REPEATED:
            self.tables[name] = self._cut(name, chosen)
        self.tables[_STACKS] = self._choose_stacks()

    def _choose_step(self) -> dict[str, Any]:
        """Return the step in the middle of those with the most rows of modules: some are recorded
        in part, and a job of such steps would be half as large on one day as on another."""
        calls = self.tables[_CALLS]["step"].value_counts().to_pylist()
        most = max(one["counts"] for one in calls)
        whole = pa.array([one["values"] for one in calls if one["counts"] == most])
        steps = self.tables[_STEPS].sort_by("step")
        steps = steps.filter(pc.is_in(steps["step"], whole))
        return dict(steps.slice(steps.num_rows // 2, 1).to_pylist()[0])

    def _cut(self, name: str, step: dict[str, Any]) -> pa.Table:
        """Return the rows of one step, with `t_ns` from its begin."""
        rows = self.tables[name]
        if name == _SAMPLES:
            begun = pc.greater(rows["t_ns"], step["t_ns"] - 10**10)  # not the imports
            inside = pc.and_(pc.equal(rows["thread"], step["pid"]), pc.invert(rows["idle"]))
            rows = rows.filter(pc.and_(inside, begun))
            rows = rows.slice(rows.num_rows * 2 // 3, 5)  # one a second
        else:
            rows = rows.filter(pc.equal(rows["step"], step["step"]))
        if name == _COLLECTIVES:
            rows = rows.slice(rows.num_rows - 1)
        at = pa.array([step["t_ns"]] * rows.num_rows, pa.int64())
        return _put(rows, "t_ns", pc.subtract(rows["t_ns"], at))

    def _choose_stacks(self) -> pa.Table:
        """Return the stacks of the samples that are left, with their callers."""
        rows = self.tables[_STACKS]
        above = dict(zip(rows["stack"].to_pylist(), rows["parent"].to_pylist(), strict=True))
        wanted: set[int | None] = set()
        for stack in self.tables[_SAMPLES]["stack"].to_pylist():
            at: int | None = stack
            while at is not None and at not in wanted:
                wanted.add(at)
                at = above.get(at)
        return rows.filter(pc.is_in(rows["stack"], pa.array(list(wanted - {None}), pa.int64())))


def _put(rows: pa.Table, name: str, values: Any) -> pa.Table:
    at = rows.column_names.index(name)
    kind = rows.schema.field(name).type
    return rows.set_column(at, name, pc.cast(values, kind, safe=False))


def sign(rows: pa.Table, rank: Rank, pid: int) -> pa.Table:
    """Return rows of process `pid` as those of a rank."""
    values = {"host": rank.host, "pid": rank.pid, "rank": rank.rank, "job": JOB,
              "session": rank.session}  # fmt: skip
    for name in set(_HOST) & set(rows.column_names):
        kind = rows.schema.field(name).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        at = rows.column_names.index(name)
        rows = rows.set_column(at, name, pa.repeat(pa.scalar(values[name], kind), rows.num_rows))
    if "thread" in rows.column_names:
        own = pc.equal(rows["thread"], pid)
        rows = _put(rows, "thread", pc.if_else(own, rank.pid, rows["thread"]))
    return rows


# ---- a job of many -------------------------------------------------------------------------------


class Job:
    """The tables of each rank of the job that the recording becomes."""

    def __init__(self, source: Source, count: int, minutes: float) -> None:
        self.source, self.count = source, count
        self.steps = max(2, round(minutes * 60e9 / STEP_NS))
        self.base = {name: self._repeat(rows) for name, rows in source.tables.items()}

    def _repeat(self, rows: pa.Table) -> pa.Table:
        if not any(rows is self.source.tables[name] for name in _REPEATED):
            return rows
        count = rows.num_rows
        times = pa.concat_tables([rows] * self.steps)
        number = pa.array([step for step in range(self.steps) for _ in range(count)], pa.int64())
        return times.append_column("_number", number)

    def make(self, name: str, rank: Rank) -> pa.Table:
        """Return the rows that a rank has in a table."""
        rows = self.base[name]
        if "_number" in rows.column_names:
            rows = self._scale(name, rows, rank)
        elif "t_ns" in rows.column_names and "ts" in rows.column_names:
            rows = _shift(rows, rank.skew_ns)
        return sign(rows, rank, self._meta["pid"])

    def _scale(self, name: str, rows: pa.Table, rank: Rank) -> pa.Table:
        number, work_ns = rows["_number"], _WORK * rank.speed * STEP_NS
        longer = work_ns / self.source.step_ns
        inside = pc.multiply(pc.cast(rows["t_ns"], pa.float64()), longer)
        if name == _COLLECTIVES:
            inside = pa.array([work_ns], pa.float64())[0]
            rows = _put(rows, "dur_ns", pa.repeat(round(STEP_NS - work_ns), rows.num_rows))
        elif name == _STEPS:
            rows = self._scale_step(rows, longer, work_ns)
        elif name == _CALLS:
            for column in ("duration", "self_duration"):
                rows = _put(rows, column, pc.multiply(rows[column], longer))
        else:
            rows = _put(rows, "wall_ns", pa.repeat(10**9, rows.num_rows))
            order = pa.array([at % 5 * 10**9 for at in range(rows.num_rows)], pa.float64())
            inside = pc.add(order, 10**9)
        offset = pc.add(pc.multiply(number, STEP_NS), self.start_ns)
        t_ns = pc.add(pc.cast(inside, pa.int64(), safe=False), offset)
        rows = _put(rows, "t_ns", t_ns)
        wall = pc.divide(pc.add(rows["t_ns"], self.offset_ns + rank.skew_ns), 1000)
        rows = _put(rows, "ts", wall)
        if "step" in rows.column_names:
            rows = _put(rows, "step", number)
        if name == _COLLECTIVES:
            rows = _put(rows, "seq", pc.add(number, 1))
        return rows.drop_columns("_number")

    def _scale_step(self, rows: pa.Table, longer: float, work_ns: float) -> pa.Table:
        for column in ("input_wait_ns", "host_to_device_ns", "forward_ns", "optimizer_ns"):
            rows = _put(rows, column, pc.multiply(pc.cast(rows[column], pa.float64()), longer))
        wait = pa.repeat(STEP_NS - work_ns, rows.num_rows)
        backward = pc.multiply(pc.cast(rows["backward_ns"], pa.float64()), longer)
        rows = _put(rows, "backward_ns", pc.add(backward, wait))
        return _put(rows, "dur_ns", pa.repeat(STEP_NS, rows.num_rows))

    @property
    def start_ns(self) -> int:
        """When the job began, on the clock of t_ns."""
        return self._meta["monotonic_ns"] + 10**9

    @property
    def offset_ns(self) -> int:
        return int(self._meta["wall_ns"] - self._meta["monotonic_ns"])

    @property
    def _meta(self) -> dict[str, Any]:
        return dict(json.loads(self.source.session["meta"]))

    def make_session(self, rank: Rank) -> pa.Table:
        """Return the row of sonde.session."""
        wall_ns = self.source.start_ns + rank.skew_ns
        meta = {**self._meta, "id": rank.session, "host": rank.host, "pid": rank.pid,
                "rank": rank.rank, "world_size": self.count, "wall_ns": wall_ns,
                "job": JOB}  # fmt: skip
        row = {
            **self.source.session, "session": rank.session, "host": rank.host, "pid": rank.pid,
            "rank": rank.rank, "world_size": self.count, "local_rank": rank.rank % EACH,
            "job": JOB, "meta": json.dumps(meta), "start_wall_ns": wall_ns,
            "end_wall_ns": wall_ns + 10**9 + self.steps * STEP_NS,
        }  # fmt: skip
        return pa.Table.from_pylist([row])


def make_place(source: Path, place: Path, count: int = 1024, minutes: float = 60.0) -> None:
    """Write what all ranks have shipped, as `sonde compact` leaves it: few and large files."""
    job = Job(Source(source), count, minutes)
    ranks = list(list_ranks(count))
    _write_merged(place / "sonde.session", [job.make_session(one) for one in ranks], ranks)
    for name in job.base:
        if name.startswith("system.") and _is_of_host(job.base[name]):
            some = [one for one in ranks if one.rank % EACH == 0]
        else:
            some = ranks
        _write_merged(place / name, (job.make(name, one) for one in some), some)


def _is_of_host(rows: pa.Table) -> bool:
    return "rank" in rows.column_names and rows["rank"].null_count == rows.num_rows


def _write_merged(folder: Path, tables: Any, ranks: list[Rank]) -> None:
    day = folder / "date=2030-01-01"
    day.mkdir(parents=True)
    writer, waiting, size = None, list[pa.Table](), 0
    for rows in tables:
        waiting.append(rows)
        size += rows.num_rows
        if writer is None:
            writer = pq.ParquetWriter(day / "merged-1-1.parquet", rows.schema, compression="zstd",
                                      compression_level=1, store_schema=False)  # fmt: skip
        if size >= 1 << 17:
            writer.write_table(pa.concat_tables(waiting), row_group_size=1 << 17)
            waiting, size = [], 0
    assert writer is not None
    if waiting:
        writer.write_table(pa.concat_tables(waiting))
    writer.close()
    names = [f"{one.session}-{0:020d}-{1:020d}.parquet" for one in ranks]
    (day / "_merged-1-1.json").write_text(json.dumps(names))


def make_folders(source: Path, to: Path, count: int = 1024) -> list[Path]:
    """Write the recording for each rank, under its name; return one root for each host."""
    from sonde.session import Session
    from sonde.session.files import write_checked
    from sonde.store import archive

    folders = sorted((source / "root").glob("*-*-*/"))
    first = Session(str(min(folders, key=lambda one: int(_read_meta(one)["rank"]))))
    meta = _read_meta(Path(first.folder))
    segments = [(name, one.first, one.last, archive.read_segment(one))
                for name in _KEPT for one in archive.list_segments(first, name)]  # fmt: skip
    roots: dict[str, Path] = {}
    for rank in list_ranks(count):
        root = roots.setdefault(rank.host, to / rank.host)
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder = root / rank.session
        left_out = shutil.ignore_patterns("meta.json", "shipped.json", "archive")
        shutil.copytree(first.folder, folder, copy_function=os.link, ignore=left_out)
        write_checked(str(folder / "meta.json"), {
            **meta, "id": rank.session, "host": rank.host, "pid": rank.pid, "rank": rank.rank,
            "world_size": count, "job": JOB, "wall_ns": meta["wall_ns"] + rank.skew_ns,
        })  # fmt: skip
        session = Session(str(folder))
        for name, begin, end, rows in segments:
            signed = sign(_shift(rows, rank.skew_ns), rank, first.pid)
            archive.write_segment(session, name, signed, begin, end, 0)
    return list(roots.values())


def _shift(rows: pa.Table, ns: int) -> pa.Table:
    """Return rows whose clock is ahead by so much."""
    if "ts" not in rows.column_names:
        return rows
    ahead = ns if rows.schema.field("ts").type.unit == "ns" else ns // 1000
    return _put(rows, "ts", pc.add(pc.cast(rows["ts"], pa.int64()), ahead))


def _read_meta(folder: Path) -> dict[str, Any]:
    from sonde.session.files import read_checked

    return dict(read_checked(str(folder / "meta.json")))


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    if what == "record":
        record(Path(words[0]))
    elif what == "place":
        make_place(Path(words[0]), Path(words[1]), *map(int, words[2:]))
    else:
        make_folders(Path(words[0]), Path(words[1]), *map(int, words[2:]))
