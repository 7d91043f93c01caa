"""What takes the time inside of a library's call: the innermost functions with most of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from sonde.analysis.code_names import (
    LIBRARY,
    MINE,
    SONDE,
    WRAPPERS,
    name_c_call,
    name_call,
    name_module,
)
from sonde.analysis.profile import ProfileFrame
from sonde.session.stack_table import is_native_place
from sonde.words import shorten_func

_MOST = 0.7  # of the time of the call
_LEADERS = 3  # that are named, at most


class HotCall(NamedTuple):
    """A function of a library that most of the time of a call was spent in."""

    func: str
    file: str
    line: int  # that most of it was spent at
    inside: list[int]  # the numbers of the stacks that it is in
    is_compiled: bool = False  # into a library: what it calls has no frames of Python


def cut_tail(frames: Sequence[ProfileFrame], own: Callable[[str], str]) -> tuple[ProfileFrame, ...]:
    """Return what of a stack, root first, lies below the user's own code, but frames of ours."""
    at = len(frames)
    while at and own(frames[at - 1].file) != MINE:
        at -= 1
    return tuple(
        one for one in frames[at:]
        if not is_native_place(one.file, one.lineno) and own(one.file) != SONDE
    )  # fmt: skip


class LibraryTime(NamedTuple):
    """Time in a library's call, with the frames below the user's own code."""

    tail: tuple[ProfileFrame, ...]
    line: int
    thread: tuple[int, int]
    wall_ns: int
    cpu_ns: int
    is_idle: bool
    call: str | None  # the C function that the innermost frame calls


def find_hot_call(
    tails: Sequence[tuple[ProfileFrame, ...]], times: Sequence[int], own: Callable[[str], str]
) -> HotCall | None:
    """Return the innermost function of a library in which most of the time of these stacks was
    spent, as `Leaders` finds it."""
    parts = [
        LibraryTime(tail, 0, (0, 0), time, 0, is_idle=False, call=None)
        for tail, time in zip(tails, times, strict=True)
    ]
    return Leaders(own, set(), 0).descend(parts, list(range(len(parts))), 1)


def cut_package(frames: Sequence[ProfileFrame]) -> tuple[ProfileFrame, ...]:
    """Return what of a stack, root first, is the innermost package's, of one without own code."""
    known = [one for one in frames if not is_native_place(one.file, one.lineno)]
    at = len(known)
    while at and _name_package(known[at - 1]) == _name_package(known[-1]):
        at -= 1
    return tuple(known[at:])


def _name_package(frame: ProfileFrame) -> str:
    return name_module(frame.file).partition(".")[0]


class Leaders:
    """Finds what leads inside of calls of libraries: the innermost functions with most of the time,
    and where it parts, those of each heavy part."""

    def __init__(
        self, own: Callable[[str], str], callers: set[tuple[str, str]], least: float
    ) -> None:
        self._own = own
        self._callers = callers  # of the user's functions: what they take themselves says little
        self._least = least  # time from which on a part is heavy

    def find(self, parts: Sequence[LibraryTime]) -> list[HotCall]:
        """Return at most three, the heaviest first. The stacks begin with the function that was
        called; it is never the answer, nor is one whose name tells nobody anything, but where the
        time itself is: there each function has a name to look at."""
        found: dict[tuple[str, str], HotCall] = {}
        left = [(list(range(len(parts))), 1)]
        while left:
            inside, depth = left.pop()
            hot = self.descend(parts, inside, depth)
            if hot is None:
                heavy = self._part(parts, inside, depth)
                told = set[int]().union(*heavy)
                left += [(one, depth + (len(one) == len(inside))) for one in heavy]
                inside = [at for at in inside if at not in told]
                hot = self._find_end(parts, inside)
            else:
                hot = self._find_compiled(parts, hot) or hot
            if hot is not None and _sum(parts, hot.inside) >= self._least:
                known = found.get(hot[:2])
                found[hot[:2]] = hot._replace(inside=known.inside + hot.inside) if known else hot
        return sorted(found.values(), key=lambda hot: -_sum(parts, hot.inside))[:_LEADERS]

    def descend(
        self, parts: Sequence[LibraryTime], inside: list[int], depth: int
    ) -> HotCall | None:
        """Follow most of the time inwards; return the innermost function that tells something."""
        found, least = None, _MOST * _sum(parts, inside)
        while True:
            below = _group(parts, inside, depth)
            best = max(below, key=lambda key: _sum(parts, below[key]), default=None)
            if best is None or _sum(parts, below[best]) < least:
                return found
            inside = below[best]
            func, file = best
            called = parts[inside[0]].tail[0].func
            is_caller = (shorten_func(func), file) in self._callers
            if self._own(file) == LIBRARY and not is_caller and _tells(func, called):
                line = _find_line(parts, inside, depth)
                found = HotCall(shorten_func(func), file, line, inside)
            depth += 1

    def _part(self, parts: Sequence[LibraryTime], inside: list[int], depth: int) -> list[list[int]]:
        groups = _group(parts, inside, depth).values()
        return [members for members in groups if _sum(parts, members) >= self._least]

    def _find_end(self, parts: Sequence[LibraryTime], inside: list[int]) -> HotCall | None:
        """Return the function, or the call of C, in which most of this time itself is."""
        ends: dict[tuple[str, str], list[int]] = {}
        for at in inside:
            tail, call = parts[at].tail, parts[at].call
            is_call = call is not None and not call.startswith("sonde.")
            if is_call or (len(tail) > 1 and not self._is_caller(tail[-1])):
                name = (
                    name_c_call(call or "") if is_call else name_call(tail[-1].func, tail[-1].file)
                )
                ends.setdefault((name, tail[-1].file if tail else ""), []).append(at)
        best = max(ends, key=lambda key: _sum(parts, ends[key]), default=None)
        if best is None:
            return None
        return HotCall(*best, _find_line(parts, ends[best], -1), ends[best])

    def _find_compiled(self, parts: Sequence[LibraryTime], hot: HotCall) -> HotCall | None:
        """Return the compiled function of the same package in which most of this time itself is:
        it has no frame of Python (mypyc, Cython)."""
        end = self._find_end(parts, hot.inside)
        if end is None or _sum(parts, end.inside) < _MOST * _sum(parts, hot.inside):
            return None
        part = parts[end.inside[0]]
        package, *names = (part.call or "").split(".")
        is_told = package == _name_package(part.tail[-1]) and not any(
            name.startswith("_") for name in names
        )
        return end._replace(is_compiled=True) if part.call and is_told else None

    def _is_caller(self, frame: ProfileFrame) -> bool:
        return (shorten_func(frame.func), frame.file) in self._callers


def _sum(parts: Sequence[LibraryTime], inside: Sequence[int]) -> int:
    return sum(parts[at].wall_ns for at in inside)


def _group(
    parts: Sequence[LibraryTime], inside: Sequence[int], depth: int
) -> dict[tuple[str, str], list[int]]:
    below: dict[tuple[str, str], list[int]] = {}
    for at in inside:
        tail = parts[at].tail
        if len(tail) > depth:
            below.setdefault((tail[depth].func, tail[depth].file), []).append(at)
    return below


def _find_line(parts: Sequence[LibraryTime], inside: Sequence[int], depth: int) -> int:
    lines: dict[int, int] = {}
    for at in inside:
        tail = parts[at].tail
        line = tail[depth].lineno if tail else 0  # a call of C that no known function makes
        lines[line] = lines.get(line, 0) + parts[at].wall_ns
    return max(lines, key=lambda one: lines[one])


def _tells(func: str, called: str) -> bool:
    """Return whether a name says more than that of the function that was called, and not just
    `inner`, `<lambda>` or `_run_impl`."""
    name = func.rpartition(".")[2]
    if name == called.rpartition(".")[2]:
        return False
    is_private = name.startswith("_") and not name.startswith("__")
    return not is_private and not name.startswith("<") and name not in WRAPPERS
