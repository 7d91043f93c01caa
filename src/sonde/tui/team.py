"""Several processes as one: the sum of their times, and what one does that the others do not."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_high
from typing import NamedTuple

from sonde.analysis.code_names import MINE, find_owner, is_child_start
from sonde.analysis.rest import is_at_rest
from sonde.session import Session
from sonde.tui.page import Choice, list_own_shares, measure
from sonde.tui.process import LONGEST_S, TopProcess
from sonde.tui.shares import Share
from sonde.tui.tree import StackTree, Unit

_NOTABLE = 0.05  # of the window: smaller differences are chance
_LITTLE = 0.01  # of the window: who does less does nothing
_MUCH, _TIMES = 0.25, 2.0  # of the window, and times as much: more of the same is no difference
_BESIDE = 0.25  # of the largest difference: what one leaves undone is a little more for the rest


class Member(NamedTuple):
    """What one process did in a window, and where it differs most from the others."""

    process: TopProcess
    working_pct: float  # of the window, over all threads
    waiting_pct: float  # likewise, without threads that have no work
    unit: Unit | None  # the line of code in which it spends more than the others
    more_pct: float
    wait: Unit | None = None  # the line of the user's own code in which it waits the most


def sum_shares(processes: Sequence[TopProcess], choice: Choice) -> tuple[list[Share], int]:
    """Return the share of every function or line in all processes, and the whole time."""
    sums: dict[Unit, tuple[int, int]] = {}
    whole = 0
    for process in processes:
        weighed = measure(choice, process)
        whole += weighed.whole
        for share in list_own_shares(choice, weighed):
            own, total = sums.get(share.unit, (0, 0))
            sums[share.unit] = own + share.self_ns, total + share.total_ns
    return [Share(unit, *times) for unit, times in sums.items()], whole


def find_members(processes: Sequence[TopProcess], window_s: float | None) -> list[Member]:
    """Return what each process did, and what it does more than the others: each is compared with
    the middle one of the rest, without those that do nothing. What started the others, such as a
    server's master, does something else: it is compared with nobody."""
    window_s = window_s or LONGEST_S
    found = [_add_up(process, window_s) for process in processes]
    teams = [_find_team(process.session) for process in processes]
    members = []
    for at, (process, (working, waiting, units, wait)) in enumerate(
        zip(processes, found, strict=True)
    ):
        rest = [one for place, one in enumerate(found) if place != at and teams[place] == teams[at]]
        others = _list_others(rest, working + waiting)
        more = {unit: _find_more(unit, share, others) for unit, share in units.items()}
        unit = max(more, key=lambda one: (more[one], one), default=None)
        if unit is None or more[unit] < _NOTABLE:
            members.append(Member(process, 100 * working, 100 * waiting, None, 0.0, wait))
        else:
            members.append(
                Member(process, 100 * working, 100 * waiting, unit, 100 * more[unit], wait)
            )
    least = _BESIDE * max((one.more_pct for one in members), default=0.0)
    return [one if one.more_pct >= least else one._replace(unit=None, more_pct=0.0)
            for one in members]  # fmt: skip


def _find_more(unit: Unit, share: float, others: Sequence[dict[Unit, float]]) -> float:
    """Return how much more of the time one spends in a line than the others. Of two others, the one
    that does more of it counts: nobody is told to differ from a slow one."""
    if not others:
        return 0.0
    place = unit.func, unit.file
    usual = median_high(
        sum(one[line] for line in one if (line.func, line.file) == place) for one in others
    )
    # Where all do the same, one has a little more of it to do, by chance.
    is_same = share < _TIMES * usual
    return 0.0 if is_same and share - usual < _MUCH else share - usual


def _list_others(
    rest: Sequence[tuple[float, float, dict[Unit, float], Unit | None]], own: float
) -> list[dict[Unit, float]]:
    """Return what a process is compared with: the shares of those that do anything notable. Where
    they all do little, what each would do in the time `own` that the process takes: a worker that
    is given more than the others does not differ, one that does something else does."""
    notable = [one[2] for one in rest if one[0] + one[1] >= _NOTABLE]
    little = [] if notable else [one for one in rest if one[0] + one[1] >= _LITTLE]
    return notable or [
        {unit: share * own / (one[0] + one[1]) for unit, share in one[2].items()} for one in little
    ]


def _find_team(session: Session) -> object:
    """Return what those have in common that do the same: a rank, or who started them."""
    return "ranks" if session.rank is not None else (session.host, session.meta.ppid)


def _add_up(
    process: TopProcess, window_s: float
) -> tuple[float, float, dict[Unit, float], Unit | None]:
    """Return the shares of the window that were work and waiting, those of each function of
    the user's own (what it calls counts as its own; work without such code counts by itself), and
    the line that waited the most."""
    sums, span = process.add_up(window_s), process.find_span(window_s)
    tree = process.tree
    working = waiting = 0.0
    units: dict[Unit, float] = {}
    waits: dict[Unit, float] = {}
    resting: dict[int, bool] = {}
    for (thread, stack, _gil, is_idle), (_samples, wall_ns, _cpu_ns) in sums.items():
        place = tree.places.get(stack, 0)
        if is_idle and place not in resting:
            resting[place] = _is_resting(tree, place, is_main=thread == process.session.pid)
        if is_idle and resting[place]:
            continue
        share = wall_ns / span
        working, waiting = (working, waiting + share) if is_idle else (working + share, waiting)
        unit = _find_own(tree, place)
        if unit is not None and is_idle:
            waits[unit] = waits.get(unit, 0.0) + share
        if unit is not None or not is_idle:
            unit = unit or tree.functions.names[tree.functions.of[place]]
            units[unit] = units.get(unit, 0.0) + share
    most = max(waits, key=lambda one: (waits[one], one), default=None)
    return working, waiting, _sum_functions(units), most


def _sum_functions(units: dict[Unit, float]) -> dict[Unit, float]:
    """Return the shares of functions, each named by its line with the most: which line of a loop
    takes how much of a short time is chance."""
    sums: dict[tuple[str, str], float] = {}
    lines: dict[tuple[str, str], Unit] = {}
    for unit in sorted(units, key=lambda one: (-units[one], one)):
        key = unit.func, unit.file
        sums[key] = sums.get(key, 0.0) + units[unit]
        lines.setdefault(key, unit)
    return {lines[key]: share for key, share in sums.items()}


def _is_resting(tree: StackTree, place: int, *, is_main: bool) -> bool:
    frames = [tree.by_line.names[tree.by_line.of[at]] for at in tree.walk(place)][::-1]
    return is_at_rest(frames, find_owner, is_main=is_main, has_mine=True)


def _find_own(tree: StackTree, place: int) -> Unit | None:
    """Return the innermost line of a stack that is the user's own code."""
    for at in tree.walk(place):
        unit = tree.by_line.names[tree.by_line.of[at]]
        if is_child_start(unit.func, unit.file):
            return None  # the rest is the stack of its parent
        if find_owner(unit.file) == MINE and unit.file != "?":
            return unit
    return None
