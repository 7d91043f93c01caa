"""The contract of a rule: its limits, one query, and a verdict for each piece of the period.

A rule is a file `advice/rules/NAME.py`. The first line of its docstring is the title of a finding;
a paragraph that begins with `Why it hurts:` and one with `What to do:` follow. It has

    NEEDS = ("system.gpu.util_pct",)         tables and columns without which it abstains
    LIMITS = {"util_pct": Limit(70, "…")}    thresholds, as `{util_pct}` in SQL too
    SQL = "SELECT {piece} AS piece, … WHERE {inside} …"
    def judge(rows, limits): yield Verdict(row.piece, row.util < limits.util_pct, {…})

`rows` are the query's rows as named tuples, ordered by the column `piece`; `limits.NAME` is a
number. A piece without a verdict is one without data: it has no vote. NULL is not 0: leave such a
row out. In SQL, `{piece}` is the number of a row's piece, `{inside}` is true for rows of the period
that is judged (both need a column `ts`), `{piece_s}` is the length of a piece in seconds,
`{last_piece}` the number of the last one, `{to_end}` is true for rows up to the very end, and
`{job_gpu}` is true for rows (`host`, `gpu`) of GPUs that the job uses.

With `ON_GPU = True` it abstains where torch has no memory on a GPU, without asking more.
It may also have `LINE = "busy"`, `"waiting"` or `"any"` (name the line of code that was so most
often in the pieces that fired), `DANGER = True` (seeing it once is enough to report it),
`FIRST = True` (it comes before all others, however severe they are: nothing moves),
`LAST = True` (it tells of the surroundings: after all others that are as severe),
`MOST = "warning"` (the cause is inferred and not measured, so it is never critical),
`UNLESS = ("input_bound",)` (rules that say more: a symptom is not reported beside its cause),
`BESIDE = ("input_bound",)` (rules that name what makes it fire: while one of them warns, it is only
mentioned),
`BEHIND = ("costly_calls",)` (rules whose findings at the same line come first: its causes),
`CROWD = "info"` (no more severe than this while other programs have the processors),
`APART = True` (each title is a finding of its own: it names several causes),
`COMPARES = True` (it looks at all processes of a job, however many),
`IN_FILES = ("/multiprocessing/pool.py",)` (ends of paths: it is not asked if no stack goes through
one of these files, and `OTHERWISE` says why),
`ONLY_IF = ("python.torch_step", "MAX(calls) >= {calls}")` (a table, and what is true of all of its
rows together wherever the rule fires: one query asks this for all rules of a table),
`AT_ONCE = True` (it cannot do with gaps: of a long period it looks at the last hour only), and
`OTHERWISE = "the job uses no GPU"` (why it abstains although everything it needs is there)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from statistics import median
from types import MappingProxyType
from typing import Any, NamedTuple

LEVELS = ("info", "warning", "critical")
Number = float | int
Evidence = Mapping[str, Number | str | None]
Rows = Iterable[Any]


class Limit(NamedTuple):
    """A threshold: its default, and what it means."""

    default: float
    help: str


class Limits(dict[str, float]):
    """The thresholds in force, as items or as attributes."""

    def __getattr__(self, name: str) -> float:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"there is no limit {name}") from None


class Verdict(NamedTuple):
    """What a rule says about one piece (and about one GPU or rank in it, if `who` is given).

    The name of an evidence number ends in its unit (`_pct`, `_bytes`, `_ns`, `_w`, `_c`, `_mhz`).
    The median over pieces is shown, or what a prefix `max_`, `min_` or `total_` says."""

    piece: int
    fired: bool
    evidence: Evidence = MappingProxyType({})
    lost_pct: float | None = None  # of the piece's time that could be gained; decides the severity
    severity: str | None = None  # one of LEVELS, where no share of time can be given
    readings: int = 2  # steps, or rows of a sensor, behind it: 2 to warn, 20 to be critical
    who: str = ""  # rank 1, GPU 3@host; the host is left out where there is only one
    title: str = ""  # instead of the docstring's first line, where the cause is known
    todo: str = ""  # instead of the docstring's `What to do`
    why: str = ""  # instead of the docstring's `Why it hurts`
    line: str = ""  # the line of code, where the rule itself knows it: train.py:33 in load
    most: str = LEVELS[-1]  # the highest severity that what was measured in this piece can prove
    crowd: str = LEVELS[-1]  # as CROWD, for this verdict: how long others take is their doing then
    is_own: bool = True  # whether the job's own code is the cause: if not, no line of it is named


def group(rows: Rows) -> Iterator[tuple[int, list[Any]]]:
    """Yield each piece with its rows; the rows must be ordered by piece."""
    found: list[Any] = []
    for row in rows:
        if found and found[0].piece != row.piece:
            yield found[0].piece, found
            found = []
        found.append(row)
    if found:
        yield found[0].piece, found


def summarize(name: str, values: list[Number]) -> Number:
    """Return one number for many pieces: see Verdict."""
    first = name.partition("_")[0]
    pick = {"max": max, "min": min, "total": sum}.get(first, median)
    return pick(values)  # type: ignore[no-any-return, operator]
