"""The memory of the process keeps growing.

Why it hurts: sooner or later the machine, or the container's limit, is full, and the job is
killed, often hours into its work.

What to do: look for what is kept: losses appended with their graph (use `.item()` or `.detach()`),
caches and lists that only grow, a closure that holds batches. `sonde config PID source.heap=on`
begins to record which lines hold memory, in the running program; ask again after a few minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

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
    "heap_pct": Limit(30, "of the growth at one line, if the heap is recorded, to name the line"),
}
# The last reading may show a process that ends, and has given back much of its memory. Workers
# share pages with their parent: only PSS shows what they add. It is rarely read. A place of the
# heap that did not change has no new row: its last one before a moment says what it held, and
# python.heap what it holds at the end.
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
history AS (
  SELECT host, pid, stack, type, t_ns, alive_bytes, {{inside}} AS is_inside
  FROM python.heap_history WHERE {{to_end}} UNION ALL
  SELECT host, pid, stack, type, {2**62}, alive_bytes, TRUE FROM python.heap),
held AS (
  SELECT host, pid, stack, type, COALESCE(ARG_MAX(alive_bytes, t_ns) FILTER (is_inside), 0)
           - COALESCE(ARG_MAX(alive_bytes, t_ns) FILTER (NOT is_inside), 0) AS grown_bytes
  FROM history GROUP BY 1, 2, 3, 4 HAVING BOOL_OR(is_inside)),
place AS ({PLACE}),
line AS (
  SELECT host, pid, file, lineno, func,
         NULLIF(ARG_MAX(COALESCE(type, ''), grown_bytes), '') AS type,
         SUM(grown_bytes)::DOUBLE AS grown_bytes
  FROM held JOIN place USING (stack) GROUP BY 1, 2, 3, 4, 5),
heap AS (
  SELECT host, pid, ARG_MAX(struct_pack(file, lineno, func, type, grown_bytes), grown_bytes) AS most
  FROM line GROUP BY 1, 2),
whole AS (SELECT host, pid, SUM(grown_bytes) AS heap_bytes FROM held GROUP BY 1, 2)
SELECT size.*, most, heap_bytes::DOUBLE AS heap_bytes
FROM size LEFT JOIN heap USING (host, pid) LEFT JOIN whole USING (host, pid)
"""
_FEWEST = 6  # parts
_WORKERS = (
    "The memory of the worker processes grows, while the program's own does not",
    "objects made before the fork are copied page by page when a worker counts references to them: "
    "keep the dataset in NumPy, Arrow or tensors instead of Python lists and dicts, or use fewer "
    "workers.",
)
_ASK = (
    "`sonde config {pid} source.heap=on` begins to record which lines hold memory, in the running "
    "program (`sonde run --set source.heap=on` does so from the start); ask again after a few "
    "minutes, and the line is named here. Often it is a loss that "
    "is appended with its graph (use `.item()` or `.detach()`), a cache or a list that only grows, "
    "or a closure that holds batches"
)


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    lines: dict[tuple[str, int, bool], dict[int, list[Any]]] = {}
    for row in sorted(rows, key=lambda row: row.part):
        lines.setdefault((row.host, row.pid, row.own), {}).setdefault(row.process, []).append(row)
    for (_host, pid, own), processes in lines.items():
        long = [line for line in processes.values() if len(line) >= _FEWEST]
        growth = sum(_find_growth(line, limits) for line in long)
        has_heap = bool(long) and long[0][0].heap_bytes is not None
        # Allocators, caches of kernels and lazy imports fill up at the start of every program.
        is_start = not has_heap and _find_passed(long) < limits.long_s
        least = max(limits.least_bytes, limits.short_bytes) if is_start else limits.least_bytes
        title, todo, line = ("", "", "") if own else (*_WORKERS, "")
        evidence = {"grown_bytes": growth, "size_bytes": sum(line[-1].bytes for line in long),
                    "processes": len(long)}  # fmt: skip
        if own and has_heap:
            title, todo, line = _name_line(long[0][0], growth, limits)
            evidence["python_heap_grown_bytes"] = long[0][0].heap_bytes
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


def _name_line(row: Any, growth: float, limits: Limits) -> tuple[str, str, str]:
    """Return title, next step and line where the heap was recorded: the line that holds most of
    what was added, or that none of them was seen to allocate it."""
    most = row.most
    if most is not None and 100 * most["grown_bytes"] >= limits.heap_pct * growth:
        kind = f", as {most['type']} objects" if most["type"] else ""  # buffers have no type
        title = (
            f"The memory of the process keeps growing: {most['func']} allocates what stays{kind}"
        )
        todo = (
            "find who keeps what this line makes (a list, a dict, a cache, a closure; of tensors, "
            "often a loss that is kept with its graph: use `.item()` or `.detach()`), and drop it "
            f"or give it a limit; `sonde memory {row.pid} --since +1min` has the other lines"
        )
        return title, todo, show_place(most["file"], most["lineno"], most["func"])
    title = "The memory of the process keeps growing, outside Python's own heap"
    todo = (
        "what C libraries other than NumPy and PyTorch allocate, and what the allocator cannot "
        "give back, does not count as Python's heap: look for what is kept of such a library, and "
        "if nothing is, try MALLOC_ARENA_MAX=2 against fragmentation"
    )
    return title, todo, ""
