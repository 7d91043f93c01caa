"""The line of code that ran, or waited, in the pieces of a finding."""

from __future__ import annotations

from collections.abc import Sequence

from sonde.advice.period import Period
from sonde.advice.rules._code import OWN
from sonde.store.recording import Recording

_MOST = 30  # pieces that are read for one finding: a day has thousands of them
# The innermost frame of the user's own code: whatever libraries do, that line asked for it. What
# happens while modules are imported is over when the program works, and nobody's line.
_SQL = """
WITH seen AS (
  SELECT {piece} AS piece, idle, stack, SUM(wall_ns) AS wall_ns FROM python.stack_sample
  WHERE {inside} AND thread = pid AND {piece} IN ({pieces}) AND {who} GROUP BY ALL),
whole AS (SELECT piece, idle, SUM(wall_ns) AS all_ns FROM seen GROUP BY ALL),
own AS (
  SELECT stack, MIN(depth) FILTER ({own}) AS depth FROM python.frame
  WHERE stack IN (SELECT stack FROM seen) GROUP BY stack
  HAVING COUNT(*) FILTER (file LIKE '<frozen importlib%') = 0)
SELECT s.piece, s.idle, f.file, f.lineno, f.func, SUM(s.wall_ns) AS wall_ns,
       ANY_VALUE(whole.all_ns) AS all_ns
FROM seen AS s JOIN whole USING (piece, idle) JOIN own USING (stack)
JOIN python.frame AS f ON f.stack = own.stack AND f.depth = own.depth GROUP BY ALL
"""


def find_lines(
    recording: Recording, period: Period, wanted: Sequence[tuple[str, Sequence[int]]]
) -> list[str]:
    """Return `file:line in function` for each (busy, waiting, any or nothing; pieces): where the
    main thread was most often while it was so. Empty where no sample knows."""
    at = period.stretches
    chosen = [
        _thin([one for one in pieces if at is None or at.has(one)]) if kind else []
        for kind, pieces in wanted
    ]
    every = sorted({piece for pieces in chosen for piece in pieces})
    if not every:
        return ["" for _ in wanted]
    # Whoever starts the ranks of a job waits for them all the time, and is none of them.
    who = "rank IS NOT NULL" if any(one.rank is not None for one in recording.sessions) else "TRUE"
    # Nor is a worker that loads data: where that is the cause, the rule knows its line.
    who += " AND (host, pid) NOT IN (SELECT (host, process) FROM python.torch_worker)"
    sql = _SQL.format(**period.words, own=OWN, pieces=", ".join(map(str, every)), who=who)
    rows = recording.query(sql).to_pylist()
    found = []
    for (kind, _), pieces in zip(wanted, chosen, strict=True):
        mine = set(pieces)
        states = {"busy": (False,), "waiting": (True,)}.get(kind, (False, True))
        found.append(_pick([row for row in rows if row["piece"] in mine and row["idle"] in states]))
    return found


def _thin(pieces: Sequence[int]) -> list[int]:
    """Return at most _MOST of the pieces, spread evenly."""
    step = max(1, -(-len(pieces) // _MOST))
    return list(pieces[::step])


def _pick(rows: Sequence[dict[str, object]]) -> str:
    spent: dict[tuple[object, object, object], int] = {}
    whole: dict[object, int] = {}
    for row in rows:
        place = (row["file"], row["lineno"], row["func"])
        spent[place] = spent.get(place, 0) + int(row["wall_ns"])  # type: ignore[call-overload]
        whole[row["piece"], row["idle"]] = int(row["all_ns"])  # type: ignore[call-overload]
    if not spent:
        return ""
    file, lineno, func = best = max(spent, key=spent.__getitem__)
    share = 100 * spent[best] / max(1, sum(whole.values()))
    return f"{file}:{lineno} in {func} ({share:.0f} % of it)"
