"""Recordings of stacks made by hand: the numbers are known, the SQL engine is the real one."""

from __future__ import annotations

import io
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace

import duckdb
import pyarrow as pa

from sonde import plugins
from sonde.analysis import timeline_sql
from sonde.analysis.profile import Profile, Selection
from sonde.analysis.window import find_window
from sonde.session.schema import make_schema
from sonde.store import catalog
from sonde.store.rows import arrow_schema
from sonde.store.statement import qualify
from sonde.store.views import torch_captures
from sonde.tables.torch import TorchTrace

START_NS = 1_700_000_000 * 10**9  # wall clock at the start of every process here
MS = 10**6
WALL = 240 * MS  # of all threads of record_training()
CPU = 84 * MS
HOSTILE = "</script><img src=x onerror=alert(1)>"
SAMPLE = pa.schema(
    [("t_ns", pa.int64()), ("thread", pa.int64()), ("stack", pa.uint64()), ("samples", pa.uint32()),
     ("wall_ns", pa.int64()), ("cpu_ns", pa.int64()), ("gil", pa.bool_()), ("idle", pa.bool_()),
     ("wait", pa.string()), ("call", pa.string()), ("queue_ns", pa.int64()),
     ("ts", pa.timestamp("us", "UTC")), ("host", pa.string()), ("pid", pa.int64()),
     ("rank", pa.int64())]
)  # fmt: skip
FRAME = pa.schema(
    [("stack", pa.uint64()), ("depth", pa.int64()), ("func", pa.string()), ("file", pa.string()),
     ("lineno", pa.int64()), ("first_line", pa.int64())]
)  # fmt: skip
THREAD = pa.schema(
    [("t_ns", pa.int64()), ("thread", pa.int64()), ("name", pa.string()), ("state", pa.string()),
     ("ts", pa.timestamp("us", "UTC")), ("host", pa.string()), ("pid", pa.int64()),
     ("rank", pa.int64())]
)  # fmt: skip
SPANS = {
    "torch_trace": arrow_schema(make_schema(TorchTrace, "python.torch_trace")),
    **{view.schema.table.partition(".")[2]: view.columns for view in torch_captures.VIEWS},
}
# Every other table that timelines are made of.
OTHERS = {
    schema.table: arrow_schema(schema)
    for schema in catalog.list_recorded()
    if schema.table.startswith(("event.", "system."))
    or schema.table
    in (
        "python.gc_pause",
        "python.collective",
        "python.operator",
        "python.event_loop",
        "python.loop_hold",
        "python.request",
        "python.task_wait",
    )
}
OTHERS["event.open_span"] = pa.schema(
    [field for field in OTHERS["event.span"] if field.name in
     ("t_ns", "name", "domain", "kind", "id", "parent", "thread", "number", "host", "pid", "rank")]
)  # fmt: skip


@dataclass
class FakeSession:
    """A process that was recorded, with a monotonic clock of its own."""

    host: str = "alpha"
    pid: int = 100
    rank: int | None = None
    monotonic_ns: int = 5_000 * 10**9
    start_wall_ns: int = START_NS
    ahead_ns: int = 0
    clock: tuple[int, int] | None = None
    state: str = "ended"
    meta: SimpleNamespace = field(
        default_factory=lambda: SimpleNamespace(argv=["python", "/job/train.py"], cwd="/job")
    )
    config: dict[str, object] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return f"{self.host}-{self.pid}-20231114T221320"

    @property
    def wall_offset_ns(self) -> int:
        return self.start_wall_ns - self.monotonic_ns

    def find_state(self) -> str:
        return self.state

    def read_config(self) -> dict[str, object]:
        return self.config


class FakeRecording:
    """Holds rows; answers SQL like a real one."""

    def __init__(self, *sessions: FakeSession) -> None:
        self.sessions = list(sessions) or [FakeSession()]
        self.samples: list[dict[str, object]] = []
        self.frames: dict[tuple[int, int], dict[str, object]] = {}
        self.threads: list[dict[str, object]] = []
        self.spans: dict[str, list[dict[str, object]]] = {name: [] for name in SPANS}
        self.others: dict[str, list[dict[str, object]]] = {name: [] for name in OTHERS}
        self._opened: tuple[int, duckdb.DuckDBPyConnection] | None = None

    def find_empty(self, tables):
        """All are empty but those that were filled."""
        return {name for name in tables if not self.others.get(name)}

    def see(self, path, at_ms, *, wall=10, cpu=10, gil=True, samples=1, thread=100, session=0,
            call=None, wait=None):  # fmt: skip
        """A sample of `a|b|c`, root first (or of frames), that ends so long after the start."""
        frames = _make_frames(path.split("|")) if isinstance(path, str) else list(path)
        number = zlib.crc32(repr(frames).encode()) | 0xFFFF << 48
        for depth, (func, file, lineno, first) in enumerate(reversed(frames)):
            row = dict(func=func, file=file, lineno=lineno, first_line=first)
            self.frames[number, depth] = {"stack": number, "depth": depth, **row}
        self.samples.append(
            dict(thread=thread, stack=number, samples=samples, wall_ns=round(wall * MS),
                 cpu_ns=round(cpu * MS), gil=gil, idle=not cpu, wait=wait,
                 call=call) | self._whose(session, at_ms)
        )  # fmt: skip
        return self

    def name(self, thread, name, *, at_ms=0, session=0):
        self.threads.append(
            dict(thread=thread, name=name, state="idle") | self._whose(session, at_ms)
        )
        return self

    def span(self, table, at_ms, *, session=0, **values):
        """A row of python.torch_trace, torch_op or torch_kernel."""
        self.spans[table].append({**values, **self._whose(session, at_ms)})
        return self

    def row(self, table, at_ms, *, session=0, **values):
        """A row of any other table: event.span, python.gc_pause, system.cpu."""
        whose = self._whose(session, at_ms)
        if table.startswith("system.") and table != "system.process":
            whose |= {"pid": None, "rank": None}
        self.others[table].append({**values, **whose})
        return self

    def region(self, name, at_ms, ms, id, *, parent=None, thread=100, session=0, **more):
        """A region that ended."""
        known = dict(kind="span", end_thread=thread, paused_ns=0) | more
        return self.row("event.span", at_ms, dur_ns=round(ms * MS), name=name, id=id,
                        parent=parent, thread=thread, session=session, **known)  # fmt: skip

    def _whose(self, session, at_ms) -> dict[str, object]:
        owner = self.sessions[session]
        t_ns = owner.monotonic_ns + round(at_ms * MS)
        us = (t_ns + owner.wall_offset_ns) // 1000
        return dict(t_ns=t_ns, ts=us, host=owner.host, pid=owner.pid, rank=owner.rank)

    def query(self, sql: str, given: Mapping[str, pa.Table] | None = None) -> pa.Table:
        connection = self._connect()
        for name, table in (given or {}).items():
            connection.register(name, table)
        names = {name.partition(".")[2] for name in OTHERS if name.startswith("system.")}
        return connection.sql(qualify(sql, names)).to_arrow_table()

    def _connect(self) -> duckdb.DuckDBPyConnection:
        """The tables as they are now; made anew only when there are more rows."""
        tables = {
            "python.stack_sample": (self.samples, SAMPLE),
            "python.frame": ([*self.frames.values()], FRAME),
            "python.thread": (self.threads, THREAD),
            **{f"python.{name}": (self.spans[name], schema) for name, schema in SPANS.items()},
            **{name: (self.others[name], schema) for name, schema in OTHERS.items()},
        }
        size = sum(len(rows) for rows, _ in tables.values())
        if self._opened is None or self._opened[0] != size:
            connection = duckdb.connect()
            connection.execute("SET TimeZone = 'UTC'; CREATE SCHEMA python; CREATE SCHEMA event")
            connection.execute("CREATE SCHEMA memory.system")
            for name, (rows, schema) in tables.items():
                connection.register("rows", pa.Table.from_pylist(rows, schema=schema))
                connection.execute(f"CREATE TABLE memory.{name} AS SELECT * FROM rows")
            self._opened = size, connection
        return self._opened[1]

    def stream(self, sql: str, *, given=None, **_limits):
        yield from self.query(sql, given).to_batches()

    def profile(self, *, since=None, until=None, threads=(), weight="wall", lines=False) -> Profile:
        window = find_window(self, since, until, last=timeline_sql.LAST)
        return Profile(self, Selection(window, tuple(threads), weight, lines))


def _make_frames(names: list[str]) -> list[tuple[str, str, int, int]]:
    """Each name is one function, however often it is called, that stands at its fifth line."""
    lines = {name: 10 * (at + 1) for at, name in enumerate(dict.fromkeys(names))}
    return [(name, "/job/train.py", lines[name] + 5, lines[name]) for name in names]


def record_training() -> FakeRecording:
    """Two ranks that share a pid, two threads, an idle one, recursion, and names meant to harm."""
    recording = FakeRecording(FakeSession(rank=0), FakeSession(host="beta", rank=1))
    for session in (0, 1):
        recording.name(100, "MainThread", session=session).name(101, "loader;0", session=session)
        for at, path in enumerate(
            ("main|train|forward|matmul", "main|train|forward|matmul", "main|train|backward",
             "main|train|backward|matmul", "main|fib|fib|fib", f"main|{HOSTILE}|plot;now")
        ):  # fmt: skip
            cpu, gil = (4, False) if "matmul" in path else (10, True)
            recording.see(path, 10 * at + 10, cpu=cpu, gil=gil, session=session)
        recording.see("run|wait", 60, wall=60, cpu=0, gil=False, samples=6, thread=101,
                      session=session)  # fmt: skip
    return recording


# ---- and what becomes of them --------------------------------------------------------------------


def load(name: str) -> ModuleType:
    return plugins.load("export.formats", name)


def export(name: str, profile: Profile) -> bytes:
    """What an exporter writes."""
    exporter = load(name)
    file = io.StringIO() if exporter.TEXT else io.BytesIO()
    exporter.write(profile, file)
    written = file.getvalue()
    return written.encode() if isinstance(written, str) else written


def write(name: str, profile: Profile, folder: Path) -> Path:
    """The same as a file."""
    path = folder / f"out{load(name).SUFFIX}"
    path.write_bytes(export(name, profile))
    return path
