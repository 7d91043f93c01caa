"""Trace files of sonde.profiler when programs end, are killed, fork, fill the disk or are many."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import find_processes, wait_for
from sonde.session import list_sessions

RUN = """
import os, sys, time
os.chdir(sys.argv[1])
from sonde import profiler
profiler.set_config(filename="profile.json", continuous_dump={continuous}, dump_period=0.05,
                    aggregate_stats=True)
profiler.set_state("run")
domain = profiler.Domain("job")
with domain.new_task("first"): pass
"""
FOREVER = """
hangs = domain.new_task("hangs")
hangs.start()
with domain.new_task("turn"): pass
print("ready", flush=True)
while True:
    with domain.new_task("turn"): time.sleep(0.0005)
"""


def read(path: Path) -> list[dict[str, Any]]:
    """The events of a trace, of which every byte is JSON."""
    found = json.loads(path.read_bytes())
    events = found["traceEvents"] if isinstance(found, dict) else found
    assert isinstance(events, list)
    return events


def names(path: Path) -> list[str]:
    return [event["name"] for event in read(path) if event["ph"] in "Xb"]


def wait_alone(root: Path) -> None:
    """Until whoever writes the last file has left."""
    wait_for(lambda: not [pid for pid in find_processes(str(root)) if _is_dumper(pid)])


def _is_dumper(pid: int) -> bool:
    try:
        return b"export.profiler_writer" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_a_program_that_ends_leaves_its_file(run: Callable[..., Any], tmp_path: Path) -> None:
    done = run(RUN.format(continuous=False), str(tmp_path))
    assert done.stderr == ""
    assert "first" in names(tmp_path / "profile.json")


@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
def test_a_program_that_is_killed_leaves_its_file_with_what_it_was_at(
    start: Callable[..., Any], root: Path, tmp_path: Path, how: str
) -> None:
    process = start(RUN.format(continuous=False) + FOREVER, str(tmp_path))
    process.send_signal(getattr(signal, how))
    assert process.wait() == -getattr(signal, how)
    wait_alone(root)
    path = tmp_path / "profile.json"
    assert {"first", "turn", "hangs"} <= set(names(path))
    (hangs,) = [event for event in read(path) if event["name"] == "hangs"]
    assert hangs["args"]["unfinished"] is True


def test_a_program_that_is_started_again_after_it_was_killed_has_the_file_of_its_name(
    start: Callable[..., Any], run: Callable[..., Any], root: Path, tmp_path: Path
) -> None:
    process = start(RUN.format(continuous=False) + FOREVER, str(tmp_path))
    process.kill()
    process.wait()
    run(RUN.format(continuous=False).replace("first", "again"), str(tmp_path))
    wait_alone(root)
    assert [path.name for path in tmp_path.glob("*.json")] == ["profile.json"]
    found = names(tmp_path / "profile.json")
    assert "again" in found and "first" not in found


def test_a_program_that_leaves_by_os_exit_leaves_its_file(
    run: Callable[..., Any], root: Path, tmp_path: Path
) -> None:
    done = run(RUN.format(continuous=False) + "os._exit(7)", str(tmp_path), check=False)
    assert done.returncode == 7 and done.stderr == ""
    wait_alone(root)
    assert "first" in names(tmp_path / "profile.json")


def test_a_continuous_file_is_sound_whenever_it_is_looked_at(
    start: Callable[..., Any], root: Path, tmp_path: Path
) -> None:
    process = start(RUN.format(continuous=True) + FOREVER, str(tmp_path))
    path, dice, sizes = tmp_path / "profile.json", random.Random(7), set()
    wait_for(path.exists)
    for _ in range(10):
        found = names(path)
        assert "first" in found
        sizes.add(len(found))
        time.sleep(dice.random() / 20)
    wait_for(lambda: sizes.add(len(names(path))) or len(sizes) > 1)
    process.kill()
    process.wait()
    wait_alone(root)
    assert len(names(path)) >= max(sizes)
    assert sorted(os.listdir(tmp_path)) == ["profile.json", "program0.py", "sonde"]


def test_a_continuous_file_loses_nothing_that_happens_while_it_is_written(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    code = (
        RUN.format(continuous=True).replace("0.05", "0.001")
        + """
turns, end = 0, time.monotonic() + 1.2
while time.monotonic() < end:
    with domain.new_task("turn"): time.sleep(0.0001)
    turns += 1
profiler.dump()
print(turns)
"""
    )
    done = run(code, str(tmp_path))
    assert names(tmp_path / "profile.json").count("turn") == int(done.stdout)


def test_a_program_that_cannot_write_keeps_its_old_file_and_says_so_once(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    code = (
        RUN.format(continuous=False)
        + """
profiler.dump(False)
os.rename("profile.json", "good.json")
os.link("good.json", "profile.json")
# Nobody can write here any more, not even root: a file has taken the folder's place.
folder = os.getcwd()
os.rename(folder, folder + ".moved")
open(folder, "w").close()
with domain.new_task("second"): pass
profiler.dump()
os.unlink(folder)
os.rename(folder + ".moved", folder)
print(profiler.dumps())
"""
    )
    place = tmp_path / "place"
    place.mkdir()
    done = run(code, str(place))
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"sonde: {place}/profile.json is not written: ")
    assert "second" in done.stdout and "first" in names(place / "profile.json")


def test_where_nothing_can_be_recorded_one_line_says_so_and_the_program_runs(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    code = (
        RUN.format(continuous=True)
        + """
profiler.pause(); profiler.resume(); profiler.dump(False); profiler.dump(); print(profiler.dumps())
print("done")
"""
    )
    done = run(code, str(tmp_path), SONDE_DIR="/proc/nowhere")
    assert done.stdout.split()[-1] == "done"
    (line,) = done.stderr.splitlines()
    assert line.startswith("sonde: not recording: /proc/nowhere")
    assert not (tmp_path / "profile.json").exists()


def test_four_forked_workers_write_four_files_beside_the_parents(
    run: Callable[..., Any], sonde_cli: Callable[..., Any], root: Path, tmp_path: Path
) -> None:
    code = (
        RUN.format(continuous=True)
        + """
import multiprocessing
def work(number):
    with domain.new_task(f"worker {number}"): pass
workers = [multiprocessing.get_context("fork").Process(target=work, args=(i,)) for i in range(3)]
for worker in workers: worker.start()
child = os.fork()
if not child:
    work(3)
    os._exit(0)
os.waitpid(child, 0)
for worker in workers: worker.join()
with domain.new_task("last"): pass
"""
    )
    done = run(code, str(tmp_path))
    assert done.stderr == ""
    wait_alone(root)
    files = [path for path in tmp_path.glob("profile*.json")]
    assert len(files) == 5
    own = names(tmp_path / "profile.json")
    assert {"first", "last"} <= set(own) and not [name for name in own if "worker" in name]
    for path in files:
        found = [name for name in names(path) if name.startswith("worker")]
        assert path.name == "profile.json" or (
            len(found) == 1 and re.fullmatch(r"profile-pid_\d+\.json", path.name)
        )
    sessions = ",".join(str(session.folder) for session in list_sessions(str(root)))
    done = sonde_cli("export", sessions, "--to", "chrome", "-o", tmp_path / "all.json")
    assert done.returncode == 0, done.stderr
    merged = [name for name in names(tmp_path / "all.json") if name.startswith("worker")]
    assert sorted(merged) == [f"worker {i}" for i in range(4)]
    processes = [e for e in read(tmp_path / "all.json") if e["name"] == "process_name"]
    assert len({event["pid"] for event in processes}) >= 5


def test_memory_that_was_looked_at_is_in_the_sums_also_after_the_profile(
    run: Callable[..., Any], root: Path, tmp_path: Path
) -> None:
    code = (
        RUN.format(continuous=False)
        + """
import json
def read(): return json.loads(profiler.dumps(format="json"))["Memory"]
end = time.monotonic() + 50
while not read() and time.monotonic() < end: time.sleep(0.05)
profiler.set_state("stop")
told = read()
profiler.dump()
assert read() == told, (read(), told)
print(told["Device Storage"]["Memory: cpu/0"]["Max"] * 1000)
"""
    )
    done = run(code, str(tmp_path))
    assert 2**22 < float(done.stdout) < 2**30


@pytest.mark.parametrize("variable", ["SONDE_PROFILER_AUTOSTART", "MXNET_PROFILER_AUTOSTART"])
def test_the_environment_profiles_a_program_that_knows_nothing_of_it(
    root: Path, tmp_path: Path, variable: str
) -> None:
    code = "import sonde\nwith sonde.span('own'): pass\n"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=240,
        env={**os.environ, variable: "1", "MXNET_PROFILER_MODE": "4"}, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    assert "own" in names(tmp_path / "profile.json")


def test_under_sonde_run_the_profile_is_part_of_that_recording(
    sonde_cli: Callable[..., Any], root: Path, tmp_path: Path
) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import sonde\nwith sonde.span('before'): pass\n"
        + RUN.format(continuous=False)
        + "profiler.dump()\nprofiler.set_state('run')\nwith domain.new_task('second'): pass\n"
        "profiler.set_config(filename='third.json')\n"
        "with domain.new_task('third'): pass\n"
    )
    done = sonde_cli("run", script, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    (session,) = list_sessions(str(root))
    said = "SELECT name FROM event.span ORDER BY t_ns"
    rows = json.loads(sonde_cli("query", session.folder, said, "--format", "json").stdout)
    assert [row["name"] for row in rows] == ["before", "first", "second", "third"]
    assert [name for name in names(tmp_path / "third.json") if name in ("before", "third")] == [
        "third"
    ]


def test_the_settings_choose_what_is_in_the_trace(
    sonde_cli: Callable[..., Any], root: Path, tmp_path: Path
) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import os, sys, time\nos.chdir(sys.argv[1])\nfrom sonde import profiler\n"
        "def spin():\n    end = time.thread_time() + 0.3\n    while time.thread_time() < end: pass\n"
        "for api in (True, False):\n"
        "    profiler.set_config(filename=f'{api}.json', profile_api=api, continuous_dump=False)\n"
        "    profiler.set_state('run')\n    with profiler.Event('own'): spin()\n"
        "    profiler.dump()\n"
    )
    assert sonde_cli("run", script, tmp_path).stderr == ""
    assert {"own", "spin"} <= set(names(tmp_path / "True.json"))
    assert set(names(tmp_path / "False.json")) == {"own"}


def test_rank_0_has_the_other_ranks_profile_themselves(
    start: Callable[..., Any], run: Callable[..., Any], root: Path, tmp_path: Path
) -> None:
    other = """
import os, sys, time
import sonde
sonde.start()
print("ready", flush=True)
while True:
    with sonde.span("step"): time.sleep(0.001)
"""
    ranks = [start(other, SONDE_JOB="seven", RANK=str(rank), WORLD_SIZE="3") for rank in (1, 2)]
    leader = """
import os, sys, time
os.chdir(sys.argv[1])
from sonde import Error, profiler
try: profiler.dump(profile_process="server")
except Error as error: assert "the profiler has not run" in str(error)
else: raise AssertionError
profiler.set_config(filename="all.json", continuous_dump=False, profile_process="server")
profiler.set_state("run", profile_process="server")
time.sleep(0.05)  # it is what is profiled
profiler.pause(profile_process="server")
profiler.dump(profile_process="server")
profiler.set_config(filename="/dev/null", profile_process="server")
profiler.set_state("run", profile_process="server")
profiler.dump(profile_process="server")
print(*sorted(name for name in os.listdir() if name.endswith(".json")))
"""
    done = run(leader, str(tmp_path), SONDE_JOB="seven", RANK="0", WORLD_SIZE="3")
    assert done.stderr == ""
    assert done.stdout.split() == ["rank1_all.json", "rank2_all.json"]
    for rank in (1, 2):
        assert "step" in names(tmp_path / f"rank{rank}_all.json")
    assert all(process.poll() is None for process in ranks)


KILL = """
import signal
def find():
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try: words = open(f"/proc/{entry}/cmdline", "rb").read()
            except OSError: continue
            if b"export.profiler_writer" in words and os.environ["SONDE_DIR"].encode() in words:
                yield int(entry)
while not (pids := list(find())): pass
for pid in pids: os.kill(pid, signal.SIGKILL)
while list(find()): pass
"""


def test_whoever_writes_may_die_and_the_program_notices_nothing(
    run: Callable[..., Any], root: Path, tmp_path: Path
) -> None:
    code = (
        RUN.format(continuous=True)
        + "while not os.path.exists('profile.json'): pass\n"
        + KILL
        + """
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
for _ in range(3):
    profiler.pause()
    profiler.resume()
with domain.new_task("after"): pass
profiler.dump()
"""
    )
    done = run(code, str(tmp_path))
    assert done.stderr == ""
    assert {"first", "after"} <= set(names(tmp_path / "profile.json"))
    assert sorted(os.listdir(tmp_path)) == ["profile.json", "program.py", "sonde"]


def test_a_profile_has_its_file_though_whoever_writes_has_left_since_the_last_one(
    start: Callable[..., Any], root: Path, tmp_path: Path
) -> None:
    code = (
        RUN.format(continuous=False)
        + "profiler.dump()\n"
        + KILL
        + "profiler.set_config(filename='next.json', continuous_dump=False)\n"
        "profiler.set_state('run')\n" + FOREVER
    )
    process = start(code, str(tmp_path))
    process.kill()
    process.wait()
    wait_for((tmp_path / "next.json").exists)  # whoever writes it may not have begun yet
    wait_alone(root)
    assert "turn" in names(tmp_path / "next.json")
