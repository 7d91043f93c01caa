"""Python's own statistics files: what pstats, snakeviz, gprof2dot and flameprof read.

A file is one marshalled dict. Ours has a second one behind it, which those readers never look at:
of which process the numbers are, from when to when, and whether they are a difference."""

from __future__ import annotations

import marshal
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from sonde.errors import Error

Function = tuple[str, int, str]  # file, first line, name
Numbers = tuple[int, int, float, float]
# The first two are calls that are not recursive and all calls; in a caller's numbers all calls
# come first. Then own and total seconds.
Stats = dict[Function, tuple[int, int, float, float, dict[Function, Numbers]]]
DELTA, TOTAL = "delta", "total"
NOTHING: Function = ("~", 0, "<nothing sampled>")


class _Tally:
    """How much was seen of a function, or of a function under one caller."""

    __slots__ = ("own_ns", "samples", "total_ns")

    def __init__(self) -> None:
        self.samples = self.own_ns = self.total_ns = 0

    def add(self, samples: int, own_ns: int, total_ns: int) -> None:
        self.samples += samples
        self.own_ns += own_ns
        self.total_ns += total_ns

    def show(self) -> Numbers:
        """Both counts are the samples."""
        return self.samples, self.samples, self.own_ns / 1e9, self.total_ns / 1e9


def summarise(stacks: Iterable[tuple[Sequence[Function], int, int]]) -> Stats:
    """Stacks (functions from the root on, samples, nanoseconds) as statistics.

    Counts are the samples in which a function is on the stack, once however often it recurs; the
    total is the time in which it is, the own time that in which it is the innermost."""
    functions: dict[Function, _Tally] = {}
    edges: dict[tuple[Function, Function], _Tally] = {}
    for path, samples, ns in stacks:
        for function in set(path):
            own = ns if function == path[-1] else 0
            functions.setdefault(function, _Tally()).add(samples, own, ns)
        last = tuple(path[-2:])
        for edge in set(pairwise(path)):
            edges.setdefault(edge, _Tally()).add(samples, ns if edge == last else 0, ns)
    callers: dict[Function, dict[Function, Numbers]] = {}
    for (caller, callee), tally in sorted(edges.items()):
        callers.setdefault(callee, {})[caller] = tally.show()
    return {key: (*tally.show(), callers.get(key, {})) for key, tally in sorted(functions.items())}


# ---- files ---------------------------------------------------------------------------------------


def dump(stats: Stats, about: Mapping[str, object] | None = None) -> bytes:
    """The bytes of a file; pstats refuses an empty one, so nothing is said as such."""
    whole = stats or {NOTHING: (0, 0, 0.0, 0.0, {})}
    return marshal.dumps(whole, 4) + (b"" if about is None else marshal.dumps(dict(about), 4))


def load(path: str) -> tuple[Stats, dict[str, object]]:
    """The statistics in a file, and what it says about itself (nothing if it is not ours)."""
    try:
        with open(path, "rb") as file:
            stats = marshal.load(file)
            try:
                about = marshal.load(file)
            except EOFError:
                about = {}
    except (OSError, EOFError, ValueError, TypeError) as error:
        raise Error(f"{path} is not a statistics file of Python's: {error}") from None
    if not isinstance(about, dict) or not _is_stats(stats):
        raise Error(f"{path} is not a statistics file of Python's")
    stats.pop(NOTHING, None)
    return stats, about


def _is_stats(stats: object) -> bool:
    return isinstance(stats, dict) and all(
        isinstance(key, tuple)
        and len(key) == 3
        and isinstance(value, tuple)
        and len(value) == 5
        and isinstance(value[4], dict)
        for key, value in stats.items()
    )


# ---- arithmetic ----------------------------------------------------------------------------------


def add(parts: Iterable[Stats]) -> Stats:
    """The sum, exact to the nanosecond: seconds as floats are not added up as such."""
    found: dict[Function, list[int]] = {}
    callers: dict[Function, dict[Function, list[int]]] = {}
    for stats in parts:
        for key, (*numbers, edges) in stats.items():
            _accumulate(found.setdefault(key, [0, 0, 0, 0]), numbers)
            mine = callers.setdefault(key, {})
            for caller, edge in edges.items():
                _accumulate(mine.setdefault(caller, [0, 0, 0, 0]), edge)
    return {
        key: (*_show(numbers), {caller: _show(edge) for caller, edge in callers[key].items()})
        for key, numbers in found.items()
    }


def _accumulate(sums: list[int], numbers: Sequence[float]) -> None:
    first, second, own, total = numbers
    sums[0] += int(first)
    sums[1] += int(second)
    sums[2] += round(own * 1e9)
    sums[3] += round(total * 1e9)


def _show(sums: Sequence[int]) -> Numbers:
    return sums[0], sums[1], sums[2] / 1e9, sums[3] / 1e9


def refuse_overlap(abouts: Sequence[tuple[str, Mapping[str, object]]]) -> None:
    """Refuse to add what counts the same time twice; says which files, and why."""
    seen: dict[tuple[object, object], list[tuple[str, Mapping[str, object]]]] = {}
    parts = [(path, part) for path, about in abouts for part in list_parts(about)]
    weights = {str(about.get("weight")) for _path, about in parts}
    if len(weights) > 1:
        raise Error(f"{' and '.join(sorted(weights))} time cannot be added")
    for path, about in parts:
        mine = seen.setdefault((about["session"], about.get("of")), [])
        for other, known in mine:
            if _overlap(about, known):
                raise Error(_explain(path, about, other, known))
        mine.append((path, about))


def list_parts(about: Mapping[str, object]) -> list[Mapping[str, object]]:
    """What a file is the sum of. Of cProfile's own nobody can tell: whole runs, one hopes."""
    parts = about.get("parts")
    if isinstance(parts, list):
        return parts
    return [] if about.get("session") is None else [about]


def _overlap(one: Mapping[str, object], other: Mapping[str, object]) -> bool:
    starts = [int(str(about["start_ns"])) for about in (one, other)]
    ends = [int(str(about["end_ns"])) for about in (one, other)]
    return max(starts) < min(ends) or one["number"] == other["number"]


def _explain(
    path: str, about: Mapping[str, object], other: str, known: Mapping[str, object]
) -> str:
    both = {about["kind"], known["kind"]}
    if both == {TOTAL}:
        why = "both count from its start on, so their sum would count the earlier one twice"
    elif both == {DELTA}:
        why = "they are the same interval, or overlap"
    else:
        why = "one counts from its start on and contains the other"
    return (
        f"{other} and {path} are of one process and cannot be added: {why}; "
        "add its deltas, or take its last cumulative one alone"
    )
