"""Samples as slices: how long a function stayed at one depth of a thread's stack."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from sonde.analysis.profile import Place, Profile, Sample

_GAP = 2  # after this many periods without a sample, the thread may have been anywhere


class Slice(NamedTuple):
    """The time for which one place stayed at one depth of a thread's stack."""

    start_ns: int
    depth: int
    end_ns: int
    place: Place


class Slicer:
    """Makes slices of the samples of one thread. A pause between samples ends all slices."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self._open: list[tuple[int, Place]] = []
        self._end_ns = 0

    def copy(self) -> Slicer:
        """Return a copy that can go on while this one stays as it is."""
        new = Slicer(self.profile)
        new._open, new._end_ns = list(self._open), self._end_ns
        return new

    def feed(self, sample: Sample) -> Iterator[Slice]:
        """Add a sample; yield the slices that it ends."""
        if sample.ns[0] == 0:
            return  # only CPU time that was settled later: it comes beside the sample it is of
        path = self.profile.path(sample.frames)
        follows = sample.start_ns - self._end_ns <= _GAP * self.profile.period_ns
        kept = self._count_same(path) if follows else 0
        yield from self._close(kept)
        # A sample must not overlap the one before.
        start_ns = max(sample.start_ns, self._end_ns)
        self._open += [(start_ns, place) for place in path[kept:]]
        self._end_ns = max(self._end_ns, sample.start_ns + sample.ns[0])

    def finish(self) -> Iterator[Slice]:
        """Yield the slices that are still open, as if they ended now."""
        for depth, (start_ns, place) in enumerate(self._open):
            if self._end_ns > start_ns:
                yield Slice(start_ns, depth, self._end_ns, place)

    def _count_same(self, path: tuple[Place, ...]) -> int:
        kept = 0
        for (_, old), new in zip(self._open, path, strict=False):
            if old != new:
                break
            kept += 1
        return kept

    def _close(self, kept: int) -> Iterator[Slice]:
        while len(self._open) > kept:
            start_ns, place = self._open.pop()
            if self._end_ns > start_ns:
                yield Slice(start_ns, len(self._open), self._end_ns, place)


def iter_slices(profile: Profile, samples: Iterable[Sample]) -> Iterator[Slice]:
    """Yield the slices of one thread's samples."""
    slicer = Slicer(profile)
    for sample in samples:
        yield from slicer.feed(sample)
    yield from slicer.finish()
