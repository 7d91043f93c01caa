"""What two recordings waited for: by the function of the user's own code, and by kind."""

from __future__ import annotations

from sonde.advice.compare_measures import LESS, Measure
from sonde.advice.period import Period
from sonde.analysis.code_names import MINE, find_owner, shorten_file
from sonde.analysis.rest import is_at_rest
from sonde.analysis.wait_words import describe_wait
from sonde.store.recording import FrozenRecording
from sonde.words import shorten_func

_SAMPLES = """
SELECT {piece} AS piece, pid, thread, stack, wait, SUM(wall_ns)::DOUBLE AS ns
FROM python.stack_sample
WHERE {inside} AND idle GROUP BY ALL"""
_FRAMES = """
SELECT stack, depth, func, file FROM python.frame
WHERE stack IN (SELECT stack FROM python.stack_sample WHERE {inside} AND idle) ORDER BY depth"""
# Of all that was recorded: in a period, a worker may have waited for requests alone.
_FILES = "SELECT DISTINCT file FROM python.frame"
_TIME = "% of the time"
# Threads that have nothing to do are left out of all three.
WAITING = Measure("waiting", _TIME, "", LESS, 3.0, 10.0, False, has_zeros=True)
WAITING_IN = Measure(
    "waiting in a function", _TIME, "", LESS, 2.0, 10.0, False,
    is_keyed=True, least=2.0, has_zeros=True,
)  # fmt: skip
WAITING_FOR = Measure(
    "waiting by kind", _TIME, "", LESS, 2.0, 10.0, False,
    is_keyed=True, least=2.0, has_zeros=True,
)  # fmt: skip
_SEVERAL = 3  # processes: one of two may be the parent, which does something else
_NEARLY_ALL = 0.8  # of the time
MEASURES = (WAITING, WAITING_IN, WAITING_FOR)

Pieces = dict[str, list[float]]
Frames = list[tuple[str, str]]  # functions and files, the innermost first


class _Frame:
    """A frame as `is_at_rest` wants it."""

    __slots__ = ("file", "func")

    def __init__(self, func: str, file: str) -> None:
        self.func, self.file = func, file


Owners = dict[str, dict[int, float]]  # by key: the time of each process


def read_waits(
    recording: FrozenRecording, cut: Period, owners: Owners | None = None
) -> dict[str, Pieces]:
    """Return the time that threads waited in each piece, by the name of the measure and its key.
    `owners` learns which processes waited in each function."""
    stacks, folder = dict[int, Frames](), recording.sessions[0].meta.cwd
    for row in recording.query(_FRAMES.format(**cut.words)).to_pylist():
        stacks.setdefault(row["stack"], []).append((row["func"], row["file"]))
    has_mine = any(find_owner(one) == MINE for one in recording.query(_FILES)["file"].to_pylist())
    known: dict[tuple[int, bool, str | None], tuple[str, str] | None] = {}
    sums: dict[tuple[str, str], dict[int, float]] = {}
    for row in recording.query(_SAMPLES.format(**cut.words)).to_pylist():
        key = row["stack"], row["thread"] == row["pid"], row["wait"]
        if key not in known:
            stack, is_main, kind = key
            frames = stacks.get(stack, [])
            known[key] = _name_wait(frames, kind, folder, is_main=is_main, has_mine=has_mine)
        words = known[key]
        if words is None or not 0 <= row["piece"] < cut.count:
            continue
        share = row["ns"] / 1e7 / cut.piece_s
        if owners is not None:
            spent = owners.setdefault(words[0], {})
            spent[row["pid"]] = spent.get(row["pid"], 0.0) + share
        names = (WAITING.name, ""), (WAITING_IN.name, words[0]), (WAITING_FOR.name, words[1])
        for name in names:
            pieces = sums.setdefault(name, {})
            pieces[row["piece"]] = pieces.get(row["piece"], 0.0) + share
    found: dict[str, Pieces] = {measure.name: {} for measure in MEASURES}
    for (measure_name, where), pieces in sums.items():
        found[measure_name][where] = list(pieces.values())
    return found


def find_alone(owners: Owners, processes: int) -> dict[str, int]:
    """Return the process that waits in a function nearly alone, though there are several."""
    if processes < _SEVERAL:
        return {}
    most = {key: max(spent, key=lambda pid: spent[pid]) for key, spent in owners.items()}
    return {
        key: pid for key, pid in most.items()
        if owners[key][pid] >= _NEARLY_ALL * sum(owners[key].values())
    }  # fmt: skip


def _name_wait(
    frames: Frames, kind: str | None, folder: str | None, *, is_main: bool, has_mine: bool
) -> tuple[str, str] | None:
    """Return where a stack waits and for what; None if its thread has nothing to do."""
    path = [_Frame(func, file) for func, file in reversed(frames)]
    if not frames or is_at_rest(path, find_owner, is_main=is_main, has_mine=has_mine):
        return None
    own = next((one for one in frames if find_owner(one[1]) == MINE), frames[0])
    what = describe_wait(frames, kind) or "something in C (a lock, a file)"
    name = f"{shorten_func(own[0])} ({shorten_file(own[1], folder)}), waiting"
    return name, f"waiting for {what}"
