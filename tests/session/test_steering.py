"""A live process is steered from another one."""

from __future__ import annotations

import itertools
import os
import time

import pytest

import sonde
from conftest import wait_for
from sonde.errors import ConfigError, NotAnswering
from sonde.session import steering
from sonde.session.target import find_sessions

LOOP = """
import gc, time, sonde
class Tick:
    n: int
emit = sonde.table(Tick)
sonde.start(collector="off")
print("ready", flush=True)
n = 0
while True:
    emit(n); n += 1
    gc.collect()
    time.sleep(0.005)
"""
STUCK = """
import ctypes, sonde
sonde.start(collector="off")
print("ready", flush=True)
ctypes.PyDLL(None).usleep(6_000_000)   # one C call that keeps the GIL
print("free", flush=True)
import time
while True:
    time.sleep(0.01)
"""


def count(pid: int, table: str = "job.tick") -> int:
    return sonde.open(pid).query(f"SELECT COUNT(*) AS n FROM {table}").to_pylist()[0]["n"]


def find(pid: int):
    return find_sessions(str(pid), os.environ["SONDE_DIR"])[0]


def test_pause_and_resume_work_from_outside(start) -> None:
    process = start(LOOP)
    session = find(process.pid)
    wait_for(lambda: count(process.pid) > 3)
    steering.pause(session)
    time.sleep(0.05)  # a row may be on its way
    before = count(process.pid)
    time.sleep(0.2)
    assert count(process.pid) == before
    steering.resume(session)
    wait_for(lambda: count(process.pid) > before)
    assert process.poll() is None


def test_a_source_is_switched_off_and_on(start) -> None:
    process = start(LOOP)
    session = find(process.pid)
    wait_for(lambda: count(process.pid, "python.gc_pause") > 3)
    values = steering.configure(session, {"source.gc": "off"}, 10)
    assert values["source.gc"] is False
    before = count(process.pid, "python.gc_pause")
    ticks = count(process.pid)
    wait_for(lambda: count(process.pid) > ticks + 5)
    assert count(process.pid, "python.gc_pause") == before
    state = sonde.open(process.pid).query("SELECT state FROM sonde.source WHERE source='gc'")
    assert state.to_pylist() == [{"state": "off"}]
    steering.configure(session, {"source.gc": "on"}, 10)
    wait_for(lambda: count(process.pid, "python.gc_pause") > before)


def test_stop_ends_the_recording_and_not_the_job(start) -> None:
    process = start(LOOP)
    session = find(process.pid)
    steering.stop(session, 10)
    assert session.find_state() == "ended" and process.poll() is None
    with pytest.raises(NotAnswering, match="has ended"):
        steering.pause(session)


def test_bad_changes_change_nothing(start) -> None:
    process = start(LOOP)
    session = find(process.pid)
    before = session.read_config()
    for change, said in (
        ({"source.g": "on"}, "did you mean source.gc"),
        ({"source.gc": "maybe"}, "not understood"),
        ({"ring.bytes": "1MiB"}, "only be set at the start: SONDE_RING_BYTES"),
        ({"archive": "off", "host.every": "0"}, "outside"),
    ):
        with pytest.raises(ConfigError, match=said):
            steering.configure(session, change, 5)
    assert session.read_config() == before


def test_a_job_in_one_long_c_call_says_so_and_obeys_later(start) -> None:
    process = start(STUCK)
    session = find(process.pid)

    values = itertools.cycle(["off", "on"])

    def find_refusal() -> str:
        try:
            steering.configure(session, {"source.gc": next(values)}, 0.3)
        except NotAnswering as error:
            return str(error)
        return ""  # the call had not begun yet

    assert "safe point" in wait_for(find_refusal)
    assert process.stdout.readline().strip() == "free"
    wait_for(lambda: session.read_control()["obeyed"] == session.read_control()["asked"])
    steering.pause(session)  # needs no safe point


def test_the_command_line_steers(start, sonde_cli) -> None:
    process = start(LOOP)
    done = sonde_cli("config", process.pid, "source.gc=off", "host.every=2s")
    assert done.returncode == 0, done.stderr
    assert "source.gc" in done.stdout and "off" in done.stdout
    assert sonde_cli("config", process.pid).stdout.count("\n") > 8
    wrong = sonde_cli("config", process.pid, "source.gcc=off")
    assert wrong.returncode == 2 and wrong.stderr == (
        "sonde: there is no setting source.gcc; did you mean source.gc?\n"
    )
    assert sonde_cli("pause", process.pid).returncode == 0
    assert "paused" in sonde_cli("ps").stdout
    assert sonde_cli("resume", process.pid).returncode == 0
    assert sonde_cli("stop", process.pid).returncode == 0
    over = sonde_cli("pause", process.pid)
    assert over.returncode == 6 and "has ended" in over.stderr
    assert process.poll() is None


def test_settings_are_listed_without_a_target(sonde_cli) -> None:
    done = sonde_cli("config")
    assert done.returncode == 0 and "ring.bytes " in done.stdout
