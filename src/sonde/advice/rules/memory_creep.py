"""The memory of the process keeps growing.

Why it hurts: sooner or later the machine, or the container's limit, is full, and the job is
killed, often hours into its work.

What to do: look for what is kept: losses appended with their graph (use `.item()` or `.detach()`),
caches and lists that only grow, a closure that holds batches. While the memory grows steadily the
recording looks at the heap for a time by itself, so that the line is known; `sonde config PID
source.heap=on` does so now, in the running program.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from sonde.advice.rules._code import PLACE, show_place
from sonde.advice.trend import find_growth
from sonde.advice.verdict import Limit, Limits, Rows, Verdict

NEEDS = ("system.process.rss_bytes", "system.process.depth", "system.process.pss_bytes")
OTHERWISE = "the recording is too short"
UNLESS = ("recompilation",)  # all that is compiled is kept
LIMITS = {
    "least_bytes": Limit(20e6, "growth over the period judged that is worth a word"),
    "least_pct": Limit(5, "of its size that a process has grown by, at least"),
    "grown_bytes": Limit(100e6, "growth over the period judged that is worth a warning"),
    "critical_bytes": Limit(1e9, "growth that is critical"),
    "fit": Limit(0.8, "how straight the growth is (R²)"),
    "parts": Limit(12, "parts of the time, with as many readings in each, that are compared"),
    "long_s": Limit(60, "judged, below which growth may be the start: it is only mentioned"),
    "short_bytes": Limit(
        60e6, "growth that is worth a word in less time than that, if the heap was not recorded"
    ),
    "heap_pct": Limit(30, "of the growth while the heap was recorded, at one line, to name it"),
    "look_s": Limit(3, "that the heap was recorded for, below which it tells nothing"),
    "enough_s": Limit(30, "after which a later look at the heap tells more than a longer one"),
}
# The last reading may show a process that ends, and has given back much of its memory. Workers
# share pages with their parent: only PSS shows what they add. It is rarely read.
# The heap is often recorded for a part of the time only: the longest look at it counts, or the
# latest of several that are long enough, and what the process has grown by in that very time. A
# look begins with nothing: its first quarter is left out, in which whatever a program always holds
# for a while is allocated anew. A place that did not change has no new row: its last one before a
# moment says what it held, and python.heap what it holds at the end.
SQL = f"""
WITH reading AS (
  SELECT {{piece}} AS piece, ts, host, pid, depth = 0 AS own, process,
         CASE WHEN depth = 0 THEN rss_bytes ELSE pss_bytes END AS bytes
  FROM system.process WHERE {{inside}} AND bytes IS NOT NULL
  QUALIFY depth > 0 OR ts < MAX(ts) OVER (PARTITION BY host, pid, process)),
numbered AS (
  SELECT *, NTILE({{parts}}::BIGINT) OVER (PARTITION BY host, pid, process ORDER BY ts) AS part
  FROM reading),
size AS (
  SELECT MIN(piece) AS piece, MAX(piece) AS last_piece, host, pid, own, process, part,
         epoch(MIN(ts)) AS begin_s, epoch(MAX(ts)) AS end_s, COUNT(*) AS readings,
         MEDIAN(bytes) AS bytes
  FROM numbered GROUP BY host, pid, own, process, part),
whole AS (
  SELECT host, pid, MIN(ts) AS first_ts, MAX(ts) AS last_ts FROM reading WHERE own GROUP BY 1, 2),
switch AS (
  SELECT host, pid, ts, state = 'on' AS is_on
  FROM sonde.source_log WHERE source = 'heap' AND {{to_end}}
  QUALIFY is_on <> COALESCE(LAG(is_on) OVER (PARTITION BY host, pid ORDER BY ts), FALSE)),
time_on AS (
  SELECT host, pid, is_on, ts AS on_ts, LEAD(ts) OVER (PARTITION BY host, pid ORDER BY ts) AS off_ts
  FROM switch QUALIFY is_on),
part_on AS (
  SELECT host, pid, on_ts, COALESCE(off_ts > last_ts, TRUE) AS is_last,
         LEAST(COALESCE(off_ts, last_ts), last_ts) AS to_ts,
         CASE WHEN first_ts BETWEEN on_ts AND to_ts THEN first_ts ELSE on_ts END AS since_ts,
         since_ts + (to_ts - since_ts) / 4 AS after_ts,
         CASE WHEN since_ts = on_ts THEN after_ts ELSE since_ts END AS from_ts
  FROM time_on JOIN whole USING (host, pid)),
look AS (
  SELECT * FROM part_on WHERE epoch(to_ts) - epoch(from_ts) >= {{look_s}}
  QUALIFY ROW_NUMBER() OVER (PARTITION BY host, pid
    ORDER BY LEAST(epoch(to_ts) - epoch(from_ts), {{enough_s}}) DESC, on_ts DESC) = 1),
resident AS (
  SELECT host, pid, on_ts, ARG_MAX(rss_bytes, ts) - ARG_MIN(rss_bytes, ts) AS look_bytes
  FROM system.process JOIN look USING (host, pid)
  WHERE depth = 0 AND ts BETWEEN from_ts AND to_ts GROUP BY 1, 2, 3),
late AS (SELECT DISTINCT host, pid FROM python.heap_history WHERE NOT {{to_end}}),
history AS (
  SELECT host, pid, stack, type, ts, alive_bytes, FALSE AS at_end
  FROM python.heap_history WHERE {{to_end}} UNION ALL
  SELECT host, pid, stack, type, NULL, alive_bytes, TRUE FROM python.heap
  ANTI JOIN late USING (host, pid)),
held AS (
  SELECT host, pid, stack, type,
         ARG_MAX(alive_bytes, COALESCE(ts, to_ts + INTERVAL 1 DAY))
           - COALESCE(ARG_MAX(alive_bytes, ts) FILTER (ts <= from_ts), 0) AS grown_bytes
  FROM history JOIN look USING (host, pid)
  WHERE CASE WHEN is_last THEN at_end OR ts >= on_ts ELSE ts BETWEEN on_ts AND to_ts END
  GROUP BY 1, 2, 3, 4),
place AS ({PLACE}),
line AS (
  SELECT host, pid, file, lineno, func,
         NULLIF(ARG_MAX(COALESCE(type, ''), grown_bytes), '') AS type,
         SUM(grown_bytes)::DOUBLE AS grown_bytes
  FROM held JOIN place USING (stack) GROUP BY 1, 2, 3, 4, 5),
heap AS (
  SELECT host, pid, ARG_MAX(struct_pack(file, lineno, func, type, grown_bytes), grown_bytes) AS most
  FROM line GROUP BY 1, 2),
total AS (SELECT host, pid, SUM(grown_bytes) AS heap_bytes FROM held GROUP BY 1, 2)
SELECT size.*, most, look_bytes::DOUBLE AS look_bytes,
       CASE WHEN look_bytes IS NOT NULL THEN COALESCE(heap_bytes, 0)::DOUBLE END AS heap_bytes
FROM size LEFT JOIN resident USING (host, pid) LEFT JOIN heap USING (host, pid)
LEFT JOIN total USING (host, pid)
"""
_FEWEST = 6  # parts
_WORKERS = (
    "The memory of the worker processes grows, while the program's own does not",
    "objects made before the fork are copied page by page when a worker counts references to them: "
    "keep the dataset in NumPy, Arrow or tensors instead of Python lists and dicts, or use fewer "
    "workers.",
)
_ASK = (
    "The recording looks at the heap by itself while the memory grows steadily; such a look has "
    "shown no line yet. `sonde config {pid} source.heap=on` begins to record which lines hold "
    "memory, in the running program (`sonde run --set source.heap=on` does so from the start); ask "
    "again after a few minutes, and the line is named here. Often it is a loss that is appended "
    "with its graph (use `.item()` or `.detach()`), a cache or a list that only grows, or a "
    "closure that holds batches"
)


_GROWS = "The memory of the process keeps growing"
_DROP = (
    "find who keeps what this line makes (a list, a dict, a cache, a closure; of tensors, often a "
    "loss that is kept with its graph: use `.item()` or `.detach()`), and drop it or give it a "
    "limit; `sonde memory {pid}` has the other lines"
)
_SPREAD = (
    "no single line allocates most of what stays: `sonde memory {pid}` shows from where the lines "
    "that do are called, and often one caller keeps what all of them make"
)
_OUTSIDE = (
    "a look that nobody asked for sees only NumPy and PyTorch of all C libraries: "
    "`sonde config {pid} source.heap=on` shows the lines of the others too, except those with an "
    "allocator of their own (Arrow, polars); if nothing is kept there, try MALLOC_ARENA_MAX=2 "
    "against fragmentation"
)
_LEAST_GROWN = 3e6  # bytes while the heap was recorded; of less nobody can say where it went
_HEAP_SHARE = 0.5  # of the growth: from there on it is what the heap shows that grows


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    lines: dict[tuple[str, int, bool], dict[int, list[Any]]] = {}
    for row in sorted(rows, key=lambda row: row.part):
        lines.setdefault((row.host, row.pid, row.own), {}).setdefault(row.process, []).append(row)
    for (_host, pid, own), processes in lines.items():
        long = [line for line in processes.values() if len(line) >= _FEWEST]
        growth = sum(_find_growth(line, limits) for line in long)
        look = _judge_look(long[0][0], limits) if own and long else None
        # Allocators, caches of kernels and lazy imports fill up at the start of every program.
        is_start = not (look and look.line) and _find_passed(long) < limits.long_s
        least = max(limits.least_bytes, limits.short_bytes) if is_start else limits.least_bytes
        title, todo, line = ("", "", "") if own else (*_WORKERS, "")
        evidence = {"grown_bytes": growth, "size_bytes": sum(line[-1].bytes for line in long),
                    "processes": len(long)}  # fmt: skip
        if look is not None:
            title, todo, line = look.title, look.todo, look.line
            evidence |= look.evidence
        elif own:
            todo = _ASK.format(pid=pid)
        who = f"pid {pid}" if own else f"workers of pid {pid}"
        pieces = range(min((line[0].piece for line in long), default=0),
                        max((line[-1].last_piece + 1 for line in long), default=0))  # fmt: skip
        readings = sum(row.readings for line in long for row in line)
        # A growth is one of the whole time: every piece has the same to say.
        for piece in pieces:
            yield Verdict(piece, growth >= least, evidence,
                          severity=_find_level(long, growth, limits), who=who,
                          title=title, todo=todo, line=line,
                          readings=max(1, readings // len(pieces)))  # fmt: skip


def _find_growth(line: list[Any], limits: Limits) -> float:
    """Return how much a process has grown; 0 if that is a small part of it, as logs and tables of
    results are."""
    trend = find_growth([(row.part, row.bytes) for row in line], limits.fit, _FEWEST)
    is_small = trend is None or 100 * trend.growth < limits.least_pct * line[-1].bytes
    return 0.0 if trend is None or is_small else trend.growth


def _find_passed(long: list[list[Any]]) -> float:
    """Return over how many seconds the processes were seen."""
    return max((line[-1].end_s - line[0].begin_s for line in long), default=0.0)


def _find_level(long: list[list[Any]], growth: float, limits: Limits) -> str:
    """Return the severity; of what is small, or may be the start of a program, it is a mention."""
    if growth < limits.grown_bytes or _find_passed(long) < limits.long_s:
        return "info"
    return "critical" if growth >= limits.critical_bytes else "warning"


class _Look(NamedTuple):
    """What a look at the heap has shown."""

    title: str
    todo: str
    line: str
    evidence: dict[str, float]


def _judge_look(row: Any, limits: Limits) -> _Look | None:
    """Return what grew while the heap was recorded: the line that allocated most of it, or that it
    is no memory of Python's; None if it was not recorded, or nothing grew in that time."""
    most, grown, heap = row.most, row.look_bytes, row.heap_bytes
    if heap is None or grown < _LEAST_GROWN:
        return None
    evidence = {"grown_while_heap_recorded_bytes": grown, "heap_grown_bytes": heap}
    if most is not None and 100 * most["grown_bytes"] >= limits.heap_pct * grown:
        kind = f", as {most['type']} objects" if most["type"] else ""  # buffers have no type
        place = show_place(most["file"], most["lineno"], most["func"])
        title = f"{_GROWS}: {most['func']} allocates what stays{kind}"
        evidence["grown_at_line_bytes"] = most["grown_bytes"]
        return _Look(title, _DROP.format(pid=row.pid), place, evidence)
    if heap >= grown * _HEAP_SHARE:
        return _Look(f"{_GROWS}, at many lines", _SPREAD.format(pid=row.pid), "", evidence)
    return _Look(
        f"{_GROWS}, outside of the heap that sonde sees", _OUTSIDE.format(pid=row.pid), "", evidence
    )
