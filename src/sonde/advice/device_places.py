"""Which of the places where the time went are waits for a GPU, as its runtime's calls say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sonde.analysis.hot_places import HotPlace
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


# What copies or waits, if a line has several calls: the ends of their names.
_CALLS_THAT_WAIT = {
    "bool", "copy_", "cpu", "cuda", "float", "int", "item", "masked_select", "nonzero", "numpy",
    "synchronize", "to", "tolist",
}  # fmt: skip


def mark_device(
    recording: HeldRecording, inside: str, places: Sequence[HotPlace]
) -> list[HotPlace]:
    """Return the places; those whose time is in calls that wait for a GPU say so: a thread that
    waits for a GPU mostly looks as if it worked. `inside` is true for rows of the same time."""
    if recording.find_empty([_TABLE]):
        return list(places)
    calls = recording.query(_CALLS.format(inside=inside)).to_pylist()
    marked = list(places)
    # What was waited for at a line is given out once, first to the calls that are known to wait.
    for at in sorted(range(len(places)), key=lambda at: not _may_wait(places[at])):
        marked[at] = _mark(places[at], calls)
    return marked


def _may_wait(place: HotPlace) -> bool:
    return place.call.rpartition(".")[2] in _CALLS_THAT_WAIT


def _mark(place: HotPlace, calls: Sequence[dict[str, Any]]) -> HotPlace:
    """Return the place as it is, or as a wait; take what it waited for away from the calls."""
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
    for call in here:
        call["time_s"] *= max(0.0, 1 - place.time_s / time_s)
    kind, instead = (_COPY_KIND, _COPY) if upload_s > time_s / 2 else (_WAIT_KIND, _WAIT)
    return replace(place, state="waiting", kind=kind, instead=instead)
