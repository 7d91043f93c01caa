"""speedscope: every thread in the order of time, left heavy, or sandwiched."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import groupby
from typing import IO

from sonde.analysis.profile import Place, Profile, ProfileFrame, RecordedThread, Sample

SUFFIX = ".speedscope.json"
TEXT = True
IN_ORDER = True  # whether it needs the order of time
OPEN = "drop it on https://www.speedscope.app"

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def write(profile: Profile, file: IO[str]) -> None:
    """Write one sampled profile per thread; weights are ns, times count from the first sample."""
    frames = _Frames(profile)
    groups = groupby(profile.iter_samples(), key=lambda sample: sample.thread)
    threads = [_Track(profile, thread, samples, frames) for thread, samples in groups]
    threads = [track for track in threads if track.weights]
    if not threads:
        raise profile.explain_no_weight()
    several = len({track.thread.process for track in threads}) > 1
    document = {
        "$schema": _SCHEMA,
        "exporter": "sonde",
        "name": f"{profile.label}, {profile.weight} time",
        "activeProfileIndex": 0,
        "shared": {"frames": [_describe(place) for place in frames.places]},
        "profiles": [track.describe(several) for track in threads],
    }
    # Not json.dump, which writes number by number and is three times slower.
    file.write(json.dumps(document, separators=(",", ":")) + "\n")


class _Frames:
    """Gives places numbers, and stacks as lists of such numbers."""

    def __init__(self, profile: Profile) -> None:
        self.places: dict[Place, int] = {}
        self._profile = profile
        self._known: dict[int, list[int]] = {}

    def number(self, frames: tuple[ProfileFrame, ...]) -> list[int]:
        """Return the numbers of a stack; its samples share one list."""
        path = self._profile.path(frames)  # the profile keeps it, so its id stays valid
        if id(path) not in self._known:
            self._known[id(path)] = [self.places.setdefault(p, len(self.places)) for p in path]
        return self._known[id(path)]


class _Track:
    """The samples of one thread; equal samples in a row become one."""

    def __init__(
        self, profile: Profile, thread: RecordedThread, samples: Iterable[Sample], frames: _Frames
    ) -> None:
        self.thread = thread
        self.stacks: list[list[int]] = []
        self.weights: list[int] = []
        self.start_ns: int | None = None
        for sample in samples:
            if self.start_ns is None:
                self.start_ns = sample.start_ns - profile.span_ns[0]
            self._add(frames.number(sample.frames), sample.ns[profile.by])

    def _add(self, stack: list[int], ns: int) -> None:
        if not ns:
            return
        if self.stacks and self.stacks[-1] == stack:
            self.weights[-1] += ns
        else:
            self.stacks.append(stack)
            self.weights.append(ns)

    def describe(self, several: bool) -> dict[str, object]:
        """Return the profile of this thread as speedscope reads it."""
        start = self.start_ns or 0
        process = f"{self.thread.process.label}: " if several else ""
        return {
            "type": "sampled",
            "name": process + self.thread.label,
            "unit": "nanoseconds",
            "startValue": start,
            "endValue": start + sum(self.weights),
            "samples": self.stacks,
            "weights": self.weights,
        }


def _describe(place: Place) -> dict[str, object]:
    described: dict[str, object] = {"name": place.func}
    if place.file:
        described |= {"file": place.file, "line": place.line}
    return described
