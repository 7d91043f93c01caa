"""Ask live jobs for captures, and wait for them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from sonde import _core
from sonde.errors import ConfigError, Error, NotAnswering
from sonde.session import Session, captures, files
from sonde.session.captures import (
    ASKED,
    DONE,
    FAILED,
    GO,
    PACKED,
    PACKING,
    RECORDING,
    STOP,
    WAITING,
)
from sonde.session.records import CaptureGo
from sonde.store.views.recording import read_sources
from sonde.tables.recording import WAITS

_PATIENCE_S = 10.0  # beyond what the job has: it says itself that it is late
_AHEAD_S = 1.0  # until all ranks have heard which step is the first
_NEAR = 100  # ranks whose steps are this far apart do not count the same steps
_MOST_AHEAD = 10_000


class Failed(Error):
    """A capture that came to nothing."""


class Asked:
    """A capture that one process was asked for."""

    def __init__(self, target: Session, capture_id: str) -> None:
        self.session, self.id = target, capture_id
        self._page = target.map_control(writable=True)
        self.about = captures.read_about(target.folder, capture_id)

    @property
    def state(self) -> str:
        return self.about.state

    def ring(self) -> None:
        """Have the job look."""
        _core.control_ask(self._page)

    def look(self) -> str:
        """Read what became of it so far."""
        self.about = captures.read_about(self.session.folder, self.id)
        return self.state

    def fail(self, why: str) -> None:
        """Write down, for a job that cannot, that nothing comes of it."""
        self.about = self.about.replace(state=FAILED, why=why)
        captures.write_about(self.session.folder, self.about)

    def say(self, suffix: str, values: dict[str, object]) -> None:
        """Tell the job more about it."""
        path = captures.name_file(self.session.folder, self.id, suffix)
        with suppress(OSError):  # a full disk: the job has a deadline of its own
            files.write_checked(path, values)
        self.ring()

    def find_file(self) -> str:
        """Where the trace is; Failed if there is none."""
        name, whose = self.about.file, f"process {self.session.pid}"
        if self.state == FAILED:
            raise Failed(f"no capture of {whose}: {self.about.why}{self._hint()}")
        if name is None:
            raise Failed(f"no capture of {whose}: it ended while it was {self.state}")
        return self.session.path(captures.FOLDER, name)

    def _hint(self) -> str:
        if "no step ended" in (self.about.why or ""):
            return "; `--duration 5` needs no steps"
        return ""


def ask(targets: Sequence[Session], options: captures.Options) -> list[Asked]:
    """Have all of them record a capture, at the same steps if they train in step.

    Forked children (the workers of a loader) have no steps of their own, and are not asked."""
    ids = {target.id for target in targets}
    targets = [target for target in targets if target.meta.parent not in ids]
    for target in targets:
        _check(target, options)
    capture_id = captures.make_id()
    options.ranks = len(targets)
    asked = []
    for target in targets:
        try:
            captures.write_asked(target.folder, capture_id, options)
        except OSError as error:
            raise Error(f"{target.path(captures.FOLDER)}: {error.strerror}") from None
        asked.append(Asked(target, capture_id))
        if _lacks_torch(target):
            asked[-1].fail("the program has not imported torch")
        else:
            asked[-1].ring()
    return asked


def _lacks_torch(target: Session) -> bool:
    """Has it loaded nothing yet that could hear us?"""
    words = {row["source"]: row["detail"] for row in read_sources(target)}
    return str(words.get("capture")).startswith(WAITS)


def _check(target: Session, options: captures.Options) -> None:
    if options.steps is not None and not 1 <= options.steps <= captures.MOST_STEPS:
        raise ConfigError(f"--steps {options.steps} is outside 1 … {captures.MOST_STEPS}")
    if not target.is_alive():
        raise NotAnswering(f"the recording of process {target.pid} is over; it captures no more")
    if not target.read_control()["on"]:
        raise NotAnswering(f"process {target.pid} is paused; `sonde resume {target.pid}` first")
    if not target.read_config()["source.capture"]:
        raise NotAnswering(
            f"process {target.pid} takes no captures; `sonde config {target.pid} source.capture=on`"
        )


def wait(
    asked: Sequence[Asked], timeout_s: float, show: Callable[[str], object]
) -> Sequence[Asked]:
    """Until all of them have ended, one way or the other; those that count. `show` is told how far
    they are."""
    try:
        begin_s = time.monotonic()
        _wait(asked, lambda one: one.state != ASKED, timeout_s, show)
        if len(asked) > 1:
            asked = _leave_out(asked)
            _agree(asked, time.monotonic() - begin_s)
        # Waiting, recording and writing: each has a bound of its own in the job.
        _wait(asked, _is_over, 3 * timeout_s + _PATIENCE_S, show)
    except BaseException:  # nobody waits for it any more: the job need not go on
        for one in asked:
            one.say(STOP, {})
        raise
    return asked


def _leave_out(asked: Sequence[Asked]) -> Sequence[Asked]:
    """Without processes that do not train, if others do: a launcher, a worker, a server."""
    if asked[0].about.steps is None:
        return asked
    training = [one for one in asked if one.about.step]
    for one in asked:
        if training and one not in training:
            one.say(STOP, {})
    return training or asked


def _agree(asked: Sequence[Asked], waited_s: float) -> None:
    """Choose the step to begin with: one that no rank has reached when it hears of it."""
    ready = [one for one in asked if one.state == WAITING]
    numbers = [one.about.step or 0 for one in ready]
    first = 0  # the next step of each, as they come
    if ready and max(numbers) > 0 and max(numbers) - min(numbers) <= _NEAR:
        first = max(numbers) + _guess_ahead(ready, waited_s)
    for one in ready:
        one.say(GO, CaptureGo(first_step=first).dump())


def _guess_ahead(ready: Sequence[Asked], waited_s: float) -> int:
    """How many steps the fastest rank makes until all have heard."""
    paces = [_read_pace(one.session) for one in ready]
    known = [pace for pace in paces if pace]
    if not known:
        return 2
    return min(_MOST_AHEAD, 2 + round((_AHEAD_S + waited_s) / min(known)))


def _read_pace(target: Session) -> float | None:
    """Seconds between two steps, as they were of late."""
    from sonde.store.rows import open_tables

    table = open_tables(target).get("python.torch_step")
    if table is None:
        return None
    last = table.read_live().column("duration").to_pylist()[-20:]
    return sorted(last)[len(last) // 2] if last else None


def _is_over(one: Asked) -> bool:
    return one.state in captures.FINAL


def _wait(
    asked: Sequence[Asked],
    is_over: Callable[[Asked], bool],
    timeout_s: float,
    show: Callable[[str], object],
) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        waiting = [one for one in asked if one.look() is not None and not is_over(one)]
        alive = [one for one in waiting if one.session.is_alive()]
        if not alive:
            for one in waiting:
                one.look()  # its last word may have come after we looked
            return
        show(_describe(asked))
        if time.monotonic() > deadline:
            raise NotAnswering(_explain(alive[0]))
        time.sleep(0.05)


def _explain(one: Asked) -> str:
    where = {
        ASKED: "its main thread has not reached a safe point (it may sit in one long C call)",
        RECORDING: "no step has ended since it began to record",
    }
    said = where.get(one.state, f"it is still {one.state}")
    return f"process {one.session.pid} did not answer in time: {said}"


def _describe(asked: Sequence[Asked]) -> str:
    said = {
        ASKED: "asked", WAITING: "waiting for a step", PACKING: "compressing", DONE: "done",
    }  # fmt: skip
    counts: dict[str, int] = {}
    for one in asked:
        word = said.get(one.state, one.state)
        counts[word] = counts.get(word, 0) + 1
    if len(asked) == 1:
        return next(iter(counts))
    return ", ".join(f"{count} {word}" for word, count in counts.items())


def is_packed(path: str) -> bool:
    """Is it compressed?"""
    return os.path.basename(path).endswith(PACKED)
