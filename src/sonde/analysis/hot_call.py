"""What takes the time inside of a library's call: the innermost function with most of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from sonde.analysis.code_names import LIBRARY, MINE, WRAPPERS
from sonde.analysis.profile import ProfileFrame
from sonde.session.stack_table import is_native_place

_MOST = 0.7  # of the time of the call


class HotCall(NamedTuple):
    """A function of a library that most of the time of a call was spent in."""

    func: str
    file: str
    line: int  # that most of it was spent at
    inside: list[int]  # the numbers of the stacks that it is in


def cut_tail(frames: Sequence[ProfileFrame], own: Callable[[str], str]) -> tuple[ProfileFrame, ...]:
    """Return what of a stack, root first, lies below the user's own code."""
    at = len(frames)
    while at and own(frames[at - 1].file) != MINE:
        at -= 1
    return tuple(one for one in frames[at:] if not is_native_place(one.file, one.lineno))


def find_hot_call(
    tails: Sequence[tuple[ProfileFrame, ...]], times: Sequence[int], own: Callable[[str], str]
) -> HotCall | None:
    """Return the innermost function of a library in which most of the time of these stacks was
    spent. They begin with the function that was called; it is never the answer, nor is one whose
    name tells nobody anything."""
    inside, found, depth = list(range(len(tails))), None, 1
    least = _MOST * sum(times)
    while True:
        below: dict[tuple[str, str], list[int]] = {}
        for at in inside:
            if len(tails[at]) > depth:
                frame = tails[at][depth]
                below.setdefault((frame.func, frame.file), []).append(at)
        best = max(below, key=lambda key: sum(times[at] for at in below[key]), default=None)
        if best is None or sum(times[at] for at in below[best]) < least:
            return found
        inside = below[best]
        func, file = best
        if own(file) == LIBRARY and _tells(func, tails[inside[0]][0].func):
            lines: dict[int, int] = {}
            for at in inside:
                line = tails[at][depth].lineno
                lines[line] = lines.get(line, 0) + times[at]
            line = max(lines, key=lambda one: lines[one])
            found = HotCall(func.rpartition("<locals>.")[2], file, line, inside)
        depth += 1


def _tells(func: str, called: str) -> bool:
    """Return whether a name says more than that of the function that was called, and not just
    `inner`, `<lambda>` or `_run_impl`."""
    name = func.rpartition(".")[2]
    if name == called.rpartition(".")[2]:
        return False
    is_private = name.startswith("_") and not name.startswith("__")
    return not is_private and not name.startswith("<") and name not in WRAPPERS
