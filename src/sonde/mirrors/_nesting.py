"""Ends of regions in the order that a tool can take: it counts open ones by thread, as a stack."""

from __future__ import annotations

import sys
from _thread import _local
from collections.abc import Callable


class _Region:
    """One that is open in the tool."""

    __slots__ = ("end", "ended", "key", "stack")

    def __init__(self, key: object, end: Callable[[], object], stack: list[_Region] | None) -> None:
        self.key, self.end, self.stack, self.ended = key, end, stack, False


class Nesting:
    """Which regions nest in their thread, and what is open.

    ITT and NVTX have two kinds of calls: one for regions that nest, which their views show best,
    and one for regions that may end anywhere. At its begin nobody knows how a region will end. So
    those of an asyncio loop are *loose*, and so are all whose name has once not nested. The first
    one of such a name is ended in the tool as soon as that can be done in order: too late, if it
    ended before one inside it, or in another thread."""

    def __init__(self) -> None:
        self._open: dict[int, _Region] = {}
        self._loose: set[object] = set()
        self._here = _local()

    def is_loose(self, key: object) -> bool:
        """Must a region of this name be begun as one that may end anywhere?"""
        if key in self._loose:
            return True
        events = sys.modules.get("asyncio.events")
        return events is not None and events._get_running_loop() is not None

    def add_loose(self, number: int, key: object, end: Callable[[], object]) -> None:
        """A region was begun that may end anywhere; `end` ends it in the tool."""
        self._open[number] = _Region(key, end, None)

    def add_nested(self, number: int, key: object, end: Callable[[], object]) -> None:
        """A region was begun that nests; `end` ends the innermost one of this thread."""
        stack = self._find_stack()
        region = self._open[number] = _Region(key, end, stack)
        stack.append(region)

    def settle(self) -> None:
        """End what has ended in other threads: before another one is begun inside it."""
        _end_innermost(self._find_stack())

    def end(self, number: int) -> None:
        """A region has ended; one that was begun before the tool listened is not known."""
        region = self._open.pop(number, None)
        if region is None:
            return
        if region.stack is None:
            region.end()
            return
        region.ended = True
        here = self._find_stack()
        if region.stack is not here or here[-1] is not region:
            self._loose.add(region.key)
        _end_innermost(here)

    def end_all(self) -> None:
        """End what is open, where that can be done from this thread."""
        for region in self._open.values():
            region.ended = True
            if region.stack is None:
                region.end()
        self._open.clear()
        _end_innermost(self._find_stack())

    def _find_stack(self) -> list[_Region]:
        try:
            return self._here.stack  # type: ignore[no-any-return]
        except AttributeError:
            stack = self._here.stack = []
            return stack


def _end_innermost(stack: list[_Region]) -> None:
    while stack and stack[-1].ended:
        stack.pop().end()
