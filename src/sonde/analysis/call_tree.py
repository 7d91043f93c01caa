"""Call trees: frames with the same callers are one node."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from sonde.session.stack_table import WEIGHTS

Name = TypeVar("Name", bound=Hashable)  # of a frame


class CallNode(Generic[Name]):
    """One frame under its callers; `own` is the time, by weight, in which it was innermost."""

    __slots__ = ("caller", "children", "own", "total")

    def __init__(self) -> None:
        self.caller: CallNode[Name] | None = None
        self.children: dict[Name, CallNode[Name]] = {}
        self.own = [0] * len(WEIGHTS)
        self.total = [0] * len(WEIGHTS)


def grow(paths: Iterable[tuple[Iterable[Name], Sequence[int]]]) -> CallNode[Name]:
    """Return the tree of paths, which begin at the root, each with its weights."""
    root: CallNode[Name] = CallNode()
    made = [root]
    for path, weights in paths:
        node = root
        for step in path:
            child = node.children.get(step)
            if child is None:
                child = node.children[step] = CallNode()
                made.append(child)
                child.caller = node
            node = child
        _add(node.own, weights)
    # A node is made after its caller: going backwards, each total is complete when it is added.
    for node in reversed(made):
        _add(node.total, node.own)
        if node.caller is not None:
            _add(node.caller.total, node.total)
    return root


def _add(sums: list[int], weights: Sequence[int]) -> None:
    for at, weight in enumerate(weights):
        sums[at] += weight


def walk(root: CallNode[Name], by: int) -> Iterator[tuple[int, Name, CallNode[Name]]]:
    """Yield every node but the root with its depth and name: callers first, the heaviest first.

    Without recursion: a stack may be deeper than Python allows ours to be."""
    waiting = [(0, name, node) for name, node in _order(root, by)]
    while waiting:
        depth, name, node = waiting.pop()
        yield depth, name, node
        waiting += [(depth + 1, inner, child) for inner, child in _order(node, by)]


def _order(node: CallNode[Name], by: int) -> list[tuple[Name, CallNode[Name]]]:
    """Return children in ascending order, because they are popped from the end."""
    return sorted(node.children.items(), key=lambda item: (item[1].total[by], str(item[0])))
