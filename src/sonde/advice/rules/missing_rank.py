"""A rank of the job has no recording.

Why it hurts: what is not recorded is not judged, and a rank that never started, or whose host is
gone, may be what all others wait for.

What to do: see whether the process runs on its host (`ps`), and whether it was started as the
others were: with the same environment, and with sonde in its Python. `sonde stacks JOB@CLUSTER`
asks the hosts themselves.
"""

from __future__ import annotations

from collections.abc import Iterator

from sonde.advice.verdict import Limits, Rows, Verdict
from sonde.words import show_ranges

COMPARES = DANGER = True
NEEDS = ("sonde.session.world_size",)
LIMITS: dict[str, object] = {}
# Of a job that was asked for as a whole: one rank alone misses all others.
SQL = """
SELECT {last_piece} AS piece, job, MAX(world_size) AS size,
       LIST(DISTINCT rank ORDER BY rank) AS ranks
FROM sonde.session WHERE rank IS NOT NULL AND world_size > 1
GROUP BY job HAVING COUNT(DISTINCT rank) > 1
"""


def judge(rows: Rows, _limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        missing = sorted(set(range(row.size)) - set(row.ranks))
        shown = show_ranges(missing)
        word = "Rank" if len(missing) == 1 else "Ranks"
        yield Verdict(
            row.piece, bool(missing), {"ranks": row.size, "recorded": len(row.ranks)},
            severity="warning", title=f"{word} {shown} of the job: no recording",
        )  # fmt: skip
