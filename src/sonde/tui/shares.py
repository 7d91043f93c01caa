"""Shares of functions, lines, callers, callees and threads: the arithmetic of `sonde top`.

Times are sums over the samples of a window (see samples) or over python.stack (since the start).
The weight is one of WEIGHTS: wall_ns; cpu_ns; or wall_ns of the samples that held the GIL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from sonde.tui.samples import NewestSample, Sums
from sonde.tui.tree import StackTree, Unit, Units


class Share(NamedTuple):
    """The time in a unit itself, and in it with what it called."""

    unit: Unit
    self_ns: int
    total_ns: int


class Load(NamedTuple):
    """What a thread did in a window, and what it was last seen doing."""

    thread: int
    name: str | None
    busy_ns: int
    cpu_ns: int
    gil_ns: int
    now: str  # running, gil, idle or ended
    place: int  # of its newest stack


class Weighed:
    """A weight on the tree: for each node its own, and that with all nodes below it."""

    def __init__(self, tree: StackTree, own: list[int]) -> None:
        self.tree, self.own = tree, own
        self.whole = sum(own)
        self.inclusive = list(own)
        inclusive, parents = self.inclusive, tree.parents
        for place in range(len(parents) - 1, 0, -1):  # callees come after their callers
            if inclusive[place] and parents[place] >= 0:
                inclusive[parents[place]] += inclusive[place]


def weigh(tree: StackTree, sums: Sums, weight: str, *, idle: bool, thread: int | None) -> Weighed:
    """Return the tree with a window's samples. `idle` matters for wall time only: CPU time has no
    idle part, and holding the GIL while idle is just what the GIL's weight should show."""
    own, places = [0] * len(tree), tree.places
    for (of, stack, gil, is_idle), (_samples, wall_ns, cpu_ns) in sums.items():
        if thread is not None and of != thread:
            continue
        if weight == "cpu":
            own[places.get(stack, 0)] += cpu_ns
        elif gil if weight == "gil" else (idle or not is_idle):
            own[places.get(stack, 0)] += wall_ns
    return Weighed(tree, own)


def weigh_all(tree: StackTree, hashes: Sequence[int], times_ns: Sequence[int]) -> Weighed:
    """Return the tree with the sums since the start: a column of python.stack."""
    own, places = [0] * len(tree), tree.places
    for stack, time_ns in zip(hashes, times_ns, strict=True):
        own[places.get(stack, 0)] += time_ns
    return Weighed(tree, own)


def list_shares(weighed: Weighed, units: Units) -> list[Share]:
    """Return the share of every function or line. For the `samples` of a window, it is the SQL

        SELECT func, file, first_line, SUM(weight) FILTER (depth = 0) AS self,
               (SELECT SUM(weight) FROM samples WHERE stack IN (those with such a frame)) AS total
        FROM samples JOIN python.frame USING (stack) GROUP BY ALL

    so a function that calls itself counts once in a stack."""
    own, total = [0] * len(units.names), [0] * len(units.names)
    rows = zip(units.of, units.outermost, weighed.own, weighed.inclusive, strict=True)
    for number, outermost, own_ns, inclusive_ns in rows:
        own[number] += own_ns
        if outermost:
            total[number] += inclusive_ns
    rows_of = zip(units.names, own, total, strict=True)
    return [Share(name, s, t) for name, s, t in rows_of if t]


def list_callers(weighed: Weighed, units: Units, unit: int) -> list[Share]:
    """Return the time by caller of a unit; `self_ns` is the part in the unit itself."""
    return _list_calls(weighed, units, lambda _caller, callee: callee == unit, of_caller=True)


def list_callees(weighed: Weighed, units: Units, unit: int) -> list[Share]:
    """Return the time by callee of a unit; `self_ns` is the part in the callee itself."""
    return _list_calls(weighed, units, lambda caller, _callee: caller == unit, of_caller=False)


def _list_calls(
    weighed: Weighed, units: Units, fits: Callable[[int, int], bool], *, of_caller: bool
) -> list[Share]:
    of, parents = units.of, weighed.tree.parents
    found: dict[int, tuple[int, int]] = {}
    for place in range(1, len(parents)):
        parent = parents[place]
        if parent < 0 or not weighed.inclusive[place] or not fits(of[parent], of[place]):
            continue
        pair = of[parent], of[place]
        own, total = found.get(pair[0 if of_caller else 1], (0, 0))
        # The same call further out already contains the time of this one.
        again = any(
            parents[at] >= 0 and (of[parents[at]], of[at]) == pair
            for at in weighed.tree.walk(parent)
        )
        total += 0 if again else weighed.inclusive[place]
        found[pair[0 if of_caller else 1]] = own + weighed.own[place], total
    return [Share(units.names[number], *times) for number, times in found.items()]


def list_loads(
    tree: StackTree,
    sums: Sums,
    newest: Mapping[int, NewestSample],
    names: Mapping[int, str],
    ended: Mapping[int, int],
) -> list[Load]:
    """Return every thread of a window: SELECT thread, SUM(wall_ns) FILTER (NOT idle) AS busy,
    SUM(cpu_ns) AS cpu, SUM(wall_ns) FILTER (gil) AS gil … GROUP BY thread; and those that have
    not ended, with what python.backtrace says of them."""
    times = {thread: [0, 0, 0] for thread in newest if not _is_over(thread, newest, ended)}
    for (thread, _stack, gil, idle), (_samples, wall_ns, cpu_ns) in sums.items():
        sum_ = times.setdefault(thread, [0, 0, 0])
        sum_[0] += 0 if idle else wall_ns
        sum_[1] += cpu_ns
        sum_[2] += wall_ns if gil else 0
    found = []
    for thread, (busy_ns, cpu_ns, gil_ns) in times.items():
        seen = newest[thread]
        now = "gil" if seen.gil else "idle" if seen.idle else "running"
        now = "ended" if _is_over(thread, newest, ended) else now
        place = tree.places.get(seen.stack, 0)
        found.append(Load(thread, names.get(thread), busy_ns, cpu_ns, gil_ns, now, place))
    return found


def _is_over(thread: int, newest: Mapping[int, NewestSample], ended: Mapping[int, int]) -> bool:
    return ended.get(thread, -1) >= newest[thread].t_ns


class Branch:
    """A frame that some threads share, and the frames below it."""

    def __init__(self, place: int) -> None:
        self.place = place
        self.threads: list[Load] = []  # those whose innermost frame this is
        self.below: dict[int, Branch] = {}


def grow_branches(tree: StackTree, loads: Iterable[Load]) -> Branch:
    """Return the stacks of all threads that have not ended, as a tree."""
    root = Branch(-1)
    for load in loads:
        if load.now == "ended":
            continue
        at = root
        for place in reversed(list(tree.walk(load.place))):
            at = at.below.setdefault(place, Branch(place))
        at.threads.append(load)
    return root
