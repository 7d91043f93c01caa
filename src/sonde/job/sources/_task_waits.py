"""What asyncio's tasks await, looked at twice a second, and how long such a wait lasts."""

from __future__ import annotations

import sys
import time

from sonde import _core
from sonde.job.sources._python_objects import follow_coroutine, list_some_tasks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any
    from weakref import ref

_SOON_US = 10_000  # after a look, the same waits are looked at again: a short one has ended
_ROWS_NS = 2_000_000_000  # between two times that rows are written
_MOST_TASKS = 32  # of one look; each then stands for several
_MOST_PLACES = 256  # between two times that rows are written
_REST = 1000  # times the CPU time of a look, nobody looks again: 0.1 % of the time at most

Watched = list[tuple["_Place", "ref[Any]"]]  # waits, by the future that each ends with


class _Place:
    """Waits of one kind: the same awaits, in the same lines."""

    def __init__(self, stack: int, waits_for: str | None) -> None:
        self.stack, self.waits_for = stack, waits_for
        self.tasks = self.soon = self.soon_ended = self.later = self.later_ended = 0
        self.soon_ns = self.later_ns = 0


class TaskWaits:
    """Looks at the tasks that wait, and writes what it saw."""

    def __init__(self, emit: _core.Writer) -> None:
        self._emit = emit
        self._places: dict[object, _Place] = {}
        self._watched: Watched = []  # at the last look
        self._looked_ns = self._since_ns = self._next_ns = 0
        self._looks = 0

    def look(self, sampler: _core.Sampler) -> None:
        """Look at the tasks now, and a moment later at how many of these waits have ended."""
        begin_ns, cpu_ns = _core.clock_ns(), time.thread_time_ns()
        if begin_ns < self._next_ns:
            return
        self._since_ns = self._since_ns or begin_ns
        for place, ended in _list_ended(self._watched):
            place.later += 1
            place.later_ended += ended
            place.later_ns += begin_ns - self._looked_ns
        self._watched = self._list_waits(sampler)
        self._looks += 1
        self._looked_ns = now_ns = _core.clock_ns()
        self._next_ns = now_ns + _REST * (time.thread_time_ns() - cpu_ns)
        sampler.pause(_SOON_US)  # a fork ends it: Python would warn of this thread
        gap_ns = _core.clock_ns() - now_ns
        for place, ended in _list_ended(self._watched):
            place.soon += 1
            place.soon_ended += ended
            place.soon_ns += gap_ns
        if now_ns - self._since_ns >= _ROWS_NS:
            self.write()

    def write(self) -> None:
        """Write what was seen since the last time."""
        now_ns = _core.clock_ns()
        for place in [one for one in self._places.values() if one.tasks]:
            self._emit(now_ns, now_ns - self._since_ns, place.stack, place.waits_for,
                       self._looks, place.tasks, place.soon, place.soon_ended, place.soon_ns,
                       place.later, place.later_ended, place.later_ns)  # fmt: skip
        self._places, self._looks, self._since_ns = {}, 0, now_ns
        self._watched = []  # what ends until the next look is nobody's

    def _list_waits(self, sampler: _core.Sampler) -> Watched:
        """Return the waits of now, counted at their places."""
        from weakref import ref

        asyncio: Any = sys.modules.get("_asyncio")
        tasks, step = list_some_tasks(_MOST_TASKS, self._looks)
        found: Watched = []
        for task in tasks:
            future = getattr(task, "_fut_waiter", None)
            is_known = isinstance(future, asyncio.Future)
            if future is None or (is_known and asyncio.Future.done(future)):
                continue  # it runs, or is about to
            place = self._find_place(sampler, asyncio.Task.get_coro(task))
            if place is None:
                continue
            place.tasks += step
            if is_known:
                found.append((place, ref(future)))
        return found

    def _find_place(self, sampler: _core.Sampler, coro: object) -> _Place | None:
        frames, waits_for = follow_coroutine(coro)
        key = tuple(frames), waits_for
        place = self._places.get(key)
        if place is None and frames and len(self._places) < _MOST_PLACES:
            stack = sampler.put(frames)
            if stack is not None:
                place = self._places[key] = _Place(stack, waits_for)
        return place


def _list_ended(waits: Watched) -> list[tuple[_Place, bool]]:
    done: Any = getattr(sys.modules.get("_asyncio"), "Future", None)
    found = []
    for place, wait in waits:
        future = wait()
        found.append((place, future is None or done.done(future)))
        del future  # the program's last reference to it may end any time
    return found
