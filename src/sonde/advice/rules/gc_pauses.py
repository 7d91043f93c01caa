"""Python's garbage collector stops the program.

Why it hurts: a full collection visits every live object while nothing else runs; in a
job of many ranks the others wait for the one that collects.

What to do: call `gc.collect(); gc.freeze()` after the start, so that objects that live for ever are
not visited again; then collect at chosen steps, the same on all ranks (`gc.disable()`, and
`gc.collect(1)` now and then), or raise `gc.set_threshold`. Keep large tables in numpy, not lists.
"""

from __future__ import annotations

from collections.abc import Iterator

from sonde.advice.rules._code import PLACE, show_place
from sonde.advice.verdict import LEVELS, Limit, Limits, Rows, Verdict

BEHIND = ("costly_calls",)  # what makes many objects, such as parsing, makes the collector run
NEEDS = ("python.gc_pause.dur_ns", "python.stack_sample.wall_ns")
LIMITS = {
    "share_pct": Limit(3, "of the time spent in full collections"),
    "pause_s": Limit(0.1, "length of a stop that counts, if several come in a piece"),
    "usual_pct": Limit(60, "of the time, up to which Python's own collections are only mentioned"),
    "asked_pct": Limit(50, "of the samples in stops that are in gc.collect(): it was asked for"),
}
# What is imported makes objects that stay: it is over when the program works, wherever it is done.
SQL = f"""
WITH alive AS (
  SELECT DISTINCT {{piece}} AS piece, host, pid FROM python.stack_sample WHERE {{inside}}),
importing AS (
  SELECT host, pid, t_ns // 1000000000 AS second FROM python.stack_sample
  WHERE {{inside}} AND thread = pid GROUP BY ALL
  HAVING 2 * COALESCE(SUM(wall_ns) FILTER (stack IN (
    SELECT stack FROM python.frame WHERE file LIKE '<frozen importlib%')), 0) > SUM(wall_ns)),
pause AS (
  SELECT {{piece}} AS piece, host, pid, t_ns, dur_ns, generation, collected
  FROM (SELECT *, t_ns // 1000000000 AS second FROM python.gc_pause WHERE {{inside}})
  ANTI JOIN importing USING (host, pid, second)),
total AS (
  SELECT piece, host, pid, COUNT(*) AS pauses, SUM(dur_ns) / 1e9 AS all_s,
         COALESCE(SUM(dur_ns) FILTER (generation = 2), 0) / 1e9 AS full_s,
         COUNT(*) FILTER (dur_ns >= {{pause_s}} * 1e9) AS long,
         MAX(dur_ns) AS longest_ns, SUM(collected)::DOUBLE AS collected
  FROM pause GROUP BY 1, 2, 3),
place AS ({PLACE}),
-- By the second, so that a day is not every sample against every pause.
during AS (
  SELECT *, UNNEST(range(t_ns // 1000000000, (t_ns + dur_ns) // 1000000000 + 1)) AS second
  FROM pause),
line AS (
  SELECT p.piece, p.host, p.pid, file, lineno, func, SUM(s.wall_ns) AS wall_ns,
         COALESCE(SUM(s.wall_ns) FILTER (s.call = 'gc.collect'), 0) AS asked_ns
  FROM during AS p JOIN python.stack_sample AS s ON s.host = p.host AND s.pid = p.pid AND s.gil
    AND s.t_ns // 1000000000 = p.second AND s.t_ns BETWEEN p.t_ns AND p.t_ns + p.dur_ns
  JOIN place USING (stack) GROUP BY ALL),
top AS (
  SELECT piece, host, pid, ARG_MAX(struct_pack(file, lineno, func), wall_ns) AS place,
         100 * SUM(asked_ns) / SUM(wall_ns) AS asked_pct
  FROM line GROUP BY 1, 2, 3)
SELECT piece, pid, COALESCE(pauses, 0) AS pauses, COALESCE(all_s, 0) AS all_s,
       COALESCE(full_s, 0) AS full_s, COALESCE(long, 0) AS long, longest_ns, collected,
       {{piece_s}}::DOUBLE AS piece_s, place.file, place.lineno, place.func,
       COALESCE(asked_pct, 0)::DOUBLE AS asked_pct
FROM alive LEFT JOIN total USING (piece, host, pid) LEFT JOIN top USING (piece, host, pid)
"""
_ASKED = (
    "The program itself calls the garbage collector, again and again (gc.collect)",
    "leave the call out: Python collects when there is something to collect, and most objects are "
    "freed without it, as soon as nobody refers to them; if memory must be given back at some "
    "moment, call it there alone, once a minute or every thousandth time",
)


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        full_pct, all_pct = (100 * spent / row.piece_s for spent in (row.full_s, row.all_s))
        evidence = {
            "full_collections_pct": full_pct, "collections": row.pauses,
            "max_pause_ns": row.longest_ns, "freed_objects": row.collected,
        }  # fmt: skip
        is_asked = row.asked_pct >= limits.asked_pct
        title, todo = _ASKED if is_asked else ("", "")
        # Whoever builds a million objects has all of them visited some five times; a healthy one
        # with an ORM lost more than 40 % so. It can be mended, but is no fault of the program.
        is_much = is_asked or full_pct >= limits.usual_pct
        yield Verdict(
            row.piece, full_pct >= limits.share_pct or row.long >= 2, evidence, lost_pct=all_pct,
            readings=row.pauses, who=f"pid {row.pid}",
            title=title, todo=todo, line=show_place(row.file, row.lineno, row.func),
            most=LEVELS[-1] if is_much else LEVELS[0],
        )  # fmt: skip
