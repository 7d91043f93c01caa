"""The line of code that ran, or waited, in the windows of a finding."""

from __future__ import annotations

from collections.abc import Sequence

from sonde.advice.period import Stretch
from sonde.store.recording import Recording

_MOST = 30  # windows looked at for one finding: a day has thousands of them
# The innermost frame of the user's own: what libraries do, a line of his asked for.
_SQL = """
WITH seen AS (
  SELECT {window} AS w, idle, stack, SUM(wall_ns) AS wall_ns FROM python.stack_sample
  WHERE {inside} AND thread = pid AND {window} IN ({windows}) GROUP BY ALL),
whole AS (SELECT w, idle, SUM(wall_ns) AS all_ns FROM seen GROUP BY ALL),
own AS (
  SELECT stack, MIN(depth) AS depth FROM python.frame
  WHERE stack IN (SELECT stack FROM seen) AND file NOT LIKE '%site-packages%'
    AND file NOT LIKE '%dist-packages%' AND file NOT LIKE '%/lib/python3%' AND file NOT LIKE '<%'
  GROUP BY stack)
SELECT s.w, s.idle, f.file, f.lineno, f.func, SUM(s.wall_ns) AS wall_ns,
       ANY_VALUE(w.all_ns) AS all_ns
FROM seen AS s JOIN whole AS w USING (w, idle) JOIN own USING (stack)
JOIN python.frame AS f ON f.stack = own.stack AND f.depth = own.depth GROUP BY ALL
"""


def find_lines(
    recording: Recording, stretch: Stretch, wanted: Sequence[tuple[str, Sequence[int]]]
) -> list[str]:
    """For each (busy, waiting, any or nothing; windows): `file:line in function`, most often the
    main thread's line when it was so; empty where no sample knows."""
    chosen = [_thin(windows) if kind else [] for kind, windows in wanted]
    every = sorted({window for windows in chosen for window in windows})
    if not every:
        return ["" for _ in wanted]
    sql = _SQL.format(**stretch.words, windows=", ".join(map(str, every)))
    rows = recording.query(sql).to_pylist()
    found = []
    for (kind, _), windows in zip(wanted, chosen, strict=True):
        mine = set(windows)
        states = {"busy": (False,), "waiting": (True,)}.get(kind, (False, True))
        found.append(_pick([row for row in rows if row["w"] in mine and row["idle"] in states]))
    return found


def _thin(windows: Sequence[int]) -> list[int]:
    """So many of them, all over the time."""
    step = max(1, -(-len(windows) // _MOST))
    return list(windows[::step])


def _pick(rows: Sequence[dict[str, object]]) -> str:
    spent: dict[tuple[object, object, object], int] = {}
    whole: dict[object, int] = {}
    for row in rows:
        place = (row["file"], row["lineno"], row["func"])
        spent[place] = spent.get(place, 0) + int(row["wall_ns"])  # type: ignore[call-overload]
        whole[row["w"], row["idle"]] = int(row["all_ns"])  # type: ignore[call-overload]
    if not spent:
        return ""
    file, lineno, func = best = max(spent, key=spent.__getitem__)
    share = 100 * spent[best] / max(1, sum(whole.values()))
    return f"{file}:{lineno} in {func} ({share:.0f} % of it)"
