"""Machines made by hand: every number of the system tables is known, session and SQL are real."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache

import sonde
from sonde import plugins
from sonde.collector.loop import Watched
from sonde.collector.process_end import KillCounts
from sonde.collector.sensors._files import Reader
from sonde.session.schema import make_schema
from sonde.tables import name_row

GB = 10**9
OFF = {"collector": "off", "follow": "off"} | {
    f"source_{name}": "off" for name in plugins.list_names("job.sources")
}
Values = Mapping[str, object]
Change = Values | Sequence[Values] | Callable[[float], Values | Sequence[Values]] | None

CPU = {"cores": 16, "busy_pct": 40.0, "user_pct": 35.0, "system_pct": 5.0, "max_core_pct": 95.0}
MEMORY = {"total_bytes": 256 * GB, "available_bytes": 156 * GB, "used_bytes": 100 * GB,
          "swap_in_bytes": 0, "swap_out_bytes": 0}  # fmt: skip
GPU = {
    "name": "H200", "util_pct": 95.0, "memory_used_bytes": 60 * GB, "memory_total_bytes": 80 * GB,
    "power_w": 600.0, "power_limit_w": 700.0, "sm_clock_mhz": 1900, "sm_clock_max_mhz": 1980,
    "temperature_c": 60, "pcie_gen": 5, "pcie_gen_max": 5, "pcie_width": 16, "pcie_width_max": 16,
    "ecc_corrected": 0, "ecc_uncorrected": 0,
}  # fmt: skip
PROCESS = {
    "depth": 0,
    "name": "python",
    "state": "R",
    "user_pct": 90.0,
    "rss_bytes": 4 * GB,
    "run_wait_pct": 1.0,
}
DISK = {"device": "nvme0n1", "read_bytes": 10**6, "written_bytes": 0, "busy_pct": 3.0}
CGROUP = {"version": 2, "path": "/job", "memory_bytes": 30 * GB, "memory_limit_bytes": 64 * GB,
          "user_pct": 90.0, "system_pct": 5.0, "throttled_pct": 0.0, "cpu_limit": 8.0}  # fmt: skip


def _press(resource: str, scope: str) -> Values:
    return {"resource": resource, "scope": scope, "some_pct": 0.5, "full_pct": 0.1}


HEALTHY: dict[str, Sequence[Values]] = {
    "cpu": [CPU], "memory": [MEMORY], "gpu": [GPU], "process": [PROCESS], "disk": [DISK],
    "cgroup": [CGROUP],
    "pressure": [_press(r, s) for r in ("cpu", "memory", "io") for s in ("machine", "cgroup")],
}  # fmt: skip
NOTHING: dict[str, None] = dict.fromkeys(HEALTHY)


@cache
def find_row(table: str) -> type:
    """The row class of a table, by its name without the schema."""
    for name in plugins.list_names("tables"):
        for row in plugins.load("tables", name).ROWS:
            if name_row(row).partition(".")[2] == table:
                return row
    raise LookupError(table)


@cache
def make_blank(table: str) -> Values:
    """What is in each column of a row that says nothing."""
    row, empty = find_row(table), {"text": "", "bool": False}
    return {field.name: None if field.optional else empty.get(field.kind, 0)
            for field in make_schema(row, name_row(row)).fields}  # fmt: skip


class Machine:
    """Writes what the collector's sensors write, into the recording that is on.

    What is not said is healthy. A table's change is values for its row, a list of them for its
    rows, a function of the time in seconds that gives either, or None: nothing is written."""

    def __init__(self, every_s: float = 1.0) -> None:
        session = sonde.session()
        assert session is not None
        self.every_ns = round(every_s * 1e9)
        # Half a period off, so that no look lies on the edge of a window.
        self.start_ns = session.start_wall_ns - session.wall_offset_ns - self.every_ns // 2
        self.now_ns = self.start_ns
        self._watched = Watched(session, KillCounts(Reader()))

    def run(self, seconds: float, **changes: Change) -> None:
        """Reader so long, at every period, with these changes."""
        for count in range(round(seconds * 1e9) // self.every_ns):
            self.write_reading(**changes)
            if count % 100 == 0:
                self.drain()

    def drain(self) -> None:
        """Archive: or small rings would lose the first rows."""
        self._watched.drain(0.0, ended=True)

    def write_reading(self, **changes: Change) -> None:
        """Reader once, a period after the look before."""
        self.now_ns += self.every_ns
        passed_s = (self.now_ns - self.start_ns) / 1e9
        changes = {"gpu_process": self._own_all(changes, passed_s), **changes}
        for table in {**HEALTHY, **changes}:
            for values in _make_rows(table, changes.get(table, {}), passed_s):
                self._write(table, values)

    def _own_all(self, changes: Mapping[str, Change], passed_s: float) -> Change:
        """The job computes on every GPU that is full, unless it is said who does."""
        gpus = _make_rows("gpu", changes.get("gpu", {}), passed_s)
        return [
            {"gpu": row["gpu"], "process": os.getpid(), "memory_bytes": row["memory_used_bytes"]}
            for row in gpus
            if (row["memory_used_bytes"] or 0) > GB  # type: ignore[operator]
        ]

    def _write(self, table: str, values: Values) -> None:
        row, blank = find_row(table), make_blank(table)
        known = {"t_ns": self.now_ns, "interval_ns": self.every_ns, **values}
        assert values.keys() <= blank.keys(), f"{table} has no {values.keys() - blank.keys()}"
        self._watched.write(row, tuple(known.get(name, blank[name]) for name in blank))


def _make_rows(table: str, change: Change, passed_s: float) -> Iterator[Values]:
    said = change(passed_s) if callable(change) else change
    if said is None:
        return
    usual = HEALTHY.get(table, [{}])
    if isinstance(said, Mapping):
        said = [said] * len(usual)
    for at, values in enumerate(said):
        place = {"gpu": at} if table == "gpu" else {"process": os.getpid() + at}
        named = place if table in ("gpu", "process") else {}
        yield {**usual[min(at, len(usual) - 1)], **named, **values}


def record(seconds: float, every_s: float = 1.0, **changes: Change) -> str:
    """The folder of a recording of one machine, ended."""
    folder = sonde.start(**OFF)
    assert folder is not None
    Machine(every_s).run(seconds, **changes)
    sonde.stop()
    return folder
