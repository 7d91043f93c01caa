"""Where regions go on a timeline: on their thread where they nest, else side by side."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

EVER_NS = 2**62  # the end of what has none
NONE = -1  # for a region without a parent
_MANY = 10_000  # ended regions that are kept before they are cleared away


class Open(NamedTuple):
    """A region that has begun and, as far as was read, not ended."""

    end_ns: int
    id: int
    family: int  # its outermost ancestor of the same thread
    thread: int


class Misfit(NamedTuple):
    """A region that does not nest on its thread: it gets a track beside it."""

    id: int
    family: int
    track: int  # regions of one track of one family nest


class Stray(NamedTuple):
    """A region whose parent is not the one around it: it was begun for it elsewhere."""

    id: int
    parent: int


class Nest:
    """The regions of one process. Feed it in the order of start, the longer and older ones first.

    A family that does not nest, ends in another thread, or lies in another family without being its
    child (tasks that take turns) is set apart as a whole. That is known only when the last of it
    was seen, so a second nest that is given `apart` has the whole truth."""

    def __init__(self, apart: set[int] | None = None) -> None:
        self.apart: set[int] = set() if apart is None else apart
        self.threads: set[int] = set()
        self.misfits: list[Misfit] = []
        self.strays: list[Stray] = []
        self._open: dict[int, Open] = {}
        self._stacks: dict[int, list[Open]] = {}
        self._tracks: dict[int, _Tracks] = {}
        self._aside: dict[int, Misfit] = {}

    def feed(
        self,
        ids: Sequence[int],
        parents: Sequence[int],
        threads: Sequence[int],
        end_threads: Sequence[int],
        starts: Sequence[int],
        ends: Sequence[int],
    ) -> None:
        """Place the next regions."""
        is_open, stacks, apart = self._open, self._stacks, self.apart
        for id_, parent, thread, end_thread, start, end in zip(
            ids, parents, threads, end_threads, starts, ends, strict=True
        ):
            if id_ in self._aside:
                self._repeat(id_, end)
                continue
            above = is_open.get(parent)
            near = above is not None and above[3] == thread and above[0] > start
            family = above[2] if near else id_  # type: ignore[index]  # near: there is one
            if parent != NONE and not near:
                self.strays.append(Stray(id_, parent))
            region = Open(end, id_, family, thread)
            is_open[id_] = region
            stack = stacks.get(thread)
            if stack is None:
                stack = stacks[thread] = []
                self.threads.add(thread)
            while stack and stack[-1][0] <= start:
                is_open.pop(stack.pop()[1], None)
            # What was begun for a parent elsewhere still ran inside of what was open here.
            fits = not stack or (
                end <= stack[-1][0] and (stack[-1][1] == parent or (parent != NONE and not near))
            )
            if fits and thread == end_thread and family not in apart:
                stack.append(region)
                continue
            if not fits:
                apart.add(stack[-1][2])
            apart.add(family)
            self._put_aside(region, parent, start)

    def settle(self) -> None:
        """Make ready for rows that are fed later and may have begun earlier: what is unfinished on
        a thread is fed again, and what has ended was written behind all that it holds."""
        for stack in self._stacks.values():
            for region in stack:
                self._open.pop(region.id, None)
            stack.clear()

    def take(self) -> tuple[list[Misfit], list[Stray]]:
        """What was found since the last time."""
        found = self.misfits, self.strays
        self.misfits, self.strays = [], []
        return found

    def _repeat(self, id_: int, end: int) -> None:
        """What was put aside while it was unfinished stays there, and may have an end now."""
        misfit = self._aside[id_]
        self.misfits.append(misfit)
        if id_ in self._open:
            self._open[id_] = self._open[id_]._replace(end_ns=end)
        if misfit.family in self._tracks:
            self._tracks[misfit.family].end(id_, end)

    def _put_aside(self, region: Open, parent: int, start: int) -> None:
        tracks = self._tracks.get(region.family)
        if tracks is None:
            tracks = self._tracks[region.family] = _Tracks()
        track = tracks.place(region, parent, start)
        self._aside[region.id] = Misfit(region.id, region.family, track)
        self.misfits.append(self._aside[region.id])
        if len(self._open) > _MANY * (1 + len(self._stacks)):
            for old in [one for one in self._open.values() if one.end_ns <= start]:
                del self._open[old.id]
                self._aside.pop(old.id, None)
            for family in [key for key, one in self._tracks.items() if one.end_ns <= start]:
                del self._tracks[family]


class _Tracks:
    """The tracks of one family: on each a region is child of the one around it."""

    def __init__(self) -> None:
        self.end_ns = 0
        self._stacks: list[list[Open]] = []
        self._place: dict[int, int] = {}  # of each open region
        self._busy: list[tuple[int, int]] = []  # a heap: until when, which track
        self._free: list[int] = []

    def place(self, region: Open, parent: int, start: int) -> int:
        self.end_ns = max(self.end_ns, region.end_ns)
        while self._busy and self._busy[0][0] <= start:
            heappush(self._free, heappop(self._busy)[1])
        track = self._find_parents(region, parent, start)
        if track is None:
            if not self._free:
                self._free.append(len(self._stacks))
                self._stacks.append([])
            track = heappop(self._free)
            heappush(self._busy, (region.end_ns, track))
            for old in self._stacks[track]:
                self._place.pop(old.id, None)
            self._stacks[track] = []
        self._stacks[track].append(region)
        self._place[region.id] = track
        return track

    def end(self, id_: int, end: int) -> None:
        """A region that was here as unfinished has an end now."""
        track = self._place.get(id_)
        if track is None:
            return
        stack = self._stacks[track]
        stack[:] = [one._replace(end_ns=end) if one.id == id_ else one for one in stack]
        if stack[0].id == id_:
            self._busy = [(end, at) if at == track else (until, at) for until, at in self._busy]
            heapify(self._busy)
        self.end_ns = max((until for until, _ in self._busy), default=end)

    def _find_parents(self, region: Open, parent: int, start: int) -> int | None:
        track = self._place.get(parent)
        if track is None:
            return None
        stack = self._stacks[track]
        while stack and stack[-1].end_ns <= start:
            self._place.pop(stack.pop().id, None)
        fits = bool(stack) and stack[-1].id == parent and region.end_ns <= stack[-1].end_ns
        return track if fits else None
