"""The few places that make up the time: lines of the user's own code, working and waiting apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sonde.analysis.code_names import MINE, OPERATORS, shorten_file, show_call
from sonde.analysis.code_tree import INSIDE, CodeNode, CodeTree, name_inside
from sonde.analysis.spread_functions import SpreadFunction, find_spread_functions
from sonde.analysis.work_kinds import find_instead, find_kind

WORTH_PCT = 15.0  # of the time, from which it is told what people do about a place
LOOPS = "event loops, for what their tasks await (`advise --look` shows it of a live job)"
_CALLERS = 3  # of the user's own that are named, the nearest first
_MOST_SPREAD = 2  # functions whose time is spread over their lines
_INSIDE = 0.9  # of a line's time that is in such a function, which then stands for it
_NUMERIC = "numeric work"
_FEW_NUMERIC = 0.2  # of a line's working time in such calls, from which its own are operators
_ELEMENTS, _FEW_ELEMENTS = "single elements of arrays", 0.2  # of its time: what it loops over
_MOST_CALLS, _CALL_PCT = 3, 10.0  # that are named of such a function
_Key = tuple[str, str, int, str, int]  # function, file, line, call; working or waiting
_Path = tuple[CodeNode, ...]  # of the user's own functions, the innermost first


@dataclass(frozen=True)
class HotPlace:
    """A line of the user's own code, with the library call that it makes if that takes the time."""

    func: str
    file: str
    line: int
    call: str  # `json.loads`; empty if the time is in the line itself
    kind: str  # what kind of work the call is; empty if unknown
    state: str  # working or waiting
    time_s: float
    share_pct: float  # of all time, working and waiting
    # `follow (fleet/sim.py:10) < main (fleet/run.py:3)`: who called it most of the time
    caller: str = ""
    facts: str = ""  # what else was measured there: `496 waits of 44 ms`
    instead: str = ""  # what people do about such time; empty if nothing is known
    stacks: Mapping[int, int] = field(default_factory=dict, repr=False, compare=False)

    @property
    def what(self) -> str:
        """The call and its kind, in words; what waits for others may work all the same."""
        is_told = self.kind and not (self.state == "working" and self.kind.startswith("waiting"))
        call = show_call(self.call)
        return f"{call} ({self.kind})" if self.call and is_told else call

    @property
    def is_costly(self) -> bool:
        """Whether it takes so much of the time that people do something about it."""
        return bool(self.instead) and self.share_pct >= WORTH_PCT

    def show_place(self, folder: str | None) -> str:
        """Return the file and line as people read them; empty if this is in no file."""
        return f"{shorten_file(self.file, folder)}:{self.line}" if self.file else ""


class _Sums:
    """The time of each place, with the functions that it was called from and its stacks."""

    def __init__(self) -> None:
        self.ns: dict[_Key, int] = {}
        self.paths: dict[_Key, dict[_Path, int]] = {}
        self.stacks: dict[_Key, dict[int, int]] = {}

    def add(self, tree: CodeTree, func: str, path: _Path, node: CodeNode) -> None:
        call = "" if node.step.owner == MINE else node.step.name
        ends, own_ns = tree.ends.get(node, {}), node.own_ns
        if call.startswith(INSIDE):
            func, call = call.removeprefix(INSIDE), ""
            own_ns = {node.step.line: [node.working_ns, node.waiting_ns]}
        elif call and not node.step.file and name_inside(node) != f"(in {call})":
            call = f"{call} {name_inside(node)}"  # `uvicorn (in json, asyncio)`
        for line, times in own_ns.items():
            for state, time_ns in enumerate(times):
                key = func, node.step.file, line, call, state
                self.ns[key] = self.ns.get(key, 0) + time_ns
                paths = self.paths.setdefault(key, {})
                paths[path] = paths.get(path, 0) + time_ns
                stacks = self.stacks.setdefault(key, {})
                for stack, wall_ns in ends.get((line, bool(state)), {}).items():
                    stacks[stack] = stacks.get(stack, 0) + wall_ns


def list_places(
    tree: CodeTree, most: int = 6, least_pct: float = 5.0, loops_ns: int = 0,
    awaited: Sequence[HotPlace] = (),
) -> list[HotPlace]:  # fmt: skip
    """Return the places with the most time, the heaviest first; each has at least `least_pct`.
    Event loops waited for `loops_ns`, which the tree leaves out: for `awaited`, the places at which
    their tasks waited, if that is known."""
    sums = _Sums()
    for func, path, node in _walk(tree.root):
        sums.add(tree, func, path, node)
    whole = tree.root.total_ns + loops_ns
    ranked = sorted(sums.ns, key=lambda key: (-sums.ns[key], key))[:most]
    told = [key for key in ranked if _find_share(sums.ns[key], whole) >= least_pct]
    spread = find_spread_functions(tree, told, whole)[:_MOST_SPREAD]
    rests = _find_rests(spread, told, sums, least_pct * whole / 100)
    spread = [one for one, rest_ns in zip(spread, rests, strict=True) if rest_ns]
    found = [
        _make_spread(one, rest_ns, whole, tree.profile.folder)
        for one, rest_ns in zip(spread, filter(None, rests), strict=True)
    ]
    numeric = _find_numeric_lines(sums)
    for key in told:
        func, file, line, call, state = key
        time_ns = sums.ns[key]
        if any(one.parts.get(key, 0) >= _INSIDE * time_ns for one in spread):
            continue
        if not call and not state and (file, line) in numeric:
            call = OPERATORS
        word = ("working", "waiting")[state]
        found.append(HotPlace(func, file, line, call, find_kind(call), word,
                              round(time_ns / 1e9, 3), _find_share(time_ns, whole),
                              _name_callers(sums.paths[key], tree.profile.folder),
                              stacks=sums.stacks[key]))  # fmt: skip
    if not awaited and loops_ns:
        share = _find_share(loops_ns, whole)
        awaited = [HotPlace("", "", 0, LOOPS, "", "waiting", round(loops_ns / 1e9, 3), share)]
    found += [one for one in awaited if one.share_pct >= least_pct or one.facts]
    # Of places with as much time each the order is the same in each answer.
    found.sort(key=lambda one: (-one.share_pct, one.file, one.line, one.call))
    return found[: most + len(awaited)]


def _find_numeric_lines(sums: _Sums) -> set[tuple[str, int]]:
    """Return the lines whose calls are work on arrays: what such a line does itself is most likely
    the operators between them, of which samples do not always know the type."""
    by_line: dict[tuple[str, int], tuple[int, int, int]] = {}
    for (_, file, line, call, state), time_ns in sums.ns.items():
        if state == 0:
            numeric, other, own = by_line.get((file, line), (0, 0, 0))
            is_numeric = find_kind(call) == _NUMERIC
            by_line[file, line] = (
                numeric + time_ns * is_numeric,
                other + time_ns * (bool(call) and not is_numeric),
                own + time_ns * (not call),
            )
    return {
        place for place, (numeric, other, own) in by_line.items()
        if numeric > 2 * other and numeric >= _FEW_NUMERIC * (numeric + own)
    }  # fmt: skip


def _find_rests(
    spread: Sequence[SpreadFunction], told: Sequence[_Key], sums: _Sums, least_ns: float
) -> list[int]:
    """Return how much of each of these functions is told nowhere else, as one of the lines or in
    another one of the functions; nothing if that is too little to be told, the innermost first."""
    rests: dict[int, int] = {}
    for at in sorted(range(len(spread)), key=lambda at: spread[at].working_ns):
        one = spread[at]
        kept = [other for other in rests if rests[other]]
        lines = sum(
            one.parts.get(key, 0) for key in told
            if not any(
                function.parts.get(key, 0) >= _INSIDE * sums.ns[key]
                for function in (one, *(spread[other] for other in kept))
            )
        )  # fmt: skip
        inner = sum(one.inner.get((spread[o].func, spread[o].file), 0) for o in kept)
        rest_ns = one.working_ns - lines - inner
        rests[at] = rest_ns if rest_ns >= least_ns else 0
    return [rests[at] for at in range(len(spread))]


def _make_spread(one: SpreadFunction, rest_ns: int, whole: int, folder: str | None) -> HotPlace:
    """Return a function whose time is spread over its lines as a place: what is told nowhere else
    of it."""
    calls = sorted(one.calls, key=lambda call: (-one.calls[call], call))
    shares = [(call, _find_share(one.calls[call], one.working_ns)) for call in calls[:_MOST_CALLS]]
    told = [f"{call or 'plain Python'} {pct:.0f} %" for call, pct in shares if pct >= _CALL_PCT]
    by_kind: dict[str, int] = {}
    for call, time_ns in one.calls.items():
        by_kind[find_kind(call)] = by_kind.get(find_kind(call), 0) + time_ns
    kind = max(by_kind, key=lambda kind: (by_kind[kind], kind))
    kind = kind if 2 * by_kind[kind] >= one.working_ns else find_kind("")
    if by_kind.get(_ELEMENTS, 0) >= _FEW_ELEMENTS * one.working_ns:
        kind = _ELEMENTS
    call = next((call for call in calls if find_kind(call) == kind), "")
    return HotPlace(
        one.func, one.file, one.line, "", "", "working", round(rest_ns / 1e9, 3),
        _find_share(rest_ns, whole), _name_callers(one.paths, folder),
        f"spread over {one.count_lines()} lines" + (f": {', '.join(told)}" if told else ""),
        find_instead(call, None, is_waiting=False),
    )  # fmt: skip


def _find_share(time_ns: int, whole_ns: int) -> float:
    return round(100 * time_ns / whole_ns if whole_ns else 0.0, 1)


def _name_callers(paths: Mapping[_Path, int], folder: str | None) -> str:
    """Return who called, the nearest first, as long as it was one line most of the time."""
    names: list[str] = []
    by_path = {_name_path(path, folder): 0 for path in paths}
    for path, time_ns in paths.items():
        by_path[_name_path(path, folder)] += time_ns
    whole = sum(by_path.values())
    for at in range(_CALLERS):
        by_name: dict[str, int] = {}
        for path_names, time_ns in by_path.items():
            if path_names[:at] == tuple(names) and len(path_names) > at:
                name = path_names[at]
                by_name[name] = by_name.get(name, 0) + time_ns
        best = max(by_name, key=by_name.__getitem__, default="")
        if not best or 2 * by_name[best] <= whole:
            break
        names.append(best)
    return " < ".join(names)


def _name_path(path: _Path, folder: str | None) -> tuple[str, ...]:
    """Return the callers by name; one that calls itself only once."""
    names: list[str] = []
    for node in path:
        if not node.step.file or node.step.name == "<module>":
            break
        place = f"{shorten_file(node.step.file, folder)}:{node.line}"
        name = f"{node.step.name} ({place})"
        if not names or names[-1] != name:
            names.append(name)
        if len(names) == _CALLERS:
            break
    return tuple(names)


def _walk(root: CodeNode) -> Iterator[tuple[str, _Path, CodeNode]]:
    """Yield every node with the function of the user's own that it is, or was called from, and the
    nodes of the user's own functions that called that, the innermost first."""
    waiting: list[tuple[str, _Path, CodeNode | None, CodeNode]] = [
        ("", (), None, child) for child in root.children.values()
    ]
    while waiting:
        func, path, mine, node = waiting.pop()
        if node.step.owner == MINE:
            path = path if mine is None else (mine, *path)[: 4 * _CALLERS]
            func, mine = node.step.name, node
        yield func, path, node
        waiting += [(func, path, mine, child) for child in node.children.values()]
