"""Functions of the user's own whose time is spread over many lines, none of which stands out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sonde.analysis.code_names import MINE
from sonde.analysis.code_tree import CodeNode, CodeTree

_LEAST = 0.15  # of all time, from which a function is told
_WHOLE = 0.7  # of a function's time, from which the one that it calls is told in its place
_LINE = 0.3  # of a function's time that a single line may explain, if it is much of all time
_FEWEST = 2  # lines
_INNER = 0.5  # and that functions in it may, which are told
_Function = tuple[str, str]  # name and file
Chain = tuple[CodeNode, ...]  # functions of the user's own, each called by the one before
Line = tuple[str, str, int, str, int]  # function, file, line, call; working or waiting


@dataclass
class SpreadFunction:
    """A function with all that it calls."""

    func: str
    file: str
    working_ns: int = 0
    lines: dict[int, int] = field(default_factory=dict)  # by line, with what it calls
    calls: dict[str, int] = field(default_factory=dict)  # working time by what was called
    parts: dict[Line, int] = field(default_factory=dict)  # by innermost line of the user's own
    inner: dict[_Function, int] = field(default_factory=dict)  # by the user's functions in it
    paths: dict[Chain, int] = field(default_factory=dict)  # by its callers, the nearest first
    is_outermost: bool = False  # nothing of the user's own calls it

    def count_lines(self) -> int:
        return len({(file, line) for _, file, line, _, _ in self.parts})

    @property
    def line(self) -> int:
        """The line at which most of its time is spent."""
        return max(self.lines, key=lambda one: (self.lines[one], -one), default=0)


def find_spread_functions(
    tree: CodeTree, told: Sequence[Line], whole_ns: int
) -> list[SpreadFunction]:
    """Return the functions that take much of the time without a line that does, the heaviest first:
    the innermost that explain it. `told` are the lines that are told anyway."""
    functions = _sum_functions(tree)
    least = _LEAST * whole_ns
    found: dict[_Function, SpreadFunction] = {}
    for key, one in sorted(functions.items(), key=lambda item: (item[1].working_ns, item[0])):
        known = max((one.parts.get(line, 0) for line in told), default=0)
        inner = sum(one.inner.get(other, 0) for other in found)
        deeper = max(one.inner.values(), default=0)
        if (
            one.working_ns >= least and not one.is_outermost and one.count_lines() >= _FEWEST
            and known < max(_LINE * one.working_ns, least) and inner < _INNER * one.working_ns
            and deeper < _WHOLE * one.working_ns
        ):  # fmt: skip
            found[key] = one
    return list(reversed(found.values()))


def _sum_functions(tree: CodeTree) -> dict[_Function, SpreadFunction]:
    functions: dict[_Function, SpreadFunction] = {}
    for chain, node in _walk(tree.root):
        names = [(one.step.name, one.step.file) for one in chain]
        for at, key in enumerate(names):
            if key in names[:at]:  # it calls itself
                continue
            one = functions.setdefault(key, SpreadFunction(*key))
            one.is_outermost |= at == 0
            if chain[at] is node:
                for line, total_ns in node.lines.items():
                    one.lines[line] = one.lines.get(line, 0) + total_ns
            _add(one, chain, at, set(names[at + 1 :]) - {key}, node)
    return functions


def _add(one: SpreadFunction, chain: Chain, at: int, inner: set[_Function], node: CodeNode) -> None:
    """Add what a node worked itself to the function that is the chain's one of this number."""
    call = "" if node.step.owner == MINE else node.step.name
    for line, (working_ns, _) in node.own_ns.items():
        one.working_ns += working_ns
        sums: list[tuple[dict[Any, int], object]] = [
            (one.paths, tuple(reversed(chain[:at]))),
            (one.calls, call),
            (one.parts, (chain[-1].step.name, node.step.file, line, call, 0)),
            *((one.inner, function) for function in inner),
        ]
        for times, key in sums:
            times[key] = times.get(key, 0) + working_ns


def _walk(root: CodeNode) -> Iterator[tuple[Chain, CodeNode]]:
    """Yield every node with the user's own functions that it is in, the outermost first."""
    waiting: list[tuple[Chain, CodeNode]] = [((), child) for child in root.children.values()]
    while waiting:
        chain, node = waiting.pop()
        if node.step.owner == MINE and node.step.name != "<module>":
            chain = (*chain, node)
        yield chain, node
        waiting += [(chain, child) for child in node.children.values()]
