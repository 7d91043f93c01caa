"""What a rule of advice/ has and gives: limits, one query, and a verdict for each window.

A rule is a file `advice/NAME.py`. Its docstring's first line is the title of the finding; a
paragraph that begins with `Why it hurts:` and one with `What to do:` follow. It has

    NEEDS = ("system.gpu.util_pct",)         tables and columns without which it abstains
    LIMITS = {"util_pct": Limit(70, "…")}    thresholds, as `{util_pct}` in SQL too
    SQL = "SELECT {window} AS w, … WHERE {inside} …"
    def judge(rows, limits): yield Verdict(row.w, row.util < limits.util_pct, {…})

`rows` are the query's rows, in order of column `w` (`window` is a word of SQL), as named tuples;
`limits.NAME` is a number. A window without a verdict is one without data: it has no vote. NULL is
not 0: leave such a row out. In SQL, `{window}` is the number of a row's window, `{inside}` is true
for rows of the time that is judged (both need a column `ts`), `{window_s}` is the length of a
window, and `{job_gpu}` is true for rows (`host`, `gpu`) of GPUs that the job uses.

And, where wanted: `LINE = "busy"`, `"waiting"` or `"any"` (name the line of code that most often
was so in the windows that fired), `DANGER = True` (seen once is enough to tell), and
`UNLESS = ("input_bound",)` (rules that say more: a symptom is not told beside its cause), and
`OTHERWISE = "the job uses no GPU"` (why it abstains, if all that it needs is there)."""

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
    """The thresholds in force, by name or as attributes."""

    def __getattr__(self, name: str) -> float:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"there is no limit {name}") from None


class Verdict(NamedTuple):
    """What a rule says of one window (and of one GPU or rank in it, if `who` is given).

    The name of an evidence number ends in its unit (`_pct`, `_bytes`, `_s`, `_w`, `_c`, `_mhz`).
    Over windows the median is shown; of names that begin with `max_`, `min_` or `total_`, that."""

    window: int
    fired: bool
    evidence: Evidence = MappingProxyType({})
    lost_pct: float | None = None  # time of the window that could be won; makes the severity
    severity: str | None = None  # one of LEVELS, where no share of time can be told
    looks: int = 2  # steps, or rows of a sensor, that it rests on: 2 to warn, 20 to be critical
    who: str = ""  # rank 1, GPU 3@host; the host is left out where there is only one
    title: str = ""  # instead of the docstring's first line, where the cause is known
    todo: str = ""  # instead of the docstring's `What to do`
    line: str = ""  # the line of code, where the rule itself knows it: train.py:33 in load


def group(rows: Rows) -> Iterator[tuple[int, list[Any]]]:
    """The rows of each window; they come in order of windows."""
    found: list[Any] = []
    for row in rows:
        if found and found[0].w != row.w:
            yield found[0].w, found
            found = []
        found.append(row)
    if found:
        yield found[0].w, found


def summarize(name: str, values: list[Number]) -> Number:
    """One number for many windows: see Verdict."""
    first = name.partition("_")[0]
    pick = {"max": max, "min": min, "total": sum}.get(first, median)
    return pick(values)  # type: ignore[no-any-return, operator]
