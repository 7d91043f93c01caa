"""Python's own statistics files, as read by pstats, snakeviz, gprof2dot and flameprof.

A file is one marshalled dict. Ours has a second one after it, which those readers ignore. It lists
the parts that the numbers are the sum of: which process, from when to when, and which kind."""

from __future__ import annotations

import marshal
from collections.abc import Iterable, Sequence
from itertools import pairwise

from sonde.errors import Error
from sonde.session.records import SnapshotAbout

Function = tuple[str, int, str]  # file, first line, name
Numbers = tuple[int, int, float, float]
# The first two are non-recursive calls and all calls; in a caller's numbers, all calls come first.
# Then come own and total seconds.
Stats = dict[Function, tuple[int, int, float, float, dict[Function, Numbers]]]
DELTA, TOTAL = "delta", "total"
NOTHING: Function = ("~", 0, "<nothing sampled>")


class _Tally:
    """Samples and times of a function, or of a function under one caller."""

    __slots__ = ("own_ns", "samples", "total_ns")

    def __init__(self) -> None:
        self.samples = self.own_ns = self.total_ns = 0

    def add(self, samples: int, own_ns: int, total_ns: int) -> None:
        self.samples += samples
        self.own_ns += own_ns
        self.total_ns += total_ns

    def show(self) -> Numbers:
        """Return both counts, which are the samples, and the times in seconds."""
        return self.samples, self.samples, self.own_ns / 1e9, self.total_ns / 1e9


def summarise(stacks: Iterable[tuple[Sequence[Function], int, int]]) -> Stats:
    """Return stacks (functions from the root on, samples, nanoseconds) as statistics.

    A count is the number of samples with the function on the stack, however often it recurs there.
    The total is the time of those samples; own time is that of samples where it is innermost."""
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


def dump(stats: Stats, parts: Sequence[SnapshotAbout] = ()) -> bytes:
    """Return the bytes of a file; pstats rejects an empty one, so NOTHING stands for no samples."""
    whole = stats or {NOTHING: (0, 0, 0.0, 0.0, {})}
    about = {"parts": [part.dump() for part in parts]}
    return marshal.dumps(whole, 4) + (marshal.dumps(about, 4) if parts else b"")


def load(path: str) -> tuple[Stats, list[SnapshotAbout]]:
    """Return the statistics of a file and the parts it is the sum of; no parts if not ours."""
    try:
        with open(path, "rb") as file:
            stats = marshal.load(file)
            try:
                about = marshal.load(file)
            except EOFError:
                about = {}
    except OSError as error:
        raise Error(f"{path} cannot be read: {error.strerror}") from None
    except (EOFError, ValueError, TypeError) as error:
        raise Error(f"{path} is not a Python statistics file: {error}") from None
    parts = about.get("parts", []) if isinstance(about, dict) else None
    if not isinstance(parts, list) or not _is_stats(stats):
        raise Error(f"{path} is not a Python statistics file")
    stats.pop(NOTHING, None)
    return stats, [SnapshotAbout.load(part, path) for part in parts]


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
    """Return the sum, exact to the nanosecond: seconds are not added as floats."""
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


def refuse_overlap(files: Sequence[tuple[str, Sequence[SnapshotAbout]]]) -> None:
    """Raise an Error that names the files and the reason if a sum would count time twice."""
    seen: dict[tuple[str, str], list[tuple[str, SnapshotAbout]]] = {}
    parts = [(path, part) for path, parts in files for part in parts]
    weights = {part.weight for _path, part in parts}
    if len(weights) > 1:
        raise Error(f"{' and '.join(sorted(weights))} time cannot be added up")
    for path, part in parts:
        same = seen.setdefault((part.session, part.of), [])
        for other, known in same:
            if _overlap(part, known):
                raise Error(_explain(path, part, other, known))
        same.append((path, part))


def _overlap(one: SnapshotAbout, other: SnapshotAbout) -> bool:
    overlap = max(one.start_ns, other.start_ns) < min(one.end_ns, other.end_ns)
    return overlap or one.number == other.number


def _explain(path: str, part: SnapshotAbout, other: str, known: SnapshotAbout) -> str:
    both = {part.kind, known.kind}
    if both == {TOTAL}:
        why = "both count from the start, so their sum would count the earlier one twice"
    elif both == {DELTA}:
        why = "they cover the same interval, or overlap"
    else:
        why = "one counts from the start and contains the other"
    return (
        f"{other} and {path} are of one process and cannot be added up: {why}; "
        "add its deltas, or take only its last cumulative one"
    )
