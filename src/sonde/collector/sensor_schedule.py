"""Measuring: when the sensors look, and which sessions get what they see."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from types import ModuleType

from sonde import _core, plugins
from sonde.collector.sensors._files import Look, Row
from sonde.errors import Unavailable
from sonde.tables.recording import SourceLog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class Target(Protocol):
        """A session that wants rows."""

        host_every_s: float
        host_pid: int
        folder: str

        def write(self, row: type, values: tuple[object, ...]) -> None: ...


Trouble = Callable[[str], AbstractContextManager[None]]
Said = tuple[str, str | None]

RETRY_S = (1.0, 30.0)  # a sensor that fails is tried again after the first, then ever later
# Whatever a file of a kernel that nobody has seen yet may lead to.
_FAILURES = (OSError, ValueError, LookupError, ArithmeticError, TypeError, AttributeError,
             AssertionError)  # fmt: skip


class Guarded:
    """A sensor that may fail: then it is left alone for a while."""

    def __init__(self, name: str, look: Look) -> None:
        module: ModuleType = plugins.load("collector.sensors", name)
        self.name, self._sensor = name, module.Sensor(look)
        self._rest_s = 0.0
        self._again_s = float("-inf")
        self.said: Said = ("on", None)

    def read(self, pids: Iterable[int], now_s: float) -> tuple[list[Row], dict[int, list[Row]]]:
        """Rows about the machine, and about each of these processes."""
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
            self.said = ("on", getattr(self._sensor, "detail", None))
            return machine, own
        return [], {}

    def _fail(self, state: str, detail: str, now_s: float) -> None:
        self._rest_s = min(RETRY_S[1], max(RETRY_S[0], 2 * self._rest_s))
        self._again_s = now_s + self._rest_s
        self.said = (state, detail)


class Cadence:
    """The sensors as all sessions of one period see them: amounts are of that period.

    Looks fall on whole multiples of the period, so that they do not drift, that two periods have
    looks in common, and that sessions of one period have the same rows about the machine."""

    def __init__(self, period_s: float, look: Look) -> None:
        self.period_s, self.due_s = period_s, float("-inf")
        self._sensors = [Guarded(name, look) for name in plugins.list_names("collector.sensors")]
        self._told: dict[tuple[str, str], Said] = {}

    def advance(self, now_s: float) -> None:
        """Set the next look; those that were missed are not made up for."""
        self.due_s = (math.floor(now_s / self.period_s + 1e-6) + 1) * self.period_s

    def measure(self, targets: list[Target], now_s: float, trouble: Trouble) -> None:
        """One look at everything, written into these sessions."""
        pids = sorted({target.host_pid for target in targets})
        for sensor in self._sensors:
            machine, own = sensor.read(pids, now_s)
            for target in targets:
                with trouble(target.folder):
                    for row, values in [*machine, *own.get(target.host_pid, [])]:
                        target.write(row, values)
                    self._tell(target, sensor)

    def _tell(self, target: Target, sensor: Guarded) -> None:
        key = (target.folder, sensor.name)
        if self._told.get(key) != sensor.said:
            self._told[key] = sensor.said
            target.write(SourceLog, (_core.clock_ns(), sensor.name, *sensor.said))

    def forget(self, folders: set[str]) -> None:
        """Only these sessions are left."""
        self._told = {key: said for key, said in self._told.items() if key[0] in folders}


class Sensors:
    """All sensors, for sessions of all periods."""

    def __init__(self, look: Look | None = None) -> None:
        self._look = look or Look()
        self._cadences: dict[float, Cadence] = {}

    def find_due(self, targets: Iterable[Target]) -> float:
        """When the next look is due; never, if nobody wants one."""
        periods = {target.host_every_s for target in targets}
        return min((self._find(period_s).due_s for period_s in periods), default=float("inf"))

    def measure(self, targets: list[Target], now_s: float, trouble: Trouble) -> None:
        """One look, for all sessions whose time has come."""
        periods = {target.host_every_s for target in targets}
        for unused in self._cadences.keys() - periods:
            del self._cadences[unused]
        due = [one for one in map(self._find, sorted(periods)) if one.due_s <= now_s]
        if not due:
            return
        self._look.begin()
        for cadence in due:
            cadence.advance(now_s)
            mine = [target for target in targets if target.host_every_s == cadence.period_s]
            cadence.forget({target.folder for target in mine})
            cadence.measure(mine, now_s, trouble)

    def close(self) -> None:
        """Let go of files and processes."""
        self._look.close()

    def _find(self, period_s: float) -> Cadence:
        if period_s not in self._cadences:
            self._cadences[period_s] = Cadence(period_s, self._look)
        return self._cadences[period_s]
