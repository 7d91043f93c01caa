"""A look at the heap while the memory grows: it begins and ends by itself, and the user's word counts."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import sonde
from conftest import wait_for
from sonde import _core
from sonde.collector.heap_watch import LOOK_S, RESTS_S, HeapWatch, find_import_end
from sonde.session import Session, files, list_sessions, steering
from sonde.session.heap_look import read_look
from sonde.tables.system import Process

MB = 10**6
NS = 10**9
COLUMNS = list(Process.__annotations__)


class Grower:
    """A recorded process, this one, whose readings are made up."""

    def __init__(self, session: Session) -> None:
        self.session, self.shared, self.start_s = session, 0, 0.0
        self.t_s, self.mb = session.meta.monotonic_ns / NS, 100.0
        self.restart()

    def restart(self) -> None:
        """Let another collector take over."""
        self.watch = HeapWatch(
            self.session, lambda _pid: self.shared, lambda *_: round(self.start_s * NS)
        )
        self.watch.refresh(self.session.read_config())

    def read(self, seconds: int, mb_s: float) -> None:
        for _ in range(seconds):
            self.t_s, self.mb = self.t_s + 1, self.mb + mb_s
            row = dict.fromkeys(COLUMNS) | {"t_ns": round(self.t_s * NS), "depth": 0,
                                            "rss_bytes": round(self.mb * MB), "process": self.session.pid}  # fmt: skip
            self.watch.note(tuple(row.values()))

    def is_looked_at(self) -> bool:
        return read_look(self.session.folder).is_on

    def configure(self, **changes: object) -> None:
        steering.configure(
            self.session, {name.replace("__", "."): value for name, value in changes.items()}, 60
        )
        self.watch.refresh(self.session.read_config())

    def list_states(self) -> list[tuple[str, str]]:
        sql = "SELECT state, detail FROM sonde.source_log WHERE source = 'heap' ORDER BY t_ns"
        return [
            tuple(row.values()) for row in sonde.open(self.session.folder).query(sql).to_pylist()
        ]


def begin(**settings: object) -> Grower:
    folder = sonde.start(collector="off", heap_every="4KiB", **settings)
    assert folder
    return Grower(Session(folder))


@pytest.fixture
def grower(root: Path) -> Iterator[Grower]:
    yield begin()
    sonde.stop()


def wait_for_states(grower: Grower, *states: str) -> list[str]:
    wait_for(lambda: [state for state, _ in grower.list_states()] == list(states))
    return [detail for _, detail in grower.list_states()]


def test_while_the_memory_grows_the_heap_is_sampled_for_a_time(grower: Grower, sonde_cli) -> None:
    grower.read(16, 5)
    assert not grower.is_looked_at()
    grower.read(2, 5)
    assert grower.is_looked_at()
    (why,) = wait_for_states(grower, "on")
    assert why.startswith("for a time, because the memory grew by 57.22 MiB in 12.0 s; ")
    kept = [bytearray(9000) for _ in range(100)]
    grower.read(round(LOOK_S[0]), 5)
    assert not grower.is_looked_at()
    assert (
        wait_for_states(grower, "on", "off")[1]
        == "it was on because the memory grew by 57.22 MiB in 12.0 s"
    )
    log = Path(grower.session.path("log")).read_text()
    assert "source.heap is on for 60 s at most, because the memory grew by 57.22 MiB" in log
    held = sonde.open(grower.session.folder).query(
        "SELECT SUM(alive_bytes)::BIGINT AS n FROM python.heap WHERE func LIKE 'test_while%'"
    )
    assert held["n"][0].as_py() == pytest.approx(9000 * len(kept), rel=0.4)
    assert grower.session.read_config()["source.heap"] is False
    told = sonde_cli("memory", grower.session.folder).stdout
    assert "of memory was alive" in told
    assert re.search(
        r"recorded from ..:..:.. to ..:..:.., because the memory grew by 57.22 MiB", told
    )


def test_it_ends_early_when_nothing_grows_any_more(grower: Grower) -> None:
    grower.read(18, 5)
    assert grower.is_looked_at()
    grower.read(10, 0)
    assert grower.is_looked_at()
    grower.read(10, 0)
    assert not grower.is_looked_at()


def test_it_ends_though_no_reading_comes_any_more(grower: Grower, monkeypatch) -> None:
    grower.read(18, 5)
    late_ns = read_look(grower.session.folder).until_ns
    clock = SimpleNamespace(clock_ns=lambda: late_ns)
    monkeypatch.setattr("sonde.collector.heap_watch._core", clock)
    grower.watch.refresh(grower.session.read_config())
    assert not grower.is_looked_at()


def test_the_job_ends_a_look_that_nobody_else_ends(grower: Grower) -> None:
    grower.read(18, 5)
    wait_for_states(grower, "on")
    path = grower.session.path(files.HEAP_LOOK)
    read_look(grower.session.folder).replace(until_ns=1).write(path)
    steering.configure(grower.session, {"heap.when_growing": False}, 60)  # any change will do
    wait_for_states(grower, "on", "off")


def test_the_next_look_comes_after_a_rest_and_there_are_few(grower: Grower) -> None:
    def look() -> None:
        grower.read(30, 5)
        assert grower.is_looked_at()
        began_s = grower.t_s - 30
        wait_for(lambda: not is_due(grower.session))
        while grower.is_looked_at():
            grower.read(1, 5)
        assert grower.t_s - began_s <= LOOK_S[1] + 30

    look()
    for rest_s in RESTS_S:
        grower.t_s += rest_s - 100
        grower.read(60, 5)
        assert not grower.is_looked_at()
        grower.t_s += 60
        look()
    grower.t_s += 100 * RESTS_S[-1]
    grower.read(60, 5)
    assert not grower.is_looked_at()


def is_due(session: Session) -> bool:
    """Return whether the job has not obeyed yet."""
    control = session.read_control()
    return control["obeyed"] < control["asked"]


def test_memory_of_files_does_not_count(grower: Grower) -> None:
    for _ in range(40):
        grower.shared += 5 * MB
        grower.read(1, 5)
    assert not grower.is_looked_at()


@pytest.mark.parametrize("given", [{"source_heap": "off"}, {"heap_when_growing": "off"}])
def test_who_has_said_no_is_not_looked_at(root: Path, given: dict[str, str]) -> None:
    grower = begin(**given)
    grower.read(40, 5)
    assert not grower.is_looked_at()
    sonde.stop()


def test_who_says_no_live_is_not_looked_at(grower: Grower) -> None:
    grower.configure(source__heap="off")  # as it is: but now somebody has said so
    grower.read(40, 5)
    assert not grower.is_looked_at() and grower.list_states() == []


def test_a_look_ends_when_its_setting_is_switched_off(grower: Grower) -> None:
    grower.read(18, 5)
    wait_for_states(grower, "on")
    grower.configure(heap__when_growing="off")
    grower.read(1, 5)
    wait_for_states(grower, "on", "off")
    grower.read(40, 5)
    assert not grower.is_looked_at()


def test_a_user_who_switches_the_source_off_ends_the_look(grower: Grower) -> None:
    grower.read(18, 5)
    wait_for_states(grower, "on")
    grower.configure(source__heap="off")
    wait_for_states(grower, "on", "off")
    grower.read(100, 5)
    assert not grower.is_looked_at() and len(grower.list_states()) == 2


def test_a_user_who_switches_the_source_on_keeps_it(grower: Grower) -> None:
    grower.read(18, 5)
    wait_for_states(grower, "on")
    grower.configure(source__heap="on")
    grower.read(100, 5)
    told = wait_for_states(grower, "on", "on")
    assert told[0].startswith("for a time, ") and told[1].startswith("what Python's own")
    assert grower.session.read_config()["source.heap"] is True and not grower.is_looked_at()


def test_the_next_collector_ends_what_the_last_one_began(grower: Grower) -> None:
    grower.read(18, 5)
    wait_for_states(grower, "on")
    grower.restart()
    grower.t_s += LOOK_S[0]
    grower.read(1, 5)
    wait_for_states(grower, "on", "off")


def test_a_recording_that_is_paused_is_left_alone(grower: Grower) -> None:
    steering.pause(grower.session)
    grower.read(40, 5)
    assert not grower.is_looked_at()
    steering.resume(grower.session)
    grower.read(40, 5)
    assert grower.is_looked_at()


def test_another_tool_that_watches_the_allocators_is_left_alone(grower: Grower) -> None:
    import tracemalloc

    tracemalloc.start()
    try:
        grower.read(18, 5)
        (why,) = wait_for_states(grower, "unavailable")
        assert why.startswith("tracemalloc watches the allocators")
        grower.read(round(LOOK_S[0]) + 1, 5)
    finally:
        tracemalloc.stop()
    grower.t_s += 10 * RESTS_S[-1]
    grower.read(100, 5)
    assert not grower.is_looked_at()  # what could not be done is not tried again


def test_imports_are_known_by_the_stacks_of_the_main_thread(
    start, root: Path, tmp_path: Path
) -> None:
    (tmp_path / "slow_part.py").write_text(
        "import time\nprint('ready', flush=True)\ntime.sleep(600)"
    )
    start("import sonde\nsonde.start(collector='off')\nimport slow_part")
    (session,) = list_sessions(str(root))
    begin_ns = session.meta.monotonic_ns
    wait_for(lambda: find_import_end(session, begin_ns))
    assert find_import_end(session, 2**62) == 0


def test_what_imports_allocate_does_not_count(grower: Grower) -> None:
    grower.start_s = grower.t_s + 12
    grower.read(23, 5)
    assert not grower.is_looked_at()
    grower.read(2, 5)
    assert grower.is_looked_at()


LEAKS = """
import os, sys, threading, time
import sonde
sonde.start(collector="off", heap_every="4KiB")
kept = []
def keep():
    while True:
        kept.append(bytearray(9000))
        time.sleep(0.002)
threading.Thread(target=keep, daemon=True).start()
print("ready", flush=True)
while True:
    time.sleep(0.01)
    if os.path.exists("fork"):
        os.remove("fork")
        if os.fork() == 0:
            sonde.mark("born")
    if os.path.exists("exec"):
        os.execv(sys.executable, [sys.executable, "-c", "import time; print('new', flush=True); time.sleep(600)"])
"""


def find_child(root: Path, parent: Session) -> Session | None:
    return next((one for one in list_sessions(str(root)) if one.pid != parent.pid), None)


@pytest.fixture
def leak(start, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Grower:
    """A program that is being looked at because its memory grows."""
    monkeypatch.chdir(tmp_path)
    start(LEAKS)
    (session,) = list_sessions(str(root))
    grower = Grower(session)
    grower.read(30, 5)
    wait_for_states(grower, "on")
    return grower


def test_a_program_that_is_killed_while_it_is_looked_at_leaves_its_line(
    leak: Grower, sonde_cli
) -> None:
    held = "SELECT SUM(alive_bytes)::BIGINT AS n FROM python.heap WHERE func = 'keep'"
    wait_for(lambda: (sonde.open(leak.session.folder).query(held)["n"][0].as_py() or 0) > 500_000)
    os.kill(leak.session.pid, signal.SIGKILL)
    wait_for(lambda: not leak.session.is_alive())
    assert sonde.open(leak.session.folder).query(held)["n"][0].as_py() > 500_000
    told = sonde_cli("memory", leak.session.folder, "--lines").stdout
    assert "because the memory grew by" in told and "in keep" in told


def test_a_child_that_is_forked_meanwhile_is_not_looked_at(leak: Grower, root: Path) -> None:
    Path("fork").touch()
    child = wait_for(lambda: find_child(root, leak.session))
    assert isinstance(child, Session)
    sql = "SELECT COUNT(*) AS n FROM sonde.source_log WHERE source = 'heap'"
    born = "SELECT COUNT(*) AS n FROM event.marker WHERE name = 'born'"
    wait_for(lambda: sonde.open(child.folder).query(born)["n"][0].as_py())
    assert sonde.open(child.folder).query(sql)["n"][0].as_py() == 0
    os.kill(child.pid, signal.SIGKILL)
    leak.read(round(LOOK_S[0]), 5)
    wait_for_states(leak, "on", "off")


def test_a_program_that_becomes_another_one_meanwhile_goes_on(leak: Grower) -> None:
    Path("exec").touch()
    wait_for(lambda: not leak.session.is_alive())
    leak.read(100, 5)  # nobody is there to be told
    assert [state for state, _ in leak.list_states()] == ["on"]


def test_a_recording_may_stop_and_pause_during_a_look(leak: Grower) -> None:
    steering.pause(leak.session)
    leak.read(1, 5)
    steering.resume(leak.session)
    steering.stop(leak.session, 60)
    wait_for_states(leak, "on", "off")
    leak.read(100, 5)


def test_the_allocators_are_as_they_were_after_a_look(grower: Grower) -> None:
    assert _core.Heap.is_alone()
    grower.read(30, 5)
    wait_for_states(grower, "on")
    assert not _core.Heap.is_alone()
    grower.read(round(LOOK_S[0]), 5)
    wait_for_states(grower, "on", "off")
    assert _core.Heap.is_alone()


STUCK = """
import sonde, threading
sonde.start(collector="off")
print("ready", flush=True)
lock = threading.Lock()
lock.acquire()
lock.acquire()      # as join() without a timeout: the main thread comes to no safe point
"""


def test_a_main_thread_that_cannot_be_asked_is_asked_again_after_a_rest(start, root: Path) -> None:
    start(STUCK)
    (session,) = list_sessions(str(root))
    grower = Grower(session)
    grower.read(30, 5)
    assert grower.is_looked_at() and is_due(session)
    grower.read(100, 5)
    assert not grower.is_looked_at() and read_look(session.folder).count == 0
    grower.t_s += RESTS_S[0]
    grower.read(30, 5)
    assert grower.is_looked_at()


GROWS = """
import sys, time
kept = []
def keep(until):
    while len(kept) < until:
        kept.append(b"%d" % len(kept) + b"x" * 3000)     # line 6
begin = time.monotonic()
while (passed := time.monotonic() - begin) < 600:
    keep(min(passed, 300) * 1500)
    time.sleep(0.01)
"""


def test_a_job_that_is_dead_before_anybody_asks_tells_its_line(
    start_anew, root: Path, sonde_cli
) -> None:
    process = start_anew(GROWS, ready=False, SONDE="1")
    (session,) = wait_for(lambda: list(list_sessions(str(root))))  # type: ignore[misc]
    recorded = "SELECT (MAX(t_ns) - MIN(t_ns)) / 1e9 > 8 AS is_long FROM python.heap_sampling"
    wait_for(lambda: sonde.open(session.folder).query(recorded)["is_long"][0].as_py())
    process.kill()
    wait_for(lambda: session.read_sealed() is not None)
    told = sonde_cli("advise", session.folder, "--rule", "memory_creep").stdout
    assert ":6 in keep" in told and "allocates what stays" in told
