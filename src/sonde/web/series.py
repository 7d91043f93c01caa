"""Numbers over time, in the pieces that the page draws: the machine, steps, marks, events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from sonde.analysis.window import Window
from sonde.store.recording import Recording
from sonde.web.answer import PageAnswer, make_exact

MOST_MARKS, MARKS_OF_KIND, MOST_SPANS, MOST_COUNTERS = 400, 40, 300, 8
_LONG_GC_MS = 5


class Chart(NamedTuple):
    """A chart of the machine: rows with their piece, and the lines that sums of them make."""

    title: str
    unit: str
    rows: str
    lines: Mapping[str, str]  # by name: how a value is made from the rows of a piece and host


_INSIDE = "ts > make_timestamptz({since_us}) AND ts <= make_timestamptz({until_us})"
_PIECE = "((epoch_us(ts) * 1000 - {since_ns}) // {width_ns})::INTEGER AS piece"
_LINE = (
    "SELECT piece, host, {at} AS line, {name} AS name, {value} AS value FROM row_of GROUP BY ALL"
)
_ROWS = "SELECT {{piece}}, * FROM {} WHERE {{inside}}"
# Several devices are read at one moment: their amounts add up, and the time does not.
_RATE = "SUM({}) * 1e9 / (SUM(interval_ns) / COUNT(DISTINCT {}))"
_PROCESSES = """\
SELECT {piece}, host, process, AVG(user_pct) AS user_pct, AVG(system_pct) AS system_pct,
    AVG(rss_bytes) AS rss_bytes FROM system.process WHERE {inside} GROUP BY ALL"""

_CHARTS = (
    Chart("CPU, machine", "%", _ROWS.format("system.cpu"),
          {"'busy'": "AVG(busy_pct)", "'I/O wait'": "AVG(iowait_pct)"}),
    Chart("CPU, job", "%", _PROCESSES,
          {"'program'": "SUM(user_pct)", "'kernel'": "SUM(system_pct)"}),
    Chart("Memory, job", "B", _PROCESSES, {"'resident'": "SUM(rss_bytes)"}),
    Chart("Memory, machine", "B", _ROWS.format("system.memory"),
          {"'used'": "AVG(used_bytes)", "'swap'": "AVG(swap_used_bytes)"}),
    Chart("GPU utilisation", "%", _ROWS.format("system.gpu"), {"'GPU ' || gpu": "AVG(util_pct)"}),
    Chart("GPU memory", "B", _ROWS.format("system.gpu"),
          {"'GPU ' || gpu": "AVG(memory_used_bytes)"}),
    Chart("GPU power", "W", _ROWS.format("system.gpu"), {"'GPU ' || gpu": "AVG(power_w)"}),
    Chart("GPU clock", "MHz", _ROWS.format("system.gpu"), {"'GPU ' || gpu": "AVG(sm_clock_mhz)"}),
    Chart("Disk", "B/s", _ROWS.format("system.disk"),
          {"'read'": _RATE.format("read_bytes", "device"),
           "'written'": _RATE.format("written_bytes", "device")}),
    Chart("Network", "B/s", _ROWS.format("system.network") + " AND kind <> 'loopback'",
          {"'received'": _RATE.format("received_bytes", "interface"),
           "'sent'": _RATE.format("sent_bytes", "interface")}),
    Chart("Pressure", "%", _ROWS.format("system.pressure") + " AND scope = 'machine'",
          {"resource": "AVG(some_pct)"}),
)  # fmt: skip

_STEPS = """\
SELECT {piece}, host, pid, COUNT(*) AS steps, AVG(dur_ns) AS dur,
    AVG(input_wait_ns) AS input_wait, AVG(host_to_device_ns) AS to_device,
    AVG(forward_ns) AS forward, AVG(backward_ns) AS backward, AVG(optimizer_ns) AS optimizer,
    AVG(other_ns) AS other
FROM python.torch_step WHERE {inside} GROUP BY ALL ORDER BY ALL"""

# Only locks whose holder is known: a worker of a pool waits for a lock, too, when it has no work.
_MARKS = """\
WITH named AS (SELECT host, pid, thread, arg_max(name, t_ns) AS name FROM python.thread
    WHERE name IS NOT NULL GROUP BY ALL),
mark AS (
    SELECT ts, host, pid, 'exception' AS kind, 1 AS rank_of,
        type || COALESCE(': ' || message, '') AS text, 0 AS dur_ns FROM python.exception
    UNION ALL SELECT ts, host, pid, 'memory', 1, 'out of memory on ' || device, 0
        FROM python.torch_oom
    UNION ALL SELECT ts, host, pid, 'kernel', 1, message, 0 FROM system.kernel_log
    UNION ALL SELECT ts, host, pid, 'trigger', 2, condition, 0 FROM python.trigger
    UNION ALL SELECT MIN(ts - to_microseconds((w.t_ns - since_ns) // 1000)), host, pid, 'lock', 3,
        COALESCE(any_value(waits.name), 'a thread') || ' waits for a lock (' || any_value(kind)
        || ') that ' || COALESCE(any_value(holds.name), 'another thread') || ' holds'
        || COALESCE(', taken in ' || any_value(taken_func) || ', ' || any_value(taken_file) || ':'
        || any_value(taken_lineno), ''), MAX(w.t_ns) - since_ns
        FROM python.lock_wait w LEFT JOIN named waits USING (host, pid, thread)
        LEFT JOIN named holds ON (holds.host, holds.pid, holds.thread) = (w.host, w.pid, w.holder)
        WHERE holder >= 0 AND kind <> 'thread' GROUP BY host, pid, thread, since_ns
    UNION ALL SELECT ts, host, pid, 'marker', 4, name, 0 FROM event.marker
    UNION ALL SELECT ts, host, pid, 'gc', 5, 'generation ' || generation, dur_ns
        FROM python.gc_pause WHERE dur_ns >= {long_gc_ns})
SELECT epoch_us(ts) * 1000 - {base_ns} AS at, host, pid, kind, text, dur_ns,
    COUNT(*) OVER (PARTITION BY kind) AS of_kind
FROM mark WHERE {inside}
QUALIFY row_number() OVER (ORDER BY rank_of, dur_ns DESC, ts) <= {most}
    OR row_number() OVER (PARTITION BY kind ORDER BY dur_ns DESC, ts) <= {most_of_kind}
ORDER BY rank_of, dur_ns DESC, ts"""

_SUMMARY = """\
SELECT kind, name, SUM(count)::BIGINT AS count, SUM(total_ns)::BIGINT AS total_ns,
    MAX(max_ns) AS max_ns, any_value(last) AS last FROM event.summary GROUP BY kind, name
ORDER BY total_ns DESC NULLS LAST, count DESC LIMIT 100"""
_SPANS = """\
SELECT epoch_us(ts) * 1000 - {base_ns} AS at, dur_ns, name, thread, pid, host, error
FROM event.span WHERE {inside} ORDER BY dur_ns DESC LIMIT {most}"""
_COUNTERS = """\
SELECT {piece}, name, AVG(value) AS value FROM event.counter WHERE {inside} AND isfinite(value)
    AND name IN (SELECT name FROM event.counter GROUP BY name ORDER BY COUNT(*) DESC LIMIT {most})
GROUP BY ALL ORDER BY ALL"""


class Pieces(NamedTuple):
    """The time that is asked for, and the pieces in which it is drawn."""

    window: Window
    base_ns: int
    width_ns: int

    def fill(self, sql: str, **more: object) -> str:
        """Return a query for these pieces."""
        ends = {
            "since_us": self.window.since_ns // 1000, "until_us": self.window.until_ns // 1000,
            "since_ns": self.window.since_ns, "base_ns": self.base_ns, "width_ns": self.width_ns,
        }  # fmt: skip
        return sql.format(
            piece=_PIECE.format(**ends), inside=_INSIDE.format(**ends), **ends, **more
        )


def read_machine(recording: Recording, pieces: Pieces) -> PageAnswer:
    """Return the charts of the machine that have values."""
    charts, asked = [], []
    for chart in _CHARTS:
        lines = (
            _LINE.format(at=at, name=name, value=value)
            for at, (name, value) in enumerate(chart.lines.items())
        )
        sql = f"WITH row_of AS ({pieces.fill(chart.rows)})\n" + "\nUNION ALL ".join(lines)
        rows = recording.query(f"{sql} ORDER BY ALL").to_pylist()
        if any(row["value"] is not None for row in rows):
            charts.append({"title": chart.title, "unit": chart.unit, "lines": list(_draw(rows))})
            asked.append(sql)
    return PageAnswer({"charts": charts}, asked)


def _draw(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield lines: the pieces that have a value, and the values."""
    hosts = {row["host"] for row in rows}
    lines: dict[str, dict[str, Any]] = {}
    for row in rows:
        name = row["name"] if len(hosts) == 1 else f"{row['host']}: {row['name']}"
        line = lines.setdefault(name, {"name": name, "pieces": [], "values": []})
        if row["value"] is not None:
            line["pieces"].append(row["piece"])
            line["values"].append(make_exact(float(f"{row['value']:.5g}")))
    yield from lines.values()


def read_steps(recording: Recording, pieces: Pieces) -> PageAnswer:
    """Return the steps of each process by piece: how many, and the parts of a mean one."""
    sql = pieces.fill(_STEPS)
    rows = recording.query(sql)
    return PageAnswer(
        {"steps": {name: rows[name].to_pylist() for name in rows.column_names}}, [sql]
    )


def read_marks(recording: Recording, pieces: Pieces) -> PageAnswer:
    """Return moments that matter, the gravest first, and how many of each kind there are. Some of
    each kind are among them: a program with a thousand markers still has its collections."""
    sql = pieces.fill(
        _MARKS, most=MOST_MARKS, most_of_kind=MARKS_OF_KIND, long_gc_ns=_LONG_GC_MS * 10**6
    )
    rows = recording.query(sql).to_pylist()
    counts = {row["kind"]: row.pop("of_kind") for row in rows}
    return PageAnswer({"marks": rows, "counts": counts}, [sql])


def read_events(recording: Recording, pieces: Pieces) -> PageAnswer:
    """Return the program's own regions, counters and markers."""
    spans = pieces.fill(_SPANS, most=MOST_SPANS)
    counters = pieces.fill(_COUNTERS, most=MOST_COUNTERS)
    lines: dict[str, dict[str, Any]] = {}
    for row in recording.query(counters).to_pylist():
        line = lines.setdefault(row["name"], {"name": row["name"], "pieces": [], "values": []})
        line["pieces"].append(row["piece"])
        line["values"].append(row["value"])
    data = {
        "summary": make_exact(recording.query(_SUMMARY).to_pylist()),
        "spans": recording.query(spans).to_pylist(), "most": MOST_SPANS,
        "counters": list(lines.values()),
    }  # fmt: skip
    return PageAnswer(data, [_SUMMARY, spans, counters])
