"""Of calls that are known to be costly: how much of the time they take, and which is the cause."""

from __future__ import annotations

from typing import Any

from sonde.advice.costly_calls import CALLS as LIBRARIES
from sonde.advice.costly_calls import ONLY, WAITING, WORKING, CostlyCall
from sonde.advice.costly_data import WAYS
from sonde.advice.costly_libraries import MORE
from sonde.advice.verdict import Limits

CALLS = (*WAYS, *LIBRARIES, *MORE)
BY_NAME = {one.name: one for one in CALLS}


def is_same(row: Any, other: Any, limits: Limits) -> bool:
    """Return whether two kinds of call tell of the same time, or of the same line."""
    if row.name == other.name or row.thread != other.thread:
        return True  # one line of each kind is enough, and one thread decides how long it takes
    if BY_NAME[other.name].is_through and not BY_NAME[row.name].is_through:
        return False  # what a log or the like calls is a cause of its own
    less_s = min(row.time_pct, other.time_pct) / 100 * row.alive_s
    is_at = (row.file, row.lineno) == (other.file, other.lineno)
    return is_at or _share_time(row, other) > limits.same_pct / 100 * less_s


def find_cause(worst: Any, hits: list[Any], limits: Limits) -> Any:
    """Return what explains nearly all of the worst and lies inside of it: a log that calls fsync
    is slow because of that, whoever writes to it. At the same line, it is what is more special."""
    causes = [
        row for row in hits
        if (row.thread, is_severe(row)) == (worst.thread, is_severe(worst))
        and (_is_inside(row, worst, limits) or _is_special(row, worst, limits))
    ]  # fmt: skip
    return min(causes, key=_order, default=worst)


def _is_inside(row: Any, worst: Any, limits: Limits) -> bool:
    return bool(
        row.depth < worst.depth and find_share(row) >= limits.inner_pct / 100 * find_share(worst)
    )


def _is_special(row: Any, worst: Any, limits: Limits) -> bool:
    """Return whether much of the worst's own time is of this kind, too, which says more."""
    if BY_NAME[row.name].share_pct >= BY_NAME[worst.name].share_pct:
        return False
    least_pct = limits.special_pct / 100 * find_share(worst)
    return find_share(row) >= least_pct and _share_time(row, worst) / row.alive_s * 100 >= least_pct


def _share_time(row: Any, other: Any) -> float:
    """Return for how many seconds a thread is in calls of both kinds."""
    shared = dict(pair.split() for pair in row.shared.split(";") if pair)
    both_pct = row.time_pct + other.time_pct - 100
    return float(max(int(shared.get(other.name, 0)) / 1e9, both_pct / 100 * row.alive_s))


def _order(row: Any) -> tuple[int, float]:
    return row.depth, BY_NAME[row.name].share_pct


def find_share(row: Any) -> float:
    asleep = BY_NAME[row.name].asleep
    if asleep:
        return float(row.asleep_pct if asleep == ONLY else row.time_pct - row.asleep_pct)
    state = BY_NAME[row.name].state
    if state == WORKING:  # a thread that waits for a processor, after it has slept, burns none
        working_pct = min(row.time_pct - row.waiting_pct - row.queue_pct, row.cpu_pct)
        return float(100 * working_pct / max(1.0, row.given_pct))
    return float(row.waiting_pct if state == WAITING else row.time_pct)


def is_severe(row: Any) -> bool:
    kind: CostlyCall = BY_NAME[row.name]
    if kind.is_per_request and row.is_request:
        return False
    ends = not kind.sure_calls or (row.call or "").endswith(kind.sure_calls)
    return kind.is_avoidable or (0 < kind.sure_pct <= find_share(row) and ends)
