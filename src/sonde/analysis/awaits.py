"""What asyncio's tasks await in the user's own code, and how long such a wait lasts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sonde.analysis.code_names import MINE, find_owner, name_call
from sonde.analysis.wait_words import describe_wait
from sonde.analysis.window import Window
from sonde.store.recording import FrozenRecording

_SUMS = ("awaited_ns", "soon_ended", "soon_ns", "later", "later_ended", "later_ns")
_WAITS = """
SELECT stack, SUM(tasks::DOUBLE / looks * wall_ns) AS awaited_ns,
       SUM(soon_ended)::DOUBLE AS soon_ended, SUM(soon_ns)::DOUBLE AS soon_ns,
       SUM(later)::DOUBLE AS later, SUM(later_ended)::DOUBLE AS later_ended,
       SUM(later_ns)::DOUBLE AS later_ns
FROM python.task_wait WHERE {inside} GROUP BY stack"""
_FRAMES = """
SELECT stack, depth, func, file, lineno FROM python.frame
WHERE stack IN (SELECT stack FROM python.task_wait) ORDER BY depth"""
TABLES = "python.task_wait python.frame"
# A task that awaits one of these has nothing to do, as a thread of a pool without work has.
_RESTS = ("an item from a queue", "an event")

Frame = tuple[str, str, int]  # function, file and line


@dataclass
class Await:
    """One place of the program's own code that tasks wait at."""

    func: str
    file: str
    line: int
    awaited: str  # what that line calls: `asyncio.sleep`
    awaited_ns: float = 0.0  # by all tasks together
    # Waits that were looked at again after some 10 ms, and after half a second.
    soon_ended: float = 0.0
    soon_ns: float = 0.0
    later: float = 0.0
    later_ended: float = 0.0
    later_ns: float = 0.0
    words: str = ""  # what that waits for: `a lock`; empty if unknown
    callers: tuple[Frame, ...] = ()  # coroutines of the user's own that await it, nearest first

    @property
    def ended(self) -> float:
        """How many waits were seen to end: what `wait_ns` rests on."""
        return self.later_ended if self._is_long else self.soon_ended

    @property
    def wait_ns(self) -> float | None:
        """How long a wait lasts, on average; None if none was seen to end."""
        watched_ns = self.later_ns if self._is_long else self.soon_ns
        return watched_ns / self.ended if self.ended else None

    @property
    def _is_long(self) -> bool:
        # If most end within half a second, others begin and end between two looks.
        return self.later > 0 and self.later_ended < self.later / 2


def make_inside(window: Window) -> str:
    """Return the condition for the rows of a window."""
    since_us, until_us = window.since_ns // 1000, window.until_ns // 1000 + 1
    return f"(ts > make_timestamptz({since_us}) AND ts <= make_timestamptz({until_us}))"


def read_awaits(
    recording: FrozenRecording, inside: str, own: Callable[[str], str] = find_owner
) -> list[Await]:
    """Return the places of the user's own code that tasks waited at, the most waited at first.
    Tasks that wait for work are left out. `inside` is the condition for the rows that count, `own`
    says whose code a file is."""
    rows = recording.query(_WAITS.format(inside=inside)).to_pylist()
    if not rows:
        return []
    stacks: dict[int, list[Frame]] = {}
    for row in recording.query(_FRAMES).to_pylist():
        stacks.setdefault(row["stack"], []).append((row["func"], row["file"], row["lineno"]))
    found: dict[tuple[str, ...], Await] = {}
    for row in rows:
        place = _find_place(stacks.get(row["stack"], []), own)
        if place is None:
            continue
        one = found.setdefault((place.func, place.file, str(place.line), place.awaited), place)
        for name in _SUMS:
            setattr(one, name, getattr(one, name) + row[name])
    return sorted(found.values(), key=lambda one: -one.awaited_ns)


def _find_place(frames: Sequence[Frame], own: Callable[[str], str]) -> Await | None:
    """Return the place of a task, whose frames come the innermost first."""
    at = next((i for i, one in enumerate(frames) if own(one[1]) == MINE), None)
    if at is None or describe_wait([one[:2] for one in frames[:at]]) in _RESTS:
        return None
    func, file, line = frames[at]
    # `async with lock` goes through a method that only awaits the one that tells something.
    inner = at - 2 if at > 1 and frames[at - 1][0].endswith("__aenter__") else at - 1
    awaited = name_call(*frames[inner][:2]) if at else "a future"
    words = describe_wait([one[:2] for one in frames[:at]])
    callers = tuple(one for one in frames[at + 1 :] if own(one[1]) == MINE)
    return Await(func, file, line, awaited, words=words, callers=callers)
