"""The process has more and more open files, or threads.

Why it hurts: at the limit (`ulimit -n`, often 1,024 files; the container's limit of pids) the next
one fails, "Too many open files" or "can't start new thread", often hours into the work.

What to do: close what is opened, by `with` or in a `finally`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from sonde.advice.rules._code import PLACE, in_python, show_place
from sonde.advice.trend import find_growth
from sonde.advice.verdict import Limit, Limits, Rows, Verdict

NEEDS = ("system.process.threads", "system.process.depth", "system.process.fds")
OTHERWISE = "the recording is too short"
LIMITS = {
    "least": Limit(40, "more of them at the end of the period judged that are worth a word"),
    "grown": Limit(200, "more of them at its end that are worth a warning"),
    "least_pct": Limit(50, "of their number at the end by which it has grown, at least"),
    "fit": Limit(0.9, "how straight the growth is (R²)"),
    "parts": Limit(12, "parts of the time, with as many readings in each, that are compared"),
}


class _Kind(NamedTuple):
    """What may be left over, and what people do."""

    title: str
    todo: str


_KINDS = {
    "files": _Kind(
        "The process has more and more open files: what it opens is not closed",
        "close files, sockets, pipes and connections where they are opened, by `with` or in a "
        "`finally`, and look for a list, a cache or a cycle that keeps them; "
        "`ls -l /proc/{pid}/fd` shows which they are",
    ),
    "threads": _Kind(
        "The process has more and more threads: they are started and do not end",
        "hand the work to one pool (ThreadPoolExecutor) that is made once, shut down pools that "
        "are made anew (`with`), and end threads that wait for ever; `sonde stacks {pid}` shows "
        "where they are",
    ),
}
# The last reading may show a process that ends, and has closed much. Samples find who opens, and
# who starts threads: in these functions of C, and of the library.
_OPENS = (
    "'io.open', '_io.open', 'posix.open', 'posix.pipe', 'posix.dup', '_socket.socket._accept',"
    " '_socket.socket.connect', 'sqlite3.connect', '_sqlite3.connect', 'mmap.mmap'"
)
SQL = f"""
WITH reading AS (
  SELECT {{piece}} AS piece, ts, host, pid, fds, threads
  FROM system.process WHERE {{inside}} AND depth = 0
  QUALIFY ts < MAX(ts) OVER (PARTITION BY host, pid)),
numbered AS (
  SELECT *, NTILE({{parts}}::BIGINT) OVER (PARTITION BY host, pid ORDER BY ts) AS part
  FROM reading),
size AS (
  SELECT MIN(piece) AS piece, MAX(piece) AS last_piece, host, pid, part, COUNT(*) AS readings,
         MEDIAN(fds) AS files, MEDIAN(threads) AS threads
  FROM numbered GROUP BY host, pid, part),
place AS ({PLACE}),
starting AS (
  SELECT DISTINCT stack FROM python.frame
  WHERE {in_python("threading.py")} AND func IN ('start', 'Thread.start')),
line AS (
  SELECT host, pid, file, lineno, func,
         SUM(samples) FILTER (call IN ({_OPENS})) AS opens,
         SUM(samples) FILTER (stack IN (FROM starting)) AS starts
  FROM python.stack_sample JOIN place USING (stack) WHERE {{inside}} GROUP BY 1, 2, 3, 4, 5),
top AS (
  SELECT host, pid, ARG_MAX(struct_pack(file, lineno, func), opens) AS opener,
         ARG_MAX(struct_pack(file, lineno, func), starts) AS starter
  FROM line GROUP BY 1, 2)
SELECT size.*, opener, starter FROM size LEFT JOIN top USING (host, pid)
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    processes: dict[tuple[str, int], list[Any]] = {}
    for row in sorted(rows, key=lambda row: row.part):
        processes.setdefault((row.host, row.pid), []).append(row)
    for parts in processes.values():
        if len(parts) < limits.parts:
            continue
        files, threads = (_find_growth(parts, kind, limits) for kind in ("files", "threads"))
        # A thread has few files of its own: if both grow, the threads are the cause.
        kind, growth = ("threads", threads) if threads else ("files", files)
        yield from _judge_process(parts, kind, growth, limits)


def _find_growth(parts: list[Any], kind: str, limits: Limits) -> float:
    """Return how many more there are; 0 if they are few, or do not grow all the time."""
    points = [(row.part, getattr(row, kind)) for row in parts]
    if any(number is None for _part, number in points):
        return 0.0  # nobody may ask
    trend = find_growth(points, limits.fit, len(points))
    least = max(limits.least, limits.least_pct / 100 * points[-1][1])
    return 0.0 if trend is None or trend.growth < least else trend.growth


def _judge_process(parts: list[Any], kind: str, growth: float, limits: Limits) -> Iterator[Verdict]:
    last, readings = parts[-1], sum(row.readings for row in parts)
    place = (last.opener if kind == "files" else last.starter) or {}
    line = show_place(place.get("file"), place.get("lineno"), place.get("func"))
    evidence = {f"more_{kind}": growth, kind: getattr(last, kind)}
    pieces = range(parts[0].piece, last.last_piece + 1)
    # A growth is one of the whole time: every piece has the same to say.
    for piece in pieces:
        yield Verdict(
            piece, growth > 0, evidence,
            severity="warning" if growth >= limits.grown else "info", who=f"pid {last.pid}",
            title=_KINDS[kind].title, todo=_KINDS[kind].todo.format(pid=last.pid), line=line,
            readings=max(1, readings // len(pieces)),
        )  # fmt: skip
