"""Python's own statistics: pstats, snakeviz, gprof2dot, flameprof."""

from __future__ import annotations

import marshal
from itertools import pairwise
from typing import IO

from sonde.selection import Place, Profile, Stack

SUFFIX = ".pstats"
TEXT = False
OPEN = "python -m pstats {file}, or snakeviz {file}"

Function = tuple[str, int, str]


class _Tally:
    """How much was seen of a function, or of a function under one caller."""

    __slots__ = ("own_ns", "samples", "total_ns")

    def __init__(self) -> None:
        self.samples = self.own_ns = self.total_ns = 0

    def add(self, samples: int, own_ns: int, total_ns: int) -> None:
        self.samples += samples
        self.own_ns += own_ns
        self.total_ns += total_ns

    def show(self) -> tuple[int, int, float, float]:
        """Both counts (of calls, and of calls that are not recursive) are the samples."""
        return self.samples, self.samples, self.own_ns / 1e9, self.total_ns / 1e9


def write(profile: Profile, file: IO[bytes]) -> None:
    """Counts are the samples in which a function is on the stack, once however often it recurs."""
    functions: dict[Function, _Tally] = {}
    edges: dict[tuple[Function, Function], _Tally] = {}
    for stack in profile.weighed:
        _add(profile, stack, functions, edges)
    callers: dict[Function, dict[Function, tuple[int, int, float, float]]] = {}
    for (caller, callee), tally in sorted(edges.items()):
        callers.setdefault(callee, {})[caller] = tally.show()
    table = {key: (*tally.show(), callers.get(key, {})) for key, tally in sorted(functions.items())}
    file.write(marshal.dumps(table, 4))


def _add(
    profile: Profile,
    stack: Stack,
    functions: dict[Function, _Tally],
    edges: dict[tuple[Function, Function], _Tally],
) -> None:
    samples, ns = stack.samples[profile.by], stack.ns[profile.by]
    path = [_name(place) for place in profile.path(stack.frames)]
    for function in set(path):
        own = ns if function == path[-1] else 0
        functions.setdefault(function, _Tally()).add(samples, own, ns)
    last = tuple(path[-2:])
    for edge in set(pairwise(path)):
        edges.setdefault(edge, _Tally()).add(samples, ns if edge == last else 0, ns)


def _name(place: Place) -> Function:
    return place.file or "~", place.line, place.func
