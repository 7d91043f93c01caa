"""Which of the places where the time went are waits for a GPU, as its runtime's calls say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sonde.analysis.awaits import make_inside
from sonde.analysis.hot_places import HotPlace
from sonde.analysis.window import Window
from sonde.store.held import HeldRecording

_TABLE = "python.cuda_call"
_CALLS = """
SELECT file, lineno, func, kind, direction, SUM(dur_ns) / 1e9 AS time_s
FROM python.cuda_call
WHERE {inside} AND file IS NOT NULL AND kind IN ('synchronize', 'copy') GROUP BY ALL
"""
_MOST = 0.5  # of a place's time that such calls take, to be what it is
_UPLOAD = "host to device"
_COPY_KIND, _COPY = (
    "copying to the GPU",
    "copy from pinned memory with non_blocking=True, in few large pieces; what each step needs "
    "again, copy once and keep on the GPU",
)
_WAIT_KIND, _WAIT = (
    "waiting for the GPU",
    "it waits until the GPU has done all that it was given: read results on the host seldom and "
    "all at once, and keep sums and metrics on the GPU. If the GPU is busy meanwhile, it sets the "
    "pace: `sonde modules` tells what it works on",
)


def mark_device(
    recording: HeldRecording, window: Window, places: Sequence[HotPlace]
) -> list[HotPlace]:
    """Return the places; those whose time is in calls that wait for a GPU say so: a thread that
    waits for a GPU mostly looks as if it worked."""
    if recording.find_empty([_TABLE]):
        return list(places)
    calls = recording.query(_CALLS.format(inside=make_inside(window))).to_pylist()
    return [_mark(place, calls) for place in places]


def _mark(place: HotPlace, calls: Sequence[dict[str, Any]]) -> HotPlace:
    here = [
        call
        for call in calls
        if (call["file"], call["lineno"]) == (place.file, place.line)
        and place.func.endswith(call["func"] or "")
    ]
    time_s = sum(call["time_s"] for call in here)
    if place.state != "working" or time_s < _MOST * place.time_s:
        return place
    upload_s = sum(call["time_s"] for call in here if call["direction"] == _UPLOAD)
    kind, instead = (_COPY_KIND, _COPY) if upload_s > time_s / 2 else (_WAIT_KIND, _WAIT)
    return replace(place, state="waiting", kind=kind, instead=instead)
