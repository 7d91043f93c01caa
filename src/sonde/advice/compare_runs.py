"""Two runs of one program: whether how long they took can be compared."""

from __future__ import annotations

from collections.abc import Sequence

from sonde.advice.period import Period
from sonde.session.ending import find_ending
from sonde.store.held import HeldRecording
from sonde.words import name_program

# Programs that run until somebody ends them.
_SERVERS = {"celery", "daphne", "gunicorn", "hypercorn", "uvicorn", "waitress-serve"}
_SPANS = """
SELECT name, COUNT(*) AS spans, SUM(dur_ns) AS dur_ns FROM event.span WHERE {inside} GROUP BY ALL"""
_PART = 0.5  # of a run that regions of one name take at least, if they are its work
_MORE = 1.1  # times as many of them, or as long: it did more, and slower


def find_runs(sides: Sequence[tuple[HeldRecording, Period]]) -> list[float] | None:
    """Return how many seconds both ran, if they are whole runs of one program: those can be
    compared as such, where the program has no steps. The time to start is left out. How long a
    server ran, or what a signal has ended, says nothing."""
    firsts = [recording.sessions[0] for recording, _ in sides]
    programs = {name_program(one.meta.argv) for one in firsts}
    states = [one.find_state() for recording, _ in sides for one in recording.sessions]
    ends = [find_ending(one) for one in firsts]
    if len(programs) > 1 or "running" in states or programs & _SERVERS:
        return None
    if any(end is not None and end.signal for end in ends):
        return None
    return [(cut.end_ns - cut.start_ns) / 1e9 for _, cut in sides]


def did_other_work(sides: Sequence[tuple[HeldRecording, Period]], runs_s: Sequence[float]) -> bool:
    """Return whether one run did more of what it is there for, in less time for each: a program
    that runs for a given time, and was made faster, is none that takes longer. What it is there
    for are the regions that take most of the first, if the program has any."""
    if any(recording.find_empty(["event.span"]) for recording, _ in sides):
        return False
    before, after = (
        {row["name"]: row for row in recording.query(_SPANS.format(**cut.words)).to_pylist()}
        for recording, cut in sides
    )
    shared = sorted(before.keys() & after.keys(), key=lambda name: before[name]["dur_ns"])
    if not shared:
        return False
    old, new = before[shared[-1]], after[shared[-1]]
    if old["dur_ns"] < 1e9 * _PART * runs_s[0]:
        return False
    more: float = new["spans"] / old["spans"]
    longer: float = (new["dur_ns"] / new["spans"]) / (old["dur_ns"] / old["spans"])
    return (more > _MORE and longer < 1 / _MORE) or (more < 1 / _MORE and longer > _MORE)
