"""Ranks do not call the same collectives.

Why it hurts: a collective waits until every rank of its group has called it. One that calls
another, or none, stops the job for ever, or mixes up its numbers.

What to do: look for a branch around the collective that not all ranks take: an exception that is
caught, a last batch that one rank does not have, `if rank == 0`. `sonde stacks` of all ranks shows
where each one stands.
"""

from __future__ import annotations

from collections.abc import Iterator

from sonde.advice.verdict import Limit, Limits, Rows, Verdict

DANGER = True
NEEDS = ("python.collective.seq", "python.stack_sample.wall_ns")
LIMITS = {
    "late_s": Limit(5, "for which a rank goes on without the collective in which others wait")
}
SQL = """
WITH call AS (
  SELECT {piece} AS piece, host, pid, rank, group_name, group_ranks, seq, op, state, t_ns, ts
  FROM python.collective WHERE {inside} AND seq IS NOT NULL AND rank IS NOT NULL),
mixed AS (
  SELECT MIN(piece) AS piece, group_name, seq, COUNT(DISTINCT op) AS ops,
         STRING_AGG(DISTINCT op, ', ' ORDER BY op) AS op, NULL::BIGINT AS rank
  FROM call GROUP BY group_name, group_ranks, seq HAVING COUNT(DISTINCT op) > 1),
reached AS (
  SELECT group_name, group_ranks, rank, host, pid, MAX(seq) AS seq FROM call GROUP BY ALL),
alive AS (SELECT host, pid, MAX(ts) AS ts FROM python.stack_sample GROUP BY 1, 2),
behind AS (
  SELECT c.piece, c.group_name, c.seq, 1 AS ops, c.op, r.rank
  FROM call AS c JOIN reached AS r ON r.group_name = c.group_name
    AND r.group_ranks IS NOT DISTINCT FROM c.group_ranks AND r.seq < c.seq AND r.rank <> c.rank
  JOIN alive AS a ON a.host = r.host AND a.pid = r.pid
  WHERE c.state IN ('running', 'timeout') AND epoch_us(a.ts) - epoch_us(c.ts) >= {late_s} * 1e6)
SELECT piece, ANY_VALUE(p.group_name) AS group_name, MIN(p.seq) AS seq, MAX(p.ops) AS ops,
       ARG_MIN(p.op, p.seq) AS op, ARG_MIN(p.rank, p.seq) AS rank, ANY_VALUE(calls) AS calls
FROM (SELECT piece, COUNT(*) AS calls FROM call GROUP BY piece)
LEFT JOIN (SELECT * FROM mixed UNION ALL SELECT * FROM behind) AS p USING (piece) GROUP BY piece
"""


def judge(rows: Rows, _limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        if row.seq is None:
            yield Verdict(row.piece, False)
            continue
        title = f"Ranks call different collectives: {row.op}"
        if row.ops == 1:
            title = f"Rank {row.rank} has not called {row.op}, in which others wait for it"
        # One is enough to be sure, however few calls there were.
        evidence = {"group": row.group_name, "seq": row.seq, "op": row.op}
        yield Verdict(
            row.piece, True, evidence, severity="critical", readings=20, title=title,
            who="" if row.rank is None else f"rank {row.rank}",
        )  # fmt: skip
