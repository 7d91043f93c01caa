"""Forward passes take longer and longer, and then begin anew.

Why it hurts: a model that makes a text token by token, and is given all of it each time, computes
what it knew already: twice the text takes four times as long.

What to do: keep the keys and values (the state) of what the model has seen, and give it only what
is new: `use_cache=True` and `past_key_values` in transformers, a cache of one's own in attention,
the hidden state of a recurrent model. Where batches are sorted by length, it is no trouble.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from statistics import median
from typing import Any

from sonde.advice.rules._caller_lines import make_caller_lines
from sonde.advice.rules._code import show_place
from sonde.advice.trend import find_order
from sonde.advice.verdict import Limit, Limits, Rows, Verdict

MOST = "warning"
AT_ONCE = True
NEEDS = ("python.torch_step.cpu_ns", "python.stack_sample.wall_ns")
OTHERWISE = "the model is hardly called without training"
ONLY_IF = (
    "python.torch_step",
    "COUNT(*) FILTER (NOT training AND ended_by = 'root') >= 2 * {calls}",
)
LIMITS = {
    "calls": Limit(12, "of the model in a row that take longer and longer, at least"),
    "times": Limit(2, "times as long at their end as at their beginning"),
    "order": Limit(0.7, "how far they come in rising order, where 1 is wholly"),
    "part_pct": Limit(60, "of the time of all calls in such rows of them"),
    "again": Limit(3, "times that it begins anew, from which it is worth a warning"),
}
_NEAR = 2  # calls on either side, of which the shortest counts: others may have the processor
_FALLS = 0.6  # times the longest one so far: it has begun anew
# What a call uses of a processor does not depend on who else does; what a GPU works takes time.
SQL = f"""
WITH call AS (
  SELECT {{piece}} AS piece, host, pid, rank, step, CASE WHEN (host, pid) IN (
    SELECT (host, pid) FROM python.torch_memory WHERE device <> 'cpu')
    THEN dur_ns ELSE cpu_ns END AS used_ns
  FROM python.torch_step
  WHERE {{inside}} AND NOT training AND ended_by = 'root' AND cpu_ns > 0),
about AS (SELECT host, pid FROM call GROUP BY 1, 2 HAVING COUNT(*) >= 2 * {{calls}}),
{make_caller_lines()}
SELECT piece, host, pid, rank, used_ns,
       place.file AS file, place.lineno AS lineno, place.func AS func
FROM call JOIN about USING (host, pid) LEFT JOIN caller_line USING (host, pid)
ORDER BY host, pid, step
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    ordered = sorted(rows, key=lambda row: (row.host, row.pid))  # each in the order of its steps
    for _, found in groupby(ordered, key=lambda row: (row.host, row.pid)):
        yield from _judge_process(list(found), limits)


def _judge_process(rows: Sequence[Any], limits: Limits) -> Iterator[Verdict]:
    values = [float(row.used_ns) for row in rows]
    grown = [one for one in _cut(values) if _grows(one, limits)]
    least_ns = sum(len(one) * _find_ends(one)[0] for one in grown)
    grown_ns, all_ns = sum(map(sum, grown)), sum(values)
    fired = bool(grown) and 100 * grown_ns >= limits.part_pct * all_ns
    evidence: dict[str, float | str | None] = {}
    if fired:
        ends = [_find_ends(one) for one in grown]
        evidence = {
            "calls_in_a_row": median(map(len, grown)), "first_ns": median(e[0] for e in ends),
            "last_ns": median(e[1] for e in ends), "times_begun": len(grown),
        }  # fmt: skip
    one = rows[0]
    for piece in sorted({row.piece for row in rows}):
        yield Verdict(
            piece, fired, evidence,
            lost_pct=100 * (grown_ns - least_ns) / all_ns if fired else None,
            most="warning" if len(grown) >= limits.again else "info",
            readings=sum(row.piece == piece for row in rows),
            who="" if one.rank is None else f"rank {one.rank}",
            line=show_place(one.file, one.lineno, one.func),
        )  # fmt: skip


def _cut(values: Sequence[float]) -> Iterator[list[float]]:
    """Yield the calls between two moments at which they have become short again."""
    held: list[float] = []
    longest = 0.0
    for at, value in enumerate(values):
        usual = min(values[max(0, at - _NEAR) : at + 1])
        ahead = min(values[at : at + _NEAR + 1])
        if held and max(value, ahead) < _FALLS * longest:
            yield held
            held, longest = [], 0.0
        held.append(value)
        longest = max(longest, usual)
    if held:
        yield held


def _find_ends(values: Sequence[float]) -> tuple[float, float]:
    """Return how long the calls usually take in the first and in the last quarter."""
    quarter = max(1, len(values) // 4)
    return median(values[:quarter]), median(values[-quarter:])


def _grows(values: Sequence[float], limits: Limits) -> bool:
    first, last = _find_ends(values)
    is_long = len(values) >= limits.calls and last >= limits.times * first
    return is_long and find_order(values) >= limits.order
