"""The few places that make up the time: lines of the user's own code, working and waiting apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sonde.analysis.code_names import MINE, shorten_file
from sonde.analysis.code_tree import CodeNode, CodeTree
from sonde.analysis.work_kinds import find_kind

LOOPS = "event loops, for what their tasks await (`advise --look` shows it of a live job)"


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
    caller: str = ""  # `follow (fleet/sim.py:10)`: who of the user's own called it most of the time

    @property
    def what(self) -> str:
        """The call and its kind, in words; what waits for others may work all the same."""
        is_told = self.kind and not (self.state == "working" and self.kind.startswith("waiting"))
        return f"{self.call} ({self.kind})" if self.call and is_told else self.call

    def show_place(self, folder: str | None) -> str:
        """Return the file and line as people read them; empty if this is in no file."""
        return f"{shorten_file(self.file, folder)}:{self.line}" if self.file else ""


def list_places(
    tree: CodeTree, most: int = 6, least_pct: float = 5.0, loops_ns: int = 0
) -> list[HotPlace]:
    """Return the places with the most time, the heaviest first; each has at least `least_pct`.
    Event loops waited for `loops_ns`, which the tree leaves out: whether they had nothing to do or
    their tasks waited for something, the reader of it knows."""
    sums: dict[tuple[str, str, int, str, int], int] = {}
    callers: dict[tuple[str, str, int, str, int], dict[CodeNode, int]] = {}
    for func, caller, node in _walk(tree.root):
        call = "" if node.step.owner == MINE else node.step.name
        for line, times in node.own_ns.items():
            for state, time_ns in enumerate(times):
                key = func, node.step.file, line, call, state
                sums[key] = sums.get(key, 0) + time_ns
                by_caller = callers.setdefault(key, {})
                by_caller[caller] = by_caller.get(caller, 0) + time_ns
    if loops_ns:
        key = "", "", 0, LOOPS, 1
        sums[key] = loops_ns
        callers[key] = {tree.root: loops_ns}
    whole = tree.root.total_ns + loops_ns
    ordered = sorted(sums.items(), key=lambda item: -item[1])
    found = []
    for key, time_ns in ordered[:most]:
        func, file, line, call, state = key
        share = 100 * time_ns / whole if whole else 0.0
        if share >= least_pct:
            word = ("working", "waiting")[state]
            found.append(HotPlace(func, file, line, call, find_kind(call), word,
                                  round(time_ns / 1e9, 3), round(share, 1),
                                  _name_caller(callers[key], tree.profile.folder)))  # fmt: skip
    return found


def _name_caller(callers: dict[CodeNode, int], folder: str | None) -> str:
    """Return who called most of the time, if that is one line of a file."""
    by_line: dict[str, int] = {}
    for node, time_ns in callers.items():
        is_told = node.step.file and node.step.name != "<module>"
        place = f"{shorten_file(node.step.file, folder)}:{node.line}"
        name = f"{node.step.name} ({place})" if is_told else ""
        by_line[name] = by_line.get(name, 0) + time_ns
    best = max(by_line, key=by_line.__getitem__)
    return best if 2 * by_line[best] > sum(by_line.values()) else ""


def _walk(root: CodeNode) -> Iterator[tuple[str, CodeNode, CodeNode]]:
    """Yield every node with the function of the user's own that it is, or was called from, and the
    node that called that; the root if none of the user's own did."""
    waiting = [("", root, root, child) for child in root.children.values()]
    while waiting:
        func, caller, parent, node = waiting.pop()
        if node.step.owner == MINE:
            caller = parent if parent.step.owner == MINE else root
            func = node.step.name
        yield func, caller, node
        waiting += [(func, caller, node, child) for child in node.children.values()]
