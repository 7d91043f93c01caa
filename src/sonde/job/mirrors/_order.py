"""End regions in an order that a tool accepts, if it keeps open ones as a stack per thread."""

from __future__ import annotations

from _thread import _local
from collections.abc import Callable
from sys import modules

from sonde.job.mirrors._handles import MAX_NAMES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Call = Callable[[], Any]


class Nesting:
    """Knows which regions nest in their thread, and which are open.

    ITT and NVTX have two kinds of calls: one for regions that nest, which their views show best,
    and one for regions that may end anywhere. When a region begins, nobody knows how it will end.
    So regions in an asyncio loop are *loose*, and so are all regions whose name has once failed to
    nest. The first region that fails to nest is ended in the tool as soon as the order permits:
    too late, if it ended before a region inside it, or in another thread."""

    # One function and plain tuples per region, because this is the cost of a mirror.

    def __init__(self) -> None:
        self._open: dict[int, tuple[object, Call, list[tuple[int, Call]] | None]] = {}
        self._loose: set[object] = set()
        self._here = _local()

    def begin(
        self, number: int, key: object, begin: Call | None, end: Call | None, begin_loose: Call
    ) -> None:
        """Begin a region in the tool, with `begin` or with `begin_loose`.

        A region begun with `begin` is ended with `end`, when it is the innermost of its thread.
        `begin_loose` returns the function that ends its region. `begin` is None for regions that
        are always loose."""
        events = modules.get("asyncio.events")
        in_loop = events is not None and events._get_running_loop() is not None
        if begin is None or end is None or in_loop or key in self._loose:
            self._open[number] = (key, begin_loose(), None)
            return
        try:
            stack = self._here.stack
        except AttributeError:
            stack = self._here.stack = []
        if stack and stack[-1][0] not in self._open:
            self._end_innermost(stack)
        begin()
        self._open[number] = (key, end, stack)
        stack.append((number, end))

    def end(self, number: int) -> None:
        """End a region in the tool; ignore one that began before the mirror was connected."""
        region = self._open.pop(number, None)
        if region is None:
            return
        key, end, stack = region
        if stack is None:
            end()
            return
        here = getattr(self._here, "stack", None)
        if (stack is not here or here[-1][0] != number) and len(self._loose) < MAX_NAMES:
            self._loose.add(key)
        if here and here[-1][0] not in self._open:
            self._end_innermost(here)

    def end_all(self) -> None:
        """End the open regions that can be ended from this thread."""
        loose = [end for _key, end, stack in self._open.values() if stack is None]
        self._open.clear()
        for end in loose:
            end()
        self._end_innermost(getattr(self._here, "stack", []))

    def _end_innermost(self, stack: list[tuple[int, Call]]) -> None:
        """End in the tool the regions of this thread that have ended, from the innermost out."""
        while stack and stack[-1][0] not in self._open:
            stack.pop()[1]()
