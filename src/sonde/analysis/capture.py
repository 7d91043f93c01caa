"""Ask live jobs for captures, and wait for them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from sonde import _core
from sonde.errors import ConfigError, Error, NotAnswering
from sonde.session import Session, captures, source_states
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
from sonde.session.target import find_workers
from sonde.session.torch_records import CaptureGo, CaptureStop
from sonde.tables.recording import WAITS

_EXTRA_S = 10.0  # beyond the job's own limits: it reports itself that it is late
_AHEAD_S = 1.0  # until all ranks know which step is the first
_NEAR = 100  # ranks that are further apart do not count the same steps
_MOST_AHEAD = 10_000


class CaptureFailed(Error):
    """A capture that failed."""


class CaptureRequest:
    """A request to one process for a capture."""

    def __init__(self, target: Session, capture_id: str) -> None:
        self.session, self.id = target, capture_id
        self._page = target.map_control(writable=True)
        self.about = captures.read_about(target.folder, capture_id)

    @property
    def state(self) -> str:
        return self.about.state

    def notify(self) -> None:
        """Make the job check for requests."""
        _core.control_ask(self._page)

    def refresh(self) -> str:
        """Read what has become of the request; return its state."""
        self.about = captures.read_about(self.session.folder, self.id)
        return self.state

    def fail(self, why: str) -> None:
        """Record a failure on behalf of a job that cannot do so itself."""
        self.about = self.about.replace(state=FAILED, why=why)
        captures.write_about(self.session.folder, self.about)

    def write_to_job(self, suffix: str, record: CaptureGo | CaptureStop) -> None:
        """Write the job a file about this request."""
        with suppress(OSError):  # a full disk: the job has a deadline of its own
            captures.write_file(self.session.folder, self.id, suffix, record)
        self.notify()

    def find_file(self) -> str:
        """Return the path of the trace file; raise CaptureFailed if there is none."""
        name, whose = self.about.file, f"process {self.session.pid}"
        if self.state == FAILED:
            raise CaptureFailed(f"no capture of {whose}: {self.about.why}{self._hint()}")
        if name is None:
            raise CaptureFailed(f"no capture of {whose}: it ended while it was {self.state}")
        return self.session.path(captures.FOLDER, name)

    def _hint(self) -> str:
        if "no step ended" in (self.about.why or ""):
            return "; `--duration 5` needs no steps"
        return ""


def request_captures(
    targets: Sequence[Session], options: captures.CaptureOptions
) -> list[CaptureRequest]:
    """Ask all targets for a capture, of the same steps if they train together.

    The workers of a loader have no steps of their own and are not asked."""
    workers = find_workers(targets)
    targets = [target for target in targets if target.id not in workers]
    for target in targets:
        _check(target, options)
    capture_id = captures.make_id()
    options.ranks = len(targets)
    asked = []
    for target in targets:
        try:
            captures.write_request(target.folder, capture_id, options)
        except OSError as error:
            raise Error(f"{target.path(captures.FOLDER)}: {error.strerror}") from None
        asked.append(CaptureRequest(target, capture_id))
        why = _find_obstacle(target)
        if why is None:
            asked[-1].notify()
        else:
            asked[-1].fail(why)
    return asked


def _find_obstacle(target: Session) -> str | None:
    """Return why a program cannot answer at all, so that nobody waits for it in vain."""
    for row in source_states.read_states(target):
        if row["source"] == "capture" and str(row["detail"]).startswith(WAITS):
            return "the program has not imported torch"
        if row["source"] == "capture" and row["state"] in ("unavailable", "failed"):
            return f"source.capture is {row['state']} there: {row['detail']}"
    return None


def _check(target: Session, options: captures.CaptureOptions) -> None:
    if options.steps is not None and not 1 <= options.steps <= captures.MAX_STEPS:
        raise ConfigError(f"--steps {options.steps} is outside 1 … {captures.MAX_STEPS}")
    if not target.is_alive():
        raise NotAnswering(f"the recording of process {target.pid} is over; it captures no more")
    if not target.read_control()["on"]:
        raise NotAnswering(f"process {target.pid} is paused; `sonde resume {target.pid}` first")
    if not target.read_config()["source.capture"]:
        raise NotAnswering(
            f"process {target.pid} takes no captures; `sonde config {target.pid} source.capture=on`"
        )


def wait_for_captures(
    asked: Sequence[CaptureRequest], timeout_s: float, show: Callable[[str], object]
) -> Sequence[CaptureRequest]:
    """Wait until all requests have ended; return those that count. `show` is called with the
    progress as text."""
    try:
        begin_s = time.monotonic()
        _wait(asked, lambda one: one.state != ASKED, timeout_s, show)
        if len(asked) > 1:
            asked = _select_training(asked)
            _choose_first_step(asked, time.monotonic() - begin_s)
        # Waiting, recording and writing each have their own time limit in the job.
        _wait(asked, _is_over, 3 * timeout_s + _EXTRA_S, show)
    except BaseException:  # nobody waits any more: the jobs need not go on
        for one in asked:
            one.write_to_job(STOP, CaptureStop())
        raise
    return asked


def _select_training(asked: Sequence[CaptureRequest]) -> Sequence[CaptureRequest]:
    """Leave out processes that do not train (a launcher, a worker, a server) if others do."""
    if asked[0].about.steps is None:
        return asked
    training = [one for one in asked if one.about.step]
    for one in asked:
        if training and one not in training:
            one.write_to_job(STOP, CaptureStop())
    return training or asked


def _choose_first_step(asked: Sequence[CaptureRequest], waited_s: float) -> None:
    """Choose the first step: one that no rank has reached when it learns of the choice."""
    ready = [one for one in asked if one.state == WAITING]
    numbers = [one.about.step or 0 for one in ready]
    first = 0  # the next step of each rank
    if ready and max(numbers) > 0 and max(numbers) - min(numbers) <= _NEAR:
        first = max(numbers) + _guess_ahead(ready, waited_s)
    for one in ready:
        one.write_to_job(GO, CaptureGo(first_step=first))


def _guess_ahead(ready: Sequence[CaptureRequest], waited_s: float) -> int:
    """Estimate how many steps the fastest rank makes until all ranks know the first step."""
    paces = [_read_pace(one.session) for one in ready]
    known = [pace for pace in paces if pace]
    if not known:
        return 2
    return min(_MOST_AHEAD, 2 + round((_AHEAD_S + waited_s) / min(known)))


def _read_pace(target: Session) -> float | None:
    """Return the median duration of the newest steps, in seconds."""
    from sonde.store.rows import open_tables

    table = open_tables(target).get("python.torch_step")
    if table is None:
        return None
    last = table.read_live().column("dur_ns").to_pylist()[-20:]
    return sorted(last)[len(last) // 2] / 1e9 if last else None


def _is_over(one: CaptureRequest) -> bool:
    return one.state in captures.FINAL


def _wait(
    asked: Sequence[CaptureRequest],
    is_over: Callable[[CaptureRequest], bool],
    timeout_s: float,
    show: Callable[[str], object],
) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        waiting = [one for one in asked if one.refresh() is not None and not is_over(one)]
        alive = [one for one in waiting if one.session.is_alive()]
        if not alive:
            for one in waiting:
                one.refresh()  # its last state may have been written after we read it
            return
        show(_describe(asked))
        if time.monotonic() > deadline:
            raise NotAnswering(_explain(alive[0]))
        time.sleep(0.05)


def _explain(one: CaptureRequest) -> str:
    where = {
        ASKED: "its main thread has not reached a safe point (it may sit in one long C call)",
        RECORDING: "no step has ended since it began to record",
    }
    reason = where.get(one.state, f"it is still {one.state}")
    return f"process {one.session.pid} did not answer in time: {reason}"


def _describe(asked: Sequence[CaptureRequest]) -> str:
    names = {
        ASKED: "asked", WAITING: "waiting for a step", PACKING: "compressing", DONE: "done",
    }  # fmt: skip
    counts: dict[str, int] = {}
    for one in asked:
        word = names.get(one.state, one.state)
        counts[word] = counts.get(word, 0) + 1
    if len(asked) == 1:
        return next(iter(counts))
    return ", ".join(f"{count} {word}" for word, count in counts.items())


def is_packed(path: str) -> bool:
    """Tell whether a trace file is compressed."""
    return os.path.basename(path).endswith(PACKED)
