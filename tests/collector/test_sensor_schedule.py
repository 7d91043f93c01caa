"""Measuring: each session at its own period, on time, and sensors that fail come back."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import sonde
from conftest import wait_for
from sonde.collector import sensor_schedule
from sonde.collector.sensor_schedule import Guarded, Sensors
from sonde.collector.sensors._files import Reader
from sonde.collector.sensors.memory import Memory
from sonde.collector.sensors.pressure import Pressure
from sonde.tables.recording import SourceLog
from sonde.tables.system import Cgroup, Network, Process

IDLE = "import sonde, time; sonde.start(); print('ready', flush=True); time.sleep(600)"


class Target:
    """A session that only remembers what is written into it."""

    def __init__(self, folder: str, every_s: float, pid: int | None) -> None:
        self.folder, self.host_every_s, self.host_pid = folder, every_s, pid
        self.rows: list[tuple[type, tuple[object, ...]]] = []

    def write(self, row: type, values: tuple[object, ...]) -> None:
        self.rows.append((row, values))

    def list(self, row: type) -> list[tuple[object, ...]]:
        return [values for kind, values in self.rows if kind is row]


@contextlib.contextmanager
def no_trouble(_folder: str) -> Iterator[None]:
    yield


@pytest.fixture
def sensors() -> Iterator[Sensors]:
    sensors = Sensors()
    yield sensors
    sensors.close()


def test_each_session_has_rows_at_its_own_period(sensors: Sensors) -> None:
    fast, slow = Target("fast", 0.1, os.getpid()), Target("slow", 1.0, os.getpid())
    targets = [fast, slow]
    now_s = 1000.0
    for _ in range(31):
        sensors.measure(targets, now_s, no_trouble)
        now_s = sensors.find_due(targets)
    assert len(fast.list(Memory)) == 31 and len(slow.list(Memory)) == 4
    # Where both are due they are served by the same reading.
    times = [{values[0] for values in target.list(Memory)} for target in targets]
    assert times[1] <= times[0]


def test_sessions_of_one_period_have_the_same_rows_about_the_machine(sensors: Sensors) -> None:
    first, second = Target("a", 1.0, os.getpid()), Target("b", 1.0, os.getpid())
    sensors.measure([first], 10.0, no_trouble)
    for now_s in (11.0, 12.0):
        sensors.measure([first, second], now_s, no_trouble)
    assert first.list(Memory)[1:] == second.list(Memory)


def test_looks_do_not_drift_and_are_not_made_up_for(sensors: Sensors) -> None:
    target = Target("a", 0.25, os.getpid())
    sensors.measure([target], 100.06, no_trouble)  # a little late
    assert sensors.find_due([target]) == 100.25
    sensors.measure([target], 103.3, no_trouble)  # the machine stood still
    assert sensors.find_due([target]) == 103.5
    sensors.measure([target], 103.4, no_trouble)
    assert len(target.list(Memory)) == 2


def test_nobody_is_nothing_to_wait_for(sensors: Sensors) -> None:
    sensors.measure([], 1.0, no_trouble)
    assert sensors.find_due([]) == float("inf")


def test_a_sensor_that_fails_is_reported_once_and_comes_back(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    proc.mkdir()
    reader = Reader(str(proc))
    sensors = Sensors(reader)
    target = Target("a", 1.0, os.getpid())
    for now_s in range(100, 110):
        sensors.measure([target], float(now_s), no_trouble)

    def said() -> list[object]:
        return [values[2] for values in target.list(SourceLog) if values[1] == "memory"]

    assert said() == ["failed"] and target.list(Memory) == []
    why = {values[1]: (values[2], values[3]) for values in target.list(SourceLog)}
    assert why["pressure"][0] == "unavailable" and "CONFIG_PSI" in why["pressure"][1]
    (proc / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable: 8 kB\n")
    for now_s in range(110, 150):
        sensors.measure([target], float(now_s), no_trouble)
    assert said() == ["failed", "on"] and target.list(Memory)
    sensors.close()


def test_a_sensor_that_fails_is_tried_ever_less(tmp_path: Path) -> None:
    reader = Reader(str(tmp_path))
    guarded = Guarded("memory", reader)
    tried = []
    for now_s in range(200):
        before = guarded._again_s
        reader.begin()
        guarded.read([os.getpid()], float(now_s))
        if guarded._again_s != before:
            tried.append(now_s)
    assert tried[:5] == [0, 1, 3, 7, 15] and tried[-1] - tried[-2] == sensor_schedule.RETRY_S[1]
    reader.close()


def test_a_session_in_trouble_does_not_cost_the_others_their_rows(sensors: Sensors) -> None:
    class Broken(Target):
        def write(self, row: type, values: tuple[object, ...]) -> None:
            raise OSError("no space left")

    @contextlib.contextmanager
    def attempt(_folder: str) -> Iterator[None]:
        with contextlib.suppress(OSError):
            yield

    good = Target("good", 1.0, os.getpid())
    for now_s in (1.0, 2.0):
        sensors.measure([Broken("bad", 1.0, os.getpid()), good], now_s, attempt)
    assert len(good.list(Memory)) == 2


def test_the_kernels_own_pressure_is_read_where_there_is_one(sensors: Sensors) -> None:
    if not Path("/proc/pressure/cpu").exists():
        pytest.skip("this kernel does not measure pressure")
    target = Target("a", 0.1, os.getpid())
    for now_s in (1.0, 2.0):
        sensors.measure([target], now_s, no_trouble)
    found = {values[2]: values[4] for values in target.list(Pressure) if values[3] == "machine"}
    assert set(found) >= {"memory", "io"} and all(0 <= pct <= 100 for pct in found.values())


def test_two_jobs_have_rows_at_their_own_periods(start) -> None:
    slow, fast = start(IDLE), start(IDLE, SONDE_HOST_EVERY="100ms")

    def count(pid: int) -> tuple[int, float]:
        sql = (
            "SELECT COUNT(*) AS n, MEDIAN(interval_ns) AS every FROM system.process WHERE depth = 0"
        )
        (row,) = sonde.open(str(pid)).query(sql).to_pylist()
        return row["n"], row["every"]

    def is_there(pid: int) -> bool:
        sql = "SELECT 1 FROM information_schema.tables WHERE table_name = 'process'"
        return bool(sonde.open(str(pid)).query(sql).to_pylist())

    wait_for(lambda: is_there(slow.pid) and is_there(fast.pid))
    wait_for(lambda: count(slow.pid)[0] >= 3 and count(fast.pid)[0] >= 20)
    assert count(fast.pid)[1] < count(slow.pid)[1] / 2


def test_another_process_can_be_watched_instead(start) -> None:
    other = start("import time; print('ready', flush=True); time.sleep(600)")
    job = start(IDLE, SONDE_HOST_PID=str(other.pid), SONDE_HOST_EVERY="100ms")

    def watched() -> list[dict[str, object]]:
        sql = "SELECT DISTINCT process, depth, pid FROM system.process"
        tables = "SELECT 1 FROM information_schema.tables WHERE table_name = 'process'"
        recording = sonde.open(str(job.pid))
        return recording.query(sql).to_pylist() if recording.query(tables).num_rows else []

    assert wait_for(watched) == [{"process": other.pid, "depth": 0, "pid": job.pid}]


def test_a_process_of_another_namespace_is_not_mistaken_for_one_of_ours(sensors: Sensors) -> None:
    ours, foreign = Target("a", 1.0, os.getpid()), Target("b", 1.0, None)
    for now_s in (10.0, 11.0):
        sensors.measure([ours, foreign], now_s, no_trouble)
    assert ours.list(Process) and foreign.list(Memory) == ours.list(Memory)
    assert not foreign.list(Process) and not foreign.list(Cgroup) and not foreign.list(Network)
    states = {values[1]: values[2:] for values in foreign.list(SourceLog)}
    assert states["memory"] == ("on", None)
    assert states["process"] == ("unavailable", sensor_schedule.UNSEEN)
