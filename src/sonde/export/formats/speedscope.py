"""speedscope: every thread in the order of time, left heavy, or sandwiched."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import groupby
from typing import IO

from sonde.analysis.profile import Frame, Place, Profile, Sample, Thread

SUFFIX = ".speedscope.json"
TEXT = True
IN_ORDER = True  # does it need the order of time?
OPEN = "drop it on https://www.speedscope.app"

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def write(profile: Profile, file: IO[str]) -> None:
    """One sampled profile per thread; weights are nanoseconds, and times since the first sample."""
    frames = _Frames(profile)
    groups = groupby(profile.iter_samples(), key=lambda sample: sample.thread)
    threads = [_Track(profile, thread, samples, frames) for thread, samples in groups]
    threads = [track for track in threads if track.weights]
    if not threads:
        raise profile.lack()
    several = len({track.thread.process for track in threads}) > 1
    document = {
        "$schema": _SCHEMA,
        "exporter": "sonde",
        "name": f"{profile.label}, {profile.weight} time",
        "activeProfileIndex": 0,
        "shared": {"frames": [_describe(place) for place in frames.places]},
        "profiles": [track.describe(several) for track in threads],
    }
    # Not json.dump: it writes number by number, three times slower.
    file.write(json.dumps(document, separators=(",", ":")) + "\n")


class _Frames:
    """Places by number, and stacks as lists of such numbers."""

    def __init__(self, profile: Profile) -> None:
        self.places: dict[Place, int] = {}
        self._profile = profile
        self._known: dict[int, list[int]] = {}

    def number(self, frames: tuple[Frame, ...]) -> list[int]:
        """The numbers of a stack; its samples share one list."""
        path = self._profile.path(frames)  # kept by the profile, so its id stays its own
        if id(path) not in self._known:
            self._known[id(path)] = [self.places.setdefault(p, len(self.places)) for p in path]
        return self._known[id(path)]


class _Track:
    """The samples of one thread; equal ones in a row are one."""

    def __init__(
        self, profile: Profile, thread: Thread, samples: Iterable[Sample], frames: _Frames
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
        """The profile of this thread as speedscope reads it."""
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
