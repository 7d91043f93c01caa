"""Decide when the sensors are read, and which sessions get the rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from types import ModuleType

from sonde import _core, plugins
from sonde.collector.sensors._files import Reader, Row
from sonde.errors import Unavailable
from sonde.tables.recording import SourceLog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class Target(Protocol):
        """A session that gets rows."""

        host_every_s: float
        host_pid: int | None  # None: it is in another pid namespace
        folder: str

        def write(self, row: type, values: tuple[object, ...]) -> None: ...


Attempt = Callable[[str], AbstractContextManager[None]]
Status = tuple[str, str | None]  # state and detail

RETRY_S = (1.0, 30.0)  # pause after a failure of a sensor: the first, and the longest
UNSEEN = (
    "the process is in another pid namespace than the collector; processes of different containers "
    "need different folders (SONDE_DIR)"
)
# Errors that the files of a kernel we have never seen may lead to.
_FAILURES = (OSError, ValueError, LookupError, ArithmeticError, TypeError, AttributeError,
             AssertionError)  # fmt: skip


class Guarded:
    """A sensor that may fail, and is not read for a while after a failure."""

    def __init__(self, name: str, reader: Reader) -> None:
        module: ModuleType = plugins.load("collector.sensors", name)
        self.name, self._sensor = name, module.Sensor(reader)
        self.is_about_processes = getattr(module, "ABOUT_PROCESSES", False)
        self._rest_s = 0.0
        self._again_s = float("-inf")
        self.status: Status = ("on", None)

    def read(self, pids: Iterable[int], now_s: float) -> tuple[list[Row], dict[int, list[Row]]]:
        """Return rows about the machine, and about each of these processes."""
        if now_s < self._again_s:
            return [], {}
        try:
            machine = list(self._sensor.read_machine())
            own = {pid: list(self._sensor.read_process(pid)) for pid in pids}
        except Unavailable as error:
            self._fail("unavailable", str(error), now_s)
        except _FAILURES as error:
            self._fail("failed", f"{type(error).__name__}: {error}", now_s)
        else:
            self._rest_s = 0.0
            self.status = ("on", getattr(self._sensor, "detail", None))
            return machine, own
        return [], {}

    def _fail(self, state: str, detail: str, now_s: float) -> None:
        self._rest_s = min(RETRY_S[1], max(RETRY_S[0], 2 * self._rest_s))
        self._again_s = now_s + self._rest_s
        self.status = (state, detail)


class Cadence:
    """The sensors, read once a period for all sessions that asked for that period.

    Readings fall on whole multiples of the period. So they do not drift, two periods have readings
    in common, and sessions of one period have the same rows about the machine."""

    def __init__(self, period_s: float, reader: Reader) -> None:
        self.period_s, self.due_s = period_s, float("-inf")
        self._sensors = [Guarded(name, reader) for name in plugins.list_names("collector.sensors")]
        self._written: dict[tuple[str, str], Status] = {}

    def advance(self, now_s: float) -> None:
        """Set the time of the next reading; missed ones are skipped."""
        self.due_s = (math.floor(now_s / self.period_s + 1e-6) + 1) * self.period_s

    def measure(self, targets: list[Target], now_s: float, attempt: Attempt) -> None:
        """Read every sensor once and write the rows into these sessions."""
        pids = sorted({target.host_pid for target in targets if target.host_pid is not None})
        for sensor in self._sensors:
            machine, own = sensor.read(pids, now_s)
            for target in targets:
                with attempt(target.folder):
                    mine = [] if target.host_pid is None else own.get(target.host_pid, [])
                    for row, values in [*machine, *mine]:
                        target.write(row, values)
                    self._write_status(target, sensor)

    def _write_status(self, target: Target, sensor: Guarded) -> None:
        key, status = (target.folder, sensor.name), sensor.status
        if target.host_pid is None and sensor.is_about_processes and status[0] == "on":
            status = ("unavailable", UNSEEN)
        if self._written.get(key) != status:
            self._written[key] = status
            target.write(SourceLog, (_core.clock_ns(), sensor.name, *status))

    def forget(self, folders: set[str]) -> None:
        """Forget all sessions but these."""
        self._written = {key: one for key, one in self._written.items() if key[0] in folders}


class Sensors:
    """All sensors, for sessions of every period."""

    def __init__(self, reader: Reader | None = None) -> None:
        self._reader = reader or Reader()
        self._cadences: dict[float, Cadence] = {}

    def find_due(self, targets: Iterable[Target]) -> float:
        """Return when the next reading is due; infinity if no session wants one."""
        periods = {target.host_every_s for target in targets}
        return min((self._find(period_s).due_s for period_s in periods), default=float("inf"))

    def measure(self, targets: list[Target], now_s: float, attempt: Attempt) -> None:
        """Read the sensors for all sessions that are due."""
        periods = {target.host_every_s for target in targets}
        for unused in self._cadences.keys() - periods:
            del self._cadences[unused]
        due = [one for one in map(self._find, sorted(periods)) if one.due_s <= now_s]
        if not due:
            return
        self._reader.begin()
        for cadence in due:
            cadence.advance(now_s)
            mine = [target for target in targets if target.host_every_s == cadence.period_s]
            cadence.forget({target.folder for target in mine})
            cadence.measure(mine, now_s, attempt)

    def close(self) -> None:
        """Close files and helper processes."""
        self._reader.close()

    def _find(self, period_s: float) -> Cadence:
        if period_s not in self._cadences:
            self._cadences[period_s] = Cadence(period_s, self._reader)
        return self._cadences[period_s]
