"""The monitor's loop: the collector measures into a session of our own until it is over."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from sonde import _core, plugins
from sonde.errors import Error
from sonde.job.recorder import recorder
from sonde.monitor.command import Command
from sonde.monitor.condition import Condition
from sonde.monitor.folder import MEASURING, WAITING, Folder
from sonde.monitor.log import Log
from sonde.monitor.network_owner import has_own_network
from sonde.monitor.reading_sql import MeasuredTime
from sonde.monitor.readings import ReadingsReader
from sonde.monitor.scope import Reading, Scope
from sonde.session import Session
from sonde.session.process import read_start_ticks

NAP_S = 0.1
END_S = 2.0  # to wait for a reading after the command ended
READY_S = 10.0  # for the collector to start and take two readings, and for its last one
WAIT_S = 3600.0  # to wait for the condition, at least: nobody may be left to stop us
ALL, MINE = "all", "mine"


@dataclass(frozen=True)
class MonitorOptions:
    """What `sonde monitor` was asked for."""

    max_s: float | None = 3600.0
    delay_s: float = 0.0
    wait_for: Condition = field(default_factory=lambda: Condition(None))
    every_s: float = 1.0
    piece_s: float = 10.0
    gpus: str | list[int] = ALL
    pid: int = 0
    command: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Measurement:
    """What was measured: what a report is made from."""

    folder: str
    session: str
    window: MeasuredTime
    piece_s: float
    gpus: list[int] | None
    reason: str
    began: str  # what the start was waited for, if anything
    command: list[str]


@dataclass
class Progress:
    """How far the monitor is, to be drawn."""

    state: str
    passed_s: float
    max_s: float | None
    reading: Reading | None


class Monitor:
    """One run of the monitor."""

    def __init__(self, options: MonitorOptions, folder: Folder, job: Command, scope: Scope) -> None:
        self.options, self.folder, self.job, self.scope = options, folder, job, scope
        every_ns = round(options.every_s * 1e9)
        self.session = _begin_session(options, scope)
        self._had_own_network = scope.is_tree and has_own_network(scope.pid)
        self._readings = ReadingsReader(self.session, scope, every_ns)
        fixed = options.gpus if isinstance(options.gpus, list) else None
        try:
            whole = scope.is_tree and not self._had_own_network
            self._log = Log(folder.path, fixed, has_whole_network=whole)
        except OSError as error:
            recorder.stop()
            raise Error(f"{folder.path}: {error.strerror}") from None
        self._begin_ns: int | None = None  # the reading after which measuring begins
        self._last: Reading | None = None
        self._made_s = time.monotonic()
        self._born = read_start_ticks(options.pid) if options.pid else None
        self.reason = ""

    # ---- the outcome -------------------------------------------------------------------------

    def describe(self) -> Measurement:
        """Return what was measured; an empty time if measuring never began."""
        last_ns = self._last.t_ns if self._last else _core.clock_ns()
        begin_ns = last_ns if self._begin_ns is None else self._begin_ns
        # Somebody may have come in meanwhile; if the process has ended, the first look stands.
        is_own = self._had_own_network and (
            read_start_ticks(self.scope.pid) is None or has_own_network(self.scope.pid)
        )
        scope = replace(self.scope, has_own_network=is_own)
        window = MeasuredTime(begin_ns, last_ns, round(self.options.every_s * 1e9), scope)
        return Measurement(
            self.folder.path, self.session.folder, window, self.options.piece_s, self.gpus,
            self.reason, self._explain_start(), list(self.options.command),
        )  # fmt: skip

    def _explain_start(self) -> str:
        if not self.has_begun:
            return "it ended before measuring began"
        words = [f"after {self.options.delay_s:g} s"] if self.options.delay_s else []
        words += [f"when {self.options.wait_for.text}"] if self.options.wait_for.text else []
        return f"measuring began {' and '.join(words)}" if words else ""

    @property
    def gpus(self) -> list[int] | None:
        """The GPUs that the report is about; None means all."""
        if self.options.gpus == MINE:
            return sorted(self._readings.mine)
        return self.options.gpus if isinstance(self.options.gpus, list) else None

    @property
    def has_begun(self) -> bool:
        """Whether measuring has begun."""
        return self._begin_ns is not None

    # ---- the loop ------------------------------------------------------------------------------

    def wait_ready(self) -> bool:
        """Wait for the first reading, so that a command can be measured from its start; return
        whether it came in time."""
        deadline = time.monotonic() + READY_S
        while self._last is None and time.monotonic() < deadline and not self._find_reason():
            self._advance()
            time.sleep(NAP_S / 2)
        return self._last is not None

    def run(self, show: Callable[[Progress], object]) -> None:
        """Watch until it is over; `reason` says why it is."""
        due_s = time.monotonic() + self.options.delay_s
        now_ns = _core.clock_ns()
        while not (reason := self._find_reason()):
            self._advance(may_begin=time.monotonic() >= due_s)
            show(self._describe())
            time.sleep(NAP_S)
            now_ns = _core.clock_ns()
        self.reason = reason
        has_ended = self.job.has_ended
        if has_ended:
            self._wait_end(now_ns)
            time.sleep(
                min(NAP_S, self.options.every_s / 2)
            )  # until the last rows of that reading are written
        self._advance(may_begin=time.monotonic() >= due_s, last=has_ended)

    def _wait_end(self, ended_ns: int) -> None:
        """Wait for a reading of what the command did since the last one."""
        self.scope = self._readings.scope = replace(self.scope, ended_ns=ended_ns)
        deadline = time.monotonic() + min(2 * self.options.every_s, END_S)
        while self._readings.newest_ns <= ended_ns and time.monotonic() < deadline:
            time.sleep(NAP_S / 10)
            self._advance()

    def close(self) -> None:
        """End the session; its recording stays."""
        self._log.close()
        recorder.stop()

    def _advance(self, may_begin: bool = False, last: bool = False) -> None:
        """Take in new readings; the last time also one that may miss rows, since none follows."""
        ahead_ns = round(self.options.every_s * 1e9) if last else 0
        for found in self._readings.read(_core.clock_ns() + ahead_ns):
            reading = self._choose(found)
            if self._begin_ns is not None:
                self._log.write(reading, self._begin_ns)
            elif may_begin and self.options.wait_for.holds(reading):
                self._begin(reading.t_ns)
            if self._last is None and self._begin_ns is None:
                self.folder.set_state(WAITING)
            self._last = reading
        if may_begin and self._begin_ns is None and self._last and not self.options.wait_for.text:
            self._begin(self._last.t_ns)

    def _begin(self, t_ns: int) -> None:
        self._begin_ns = t_ns
        self.folder.set_state(MEASURING)

    def _choose(self, reading: Reading) -> Reading:
        """Return a reading with only the GPUs that were asked for."""
        wanted = self.gpus
        if wanted is None:
            return reading
        return replace(
            reading, gpus={gpu: one for gpu, one in reading.gpus.items() if gpu in wanted}
        )

    def _find_reason(self) -> str:
        """Return why it is over; an empty text while it is not."""
        if self.job.has_ended:
            return "the command ended"
        # A command gets the signals itself and decides when it ends.
        if self.job.signals and not self.options.command:
            return "it was interrupted"
        if self._born is not None and read_start_ticks(self.options.pid) != self._born:
            return f"process {self.options.pid} ended"
        if self.folder.has_stop_flag():
            return "there was a stop.flag"
        return self._find_lateness()

    def _find_lateness(self) -> str:
        limit_s = self.options.max_s
        if limit_s is None:
            return ""
        late_s = self._count_seconds() - limit_s
        if late_s >= (0.0 if self._has_measured(limit_s) else READY_S):
            return f"its time was over ({limit_s / 60:g} min)"
        wait_s = max(limit_s, WAIT_S) + self.options.delay_s
        if not self.has_begun and time.monotonic() - self._made_s >= wait_s:
            return f"measuring did not begin in {wait_s / 60:g} min"
        return ""

    def _has_measured(self, limit_s: float) -> bool:
        """Return whether the reading at the end of that time is there, which is not whole until
        half a period later; or whether none is due by then."""
        begin_ns, last = self._begin_ns, self._last
        if begin_ns is None or last is None:
            return True  # the limit is one of waiting
        due_s = limit_s - self.options.every_s / 2
        return due_s <= 0 or last.t_ns - begin_ns >= due_s * 1e9

    def _count_seconds(self) -> float:
        return 0.0 if self._begin_ns is None else (_core.clock_ns() - self._begin_ns) / 1e9

    def _describe(self) -> Progress:
        state = "measuring" if self.has_begun else f"waiting for {self.options.wait_for.text}"
        if not self.has_begun and not self.options.wait_for.text:
            state = "waiting"
        return Progress(state, self._count_seconds(), self.options.max_s, self._last)


def _begin_session(options: MonitorOptions, scope: Scope) -> Session:
    """Begin a session without sources, for the collector to measure into."""
    sources = {f"source.{name}": False for name in plugins.list_names("job.sources")}
    given: Mapping[str, object] = {
        **sources, "follow": False, "collector": True, "host.every": options.every_s,
        "host.pid": scope.pid,
    }  # fmt: skip
    problems: list[str] = []
    recorder.stop()  # a session that the environment asked for
    folder = recorder.start(given, report=problems.append)
    if folder is None:
        raise Error(problems[0] if problems else "the monitor's own session could not begin")
    return Session(folder)
