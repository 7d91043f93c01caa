"""Where regions are drawn on a timeline: on their thread if they nest, else beside it."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

FOREVER_NS = 2**62  # the end of a region that has not ended
NONE = -1  # the parent of a region without one
_MANY = 10_000  # ended regions that are kept before they are forgotten


Open = tuple[int, int, int]  # of a region on its thread: its end, its id, its family


class _AsideRegion(NamedTuple):
    """A region that is not drawn on its thread."""

    end_ns: int
    family: int  # its outermost ancestor of the same thread
    thread: int


class MisfitRegion(NamedTuple):
    """A region that does not nest on its thread and gets a track beside it."""

    id: int
    family: int
    track: int  # regions on one track of a family nest


class StrayRegion(NamedTuple):
    """A region whose parent is not the enclosing one: it was begun for a parent elsewhere."""

    id: int
    parent: int


class RegionLayout:
    """The regions of one process. Feed them in the order of their start, longer ones first.

    A family (a region and all below it) that does not nest, ends in another thread, or lies in
    another family without being its child, as alternating tasks do, is set apart as a whole. That
    is known only after its last region, so a second pass is given `apart` of the first."""

    def __init__(self, apart: set[int] | None = None) -> None:
        self.apart: set[int] = set() if apart is None else apart
        self.misfits: list[MisfitRegion] = []
        self.strays: list[StrayRegion] = []
        self._stacks: dict[int, list[Open]] = {}
        self._tracks: dict[int, _Tracks] = {}
        # The regions that were put aside, until they end.
        self._aside: dict[int, MisfitRegion] = {}
        self._beside: dict[int, _AsideRegion] = {}
        self._most = _MANY

    def feed(
        self,
        ids: Sequence[int],
        parents: Sequence[int],
        threads: Sequence[int],
        end_threads: Sequence[int],
        starts: Sequence[int],
        ends: Sequence[int],
    ) -> None:
        """Place more regions."""
        apart, aside, stacks = self.apart, self._aside, self._stacks
        stack: list[Open] = []
        last = None
        for id_, parent, thread, end_thread, start, end in zip(
            ids, parents, threads, end_threads, starts, ends, strict=True
        ):
            if thread != last:
                stack, last = stacks.setdefault(thread, []), thread
            while stack and stack[-1][0] <= start:
                stack.pop()
            # The fast path for nearly all regions: a million take half a second.
            if thread == end_thread and id_ not in aside:
                if not stack:
                    if parent == NONE and id_ not in apart:
                        stack.append((end, id_, id_))
                        continue
                else:
                    until, above, family = stack[-1]
                    if above == parent and end <= until and family not in apart:
                        stack.append((end, id_, family))
                        continue
            self._place(stack, id_, parent, thread, end_thread, start, end)

    def _place(
        self,
        stack: list[Open],
        id_: int,
        parent: int,
        thread: int,
        end_thread: int,
        start: int,
        end: int,
    ) -> None:
        """Place a region that does not simply lie inside its parent."""
        if id_ in self._aside:
            self._repeat(id_, end)
            return
        family = self._find_family(stack, parent, thread, start)
        near = family is not None
        if parent != NONE and not near:
            self.strays.append(StrayRegion(id_, parent))
        if family is None:
            family = id_
        # A region begun for a parent elsewhere still ran inside what was open here.
        inside = bool(stack) and end <= stack[-1][0]
        fits = not stack or (inside and (stack[-1][1] == parent or (parent != NONE and not near)))
        if fits and thread == end_thread and family not in self.apart:
            stack.append((end, id_, family))
            return
        if not fits:
            self.apart.add(stack[-1][2])
        self.apart.add(family)
        self._put_aside(id_, parent, family, thread, start, end)

    def _find_family(self, stack: list[Open], parent: int, thread: int, start: int) -> int | None:
        """Return the family of a parent that is open on the same thread, or None."""
        for _, id_, family in stack:
            if id_ == parent:
                return family
        known = self._beside.get(parent)
        if known is not None and known.thread == thread and known.end_ns > start:
            return known.family
        return None

    def settle(self) -> None:
        """Prepare for later rows, which may have begun earlier: unfinished regions are fed again,
        and an ended region is written after all regions inside it."""
        for stack in self._stacks.values():
            stack.clear()

    def take(self) -> tuple[list[MisfitRegion], list[StrayRegion]]:
        """Return the misfits and strays found since the last call."""
        found = self.misfits, self.strays
        self.misfits, self.strays = [], []
        return found

    def _repeat(self, id_: int, end: int) -> None:
        """Keep a region that was put aside unfinished where it is; it may have ended by now."""
        misfit = self._aside[id_]
        self.misfits.append(misfit)
        if id_ in self._beside:
            self._beside[id_] = self._beside[id_]._replace(end_ns=end)
        if misfit.family in self._tracks:
            self._tracks[misfit.family].end(id_, end)

    def _put_aside(
        self, id_: int, parent: int, family: int, thread: int, start: int, end: int
    ) -> None:
        tracks = self._tracks.get(family)
        if tracks is None:
            tracks = self._tracks[family] = _Tracks()
        misfit = MisfitRegion(id_, family, tracks.place(id_, parent, start, end))
        self._aside[id_] = misfit
        self._beside[id_] = _AsideRegion(end, family, thread)
        self.misfits.append(misfit)
        if len(self._beside) > self._most:
            for old in [key for key, one in self._beside.items() if one.end_ns <= start]:
                del self._beside[old], self._aside[old]
            for ended in [key for key, one in self._tracks.items() if one.end_ns <= start]:
                del self._tracks[ended]
            self._most = _MANY + 2 * len(self._beside)


class _Tracks:
    """The tracks of one family: on each, a region is a child of the enclosing one."""

    def __init__(self) -> None:
        self.end_ns = 0
        self._stacks: list[list[tuple[int, int]]] = []  # for each track: ends and ids
        self._at: dict[int, int] = {}  # the track of each open region
        self._busy: list[tuple[int, int]] = []  # a heap of (busy until, track)
        self._free: list[int] = []

    def place(self, id_: int, parent: int, start: int, end: int) -> int:
        """Return the track for a region: its parent's if it fits there, else a free one."""
        self.end_ns = max(self.end_ns, end)
        while self._busy and self._busy[0][0] <= start:
            heappush(self._free, heappop(self._busy)[1])
        track = self._find_parents(parent, start, end)
        if track is None:
            if not self._free:
                self._free.append(len(self._stacks))
                self._stacks.append([])
            track = heappop(self._free)
            heappush(self._busy, (end, track))
            for _, old in self._stacks[track]:
                self._at.pop(old, None)
            self._stacks[track] = []
        self._stacks[track].append((end, id_))
        self._at[id_] = track
        return track

    def end(self, id_: int, end: int) -> None:
        """Set the end of a region that was placed unfinished."""
        track = self._at.get(id_)
        if track is None:
            return
        stack = self._stacks[track]
        stack[:] = [(end, one) if one == id_ else (until, one) for until, one in stack]
        if stack[0][1] == id_:
            self._busy = [(end, at) if at == track else (until, at) for until, at in self._busy]
            heapify(self._busy)
        self.end_ns = max((until for until, _ in self._busy), default=end)

    def _find_parents(self, parent: int, start: int, end: int) -> int | None:
        track = self._at.get(parent)
        if track is None:
            return None
        stack = self._stacks[track]
        while stack and stack[-1][0] <= start:
            self._at.pop(stack.pop()[1], None)
        fits = bool(stack) and stack[-1][1] == parent and end <= stack[-1][0]
        return track if fits else None
