"""A closer look at a live job: for a few seconds more samples, and native frames now and then."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from sonde import _core
from sonde.advice.finding import Advice, Finding
from sonde.advice.judge import advise
from sonde.analysis.code_names import MINE, find_owner, name_call, shorten_file
from sonde.errors import ConfigError, Error
from sonde.session import Session, stack_table
from sonde.session.steering import configure, inspect
from sonde.store.recording import open_recording
from sonde.words import shorten_func

_KEY = "stack.every"
_EVERY_S = 0.001
_MOST = 8  # processes that are looked at: of a large job, the first ranks stand for the others
_NATIVE = 5  # times that native frames are read of each process
_ANSWER_S = 5.0
_PIECES = 3
_PLACES = 4  # where tasks wait that are named
_INNER = 3  # native functions that are named, the innermost ones


@dataclass
class CloserLook:
    """What was done in a closer look, and what it showed."""

    seconds: float
    pids: Sequence[int]
    before_s: float  # time between two samples otherwise
    advice: Advice  # about these seconds alone
    native: Counter[str] = field(default_factory=Counter)  # innermost functions of main threads
    awaits: Counter[str] = field(default_factory=Counter)  # what asyncio's tasks wait for
    notes: list[str] = field(default_factory=list)

    def to_values(self) -> dict[str, object]:
        """Return what was done and seen as JSON has it."""
        return {
            "dur_ns": round(self.seconds * 1e9),
            "pids": list(self.pids),
            "every_ns": round(_EVERY_S * 1e9),
            "every_before_ns": round(self.before_s * 1e9),
            "advice": json.loads(self.advice.to_json()),
            "native": dict(self.native),
            "awaits": dict(self.awaits),
            "notes": self.notes,
        }

    def describe(self, findings: Sequence[Finding]) -> Iterator[str]:
        """Yield what was done, and whether it confirms what was found in the whole recording."""
        yield (f"looked closer for {self.seconds:g} s at {_name(self.pids)}: "
               f"{1 / _EVERY_S:,.0f} samples a second instead of {1 / self.before_s:,.0f}"
               + (f", native frames {_NATIVE} times" if self.native else "")
               + "; now as before")  # fmt: skip
        now = {one.rule: one for one in self.advice.findings}
        judged = {one.rule for one in self.advice.outcomes if one.judged}
        for one in findings:
            seen = now.get(one.rule)
            if seen is not None:
                more = f", {seen.line}" if seen.line and seen.line != one.line else ""
                yield f"  {one.rule}: seen again in {seen.fired} of {seen.judged} pieces{more}"
            elif one.rule in judged:
                yield f"  {one.rule}: not seen in these seconds"
            else:
                yield f"  {one.rule}: these seconds are too short to say"
        known = {one.rule for one in findings}
        for one in self.advice.findings:
            if one.rule not in known:
                line = shorten_file(one.line, self.advice.folder)
                yield f"  only now: {one.severity}: {one.title}  [{one.rule}]  {line}"
        total = self.native.total()
        for stack, count in self.native.most_common(_INNER):
            yield f"  native: {count} of {total} times in {stack}"
        for place, count in self.awaits.most_common(_PLACES):
            mean = f"{count / _NATIVE:.3g}"
            tasks = "1 task at a time awaits" if mean == "1" else f"{mean} tasks at a time await"
            yield f"  asyncio: {tasks} {place}"
        yield from (f"  {note}" for note in self.notes)


def look_closer(target: str, seconds: float) -> CloserLook:
    """Sample the live processes of a target faster for a while, and judge only that time."""
    sessions = [one for one in open_recording(target).add_relatives().sessions
                if one.is_alive() and one.host == os.uname().nodename][:_MOST]  # fmt: skip
    if not sessions:
        raise ConfigError(f"{target} does not run on this machine: there is nothing to look at")
    pids, folder = [one.pid for one in sessions], sessions[0].meta.cwd
    print(f"sonde: looking closer at {_name(pids)} for {seconds:g} s", file=sys.stderr)
    native, awaits, notes = Counter[str](), Counter[str](), list[str]()
    loops = [one for one in sessions if _has_loop(one)]
    with _sample_faster(sessions) as before_s:
        end = time.monotonic() + seconds
        for at in range(_NATIVE):
            if not notes:
                notes += _read_native(pids, folder, native)
            _read_awaits(loops, folder, awaits)
            time.sleep(max(0.0, (end - time.monotonic()) / (_NATIVE - at)))
        # It ends before the samples are slower again.
        advice = advise(target, since=f"{seconds:g}s", piece_s=seconds / _PIECES)
    return CloserLook(seconds, pids, before_s, advice, native, awaits, notes)


@contextmanager
def _sample_faster(sessions: Sequence[Session]) -> Iterator[float]:
    """Change how often stacks are sampled, and change it back whatever happens."""
    before = [(one, float(one.read_config()[_KEY])) for one in sessions]
    changed = []
    try:
        for one, every_s in before:
            if every_s > _EVERY_S:
                changed.append((one, every_s))
                configure(one, {_KEY: _EVERY_S}, _ANSWER_S)
        yield max(every_s for _, every_s in before)
    finally:
        for one, every_s in changed:
            if one.is_alive():
                configure(one, {_KEY: every_s}, _ANSWER_S)


def _read_native(pids: Sequence[int], folder: str | None, found: Counter[str]) -> list[str]:
    """Count the innermost functions of each main thread; return why that is not possible."""
    from sonde.attach import native  # only here: it is seldom asked for

    for pid in pids:
        try:
            threads = native.read_stacks(pid).threads
        except (Error, OSError) as error:
            return [f"no native frames: {error}"]
        for one in (one for one in threads if one.thread == pid and one.frames):
            inner = [frame for frame in one.frames[:_INNER] if frame.is_native]
            words = [f"{frame.func} ({os.path.basename(frame.file)})" for frame in inner]
            first = next((frame for frame in one.frames if not frame.is_native), None)
            if first is not None:
                place = f"{shorten_file(first.file, folder)}:{first.line}"
                words.append(f"{shorten_func(first.func)} ({place})")
            found[" < ".join(words)] += 1
    return []


def _name(pids: Sequence[int]) -> str:
    numbers = ", ".join(map(str, pids))
    return f"process {numbers}" if len(pids) == 1 else f"processes {numbers}"


def _has_loop(session: Session) -> bool:
    """Return whether an event loop was seen in a process: only such a one has tasks."""
    try:
        return any(True for _ in stack_table.read_newest_rows(session, "python.event_loop", 1))
    except OSError:
        return False


def _read_awaits(sessions: Sequence[Session], folder: str | None, found: Counter[str]) -> None:
    """Count where tasks of asyncio wait: the innermost own line, and what it awaits."""
    for session in sessions:
        since_ns = _core.clock_ns()
        if not inspect(session, _ANSWER_S):
            continue
        for frames in stack_table.read_tasks(session, since_ns):
            own = [one for one in frames if find_owner(one["file"] or "") == MINE]
            if not own or frames[0]["state"] == "running":
                continue
            place, inner = own[0], frames[0]
            what = "" if inner is place else name_call(inner["func"] or "", inner["file"] or "")
            where = f"{place['func']} ({shorten_file(place['file'], folder)}:{place['lineno']})"
            found[f"{what} in {where}" if what else f"something in {where}"] += 1
