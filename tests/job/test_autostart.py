"""Zero-code start: SONDE=1 and `sonde run` leave the program exactly as it would be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import sonde
from sonde.session import list_sessions
from support.needs import need
from support.places import TOP

PROGRAM = """
import os, sys
print(sys.argv[1:], os.getcwd())
data = sys.stdin.read()
sys.stderr.write("err:" + data)
sys.exit(int(sys.argv[1]))
"""
QUIET = {"SONDE_COLLECTOR": "off"}


def sessions() -> list:
    return list(list_sessions(os.environ["SONDE_DIR"]))


def launch(*argv: str, **kwargs) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **QUIET, **kwargs.pop("env", {})}
    return subprocess.run(
        list(argv), capture_output=True, text=True, timeout=240, env=env, check=False, **kwargs
    )


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return str(path)


def test_the_environment_alone_starts_a_recording(program: str) -> None:
    done = launch(sys.executable, program, "0", input="", env={"SONDE": "1"})
    assert done.returncode == 0 and done.stderr == "err:"
    (session,) = sessions()
    assert session.meta.argv[1:] == [program, "0"]


@pytest.mark.parametrize("value", ["", "0", "off", "false"])
def test_without_it_nothing_is_recorded(program: str, value: str) -> None:
    launch(sys.executable, program, "0", input="", env={"SONDE": value})
    assert sessions() == []


def test_why_nothing_is_recorded_is_said_once(tmp_path: Path) -> None:
    """Python runs the hooks of a virtual environment twice."""
    hook = (TOP / "sonde.pth").read_text().splitlines()[-1]
    (tmp_path / "file").touch()
    env = {"SONDE": "1", "SONDE_DIR": str(tmp_path / "file")}
    done = launch(
        sys.executable, "-c", "import sys\nfor _ in 'ab': exec(sys.argv[1])", hook, env=env
    )
    assert done.returncode == 0 and done.stderr.count("not recording") == 1


def test_the_hook_is_one_line_that_imports_nothing_when_unset() -> None:
    code = "import sys; print([m for m in sys.modules if m.startswith('sonde')])"
    assert launch(sys.executable, "-c", code).stdout.strip() == "[]"


@pytest.mark.parametrize(
    "how", [lambda p: (p,), lambda p: ("--", sys.executable, p)], ids=["script", "command"]
)
def test_run_is_the_program_itself(program: str, tmp_path: Path, how) -> None:
    bare = launch(sys.executable, program, "3", "a b", input="hello\n", cwd=tmp_path)
    ours = launch(
        sys.executable,
        "-m",
        "sonde",
        "run",
        *how(program),
        "3",
        "a b",
        input="hello\n",
        cwd=tmp_path,
    )
    assert (ours.returncode, ours.stdout, ours.stderr) == (3, bare.stdout, bare.stderr)
    (session,) = sessions()
    assert session.find_state() == "ended"


def test_run_takes_a_module_with_arguments_that_look_like_ours(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("import sys; print(sys.argv[1:])")
    done = launch(
        sys.executable, "-m", "sonde", "run", "-m", "job", "--set", "x", "-m", "y", cwd=tmp_path
    )
    assert done.stdout.strip() == "['--set', 'x', '-m', 'y']"
    assert len(sessions()) == 1


def test_run_passes_options_of_the_script_through(program: str) -> None:
    done = launch(
        sys.executable, "-m", "sonde", "run", program, "0", "--help", "--format=x", input=""
    )
    assert "['0', '--help', '--format=x']" in done.stdout


def test_settings_given_to_run_reach_the_recording(program: str) -> None:
    launch(
        sys.executable, "-m", "sonde", "run", "--set", "ring.bytes=64KiB", program, "0", input=""
    )
    (session,) = sessions()
    assert session.read_config()["ring.bytes"] == 65536


def test_a_wrong_setting_or_program_is_said_before_anything_runs(program: str) -> None:
    wrong = launch(sys.executable, "-m", "sonde", "run", "--set", "ring.size=1", program, "0")
    assert wrong.returncode == 2 and "no setting ring.size" in wrong.stderr
    missing = launch(sys.executable, "-m", "sonde", "run", "--", "no-such-program")
    assert missing.returncode == 1 and "there is no such program" in missing.stderr
    nothing = launch(sys.executable, "-m", "sonde", "run")
    assert nothing.returncode == 2 and "nothing to run" in nothing.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_signals_go_to_the_program(tmp_path: Path, number: int) -> None:
    script = tmp_path / "wait.py"
    script.write_text("import time; print('ready', flush=True); time.sleep(60)")
    process = subprocess.Popen(
        [sys.executable, "-m", "sonde", "run", str(script)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **QUIET},
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline().strip() == "ready"
    assert sessions()[0].pid == process.pid  # the very process, not a child of a launcher
    process.send_signal(number)
    process.communicate(timeout=240)
    assert process.returncode == -number


@pytest.mark.parametrize("follow", [True, False])
def test_python_children_are_followed_unless_told_otherwise(tmp_path: Path, follow: bool) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)"
    )
    options = [] if follow else ["--no-follow-children"]
    launch(
        sys.executable, "-m", "sonde", "run", *options, str(script), "import sonde; sonde.mark('m')"
    )
    assert len(sessions()) == (2 if follow else 1)


def test_children_of_a_shell_are_recorded(tmp_path: Path) -> None:
    launch(
        sys.executable, "-m", "sonde", "run", "--", "sh", "-c", f"{sys.executable} -c pass; true"
    )
    assert len(sessions()) == 1


def test_helpers_and_the_tool_itself_are_not_recorded(tmp_path: Path) -> None:
    launch(sys.executable, "-m", "sonde", "ps", env={"SONDE": "1"})
    code = "import multiprocessing.resource_tracker as tracker; tracker.ensure_running()"
    launch(sys.executable, "-c", code, env={"SONDE": "1"})
    assert len(sessions()) == 1


def test_another_python_without_sonde_is_warned_of(tmp_path: Path) -> None:
    fake = tmp_path / "python3"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    script = tmp_path / "script"
    script.write_text(f"#!/usr/bin/env -S {fake} -u\n")
    script.chmod(0o755)
    for command in ([str(fake)], [str(script)], ["env", "A=1", str(fake), "x.py"]):
        done = launch(sys.executable, "-m", "sonde", "run", "--", *command)
        assert done.returncode == 1 and f"{fake} has no sonde" in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_a_session_reads_back_after_kill_9(tmp_path: Path) -> None:
    need("duckdb")  # before there is a program to end
    script = tmp_path / "train.py"
    script.write_text(
        "import gc, time\nwhile True:\n    gc.collect()\n    print('ready', flush=True)\n    time.sleep(.01)"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "sonde", "run", str(script)], stdout=subprocess.PIPE, text=True,
        env={**os.environ, **QUIET},
    )  # fmt: skip
    for _ in range(5):
        process.stdout.readline()
    sql = "SELECT COUNT(*) AS n FROM python.gc_pause WHERE generation = 2"
    live = sonde.open(process.pid).query(sql).to_pylist()[0]["n"]
    process.kill()
    process.communicate()
    after = sonde.open(process.pid).query(sql).to_pylist()[0]["n"]
    assert after >= live >= 5
    assert sonde.open(process.pid).query("SELECT state FROM sonde.session").to_pylist() == [
        {"state": "killed"}
    ]


def test_a_subinterpreter_is_left_alone(tmp_path: Path) -> None:
    code = """
try:
    import _xxsubinterpreters as interpreters
except ImportError:
    import _interpreters as interpreters
look = "import site, sys; site.main(); print([m for m in sys.modules if m[:5] == 'sonde'], flush=True)"
number = interpreters.create()
interpreters.run_string(number, look)
interpreters.destroy(number)
"""
    done = launch(sys.executable, "-c", code, env={"SONDE": "1"})
    assert done.stderr == "" and len(sessions()) == 1
    assert done.stdout.strip() == "[]"  # it imports nothing, and so takes no time


def test_a_signal_during_start_up_asks_for_a_snapshot_and_does_not_end_the_program() -> None:
    """It is sent while our first module is imported, long before the handler is installed."""
    code = """
import os, signal, sys, time
class Sender:
    def find_spec(self, name, *_):
        if name == "sonde.job.recorder": os.kill(os.getpid(), signal.SIGUSR1)
sys.meta_path.insert(0, Sender())
from sonde.job import autostart
os.environ["SONDE"] = "1"
autostart.start()
import sonde
folder = sonde.session().folder
while not os.path.isdir(folder + "/snapshots"): time.sleep(0.01)
print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
"""
    done = launch(sys.executable, "-c", code, env={"SONDE_SNAPSHOT_SIGNAL": "USR1"})
    assert (done.returncode, done.stdout.strip()) == (0, "set()")
