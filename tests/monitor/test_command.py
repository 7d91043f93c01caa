"""A command under `sonde monitor` is as without it: its exit code, its output, its signals."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import TIMEOUT_S, wait_for
from sonde import _core
from sonde.errors import Error
from sonde.monitor import watch
from sonde.monitor.command import Command
from sonde.monitor.folder import Folder
from sonde.monitor.scope import Scope

PYTHON = sys.executable
# Drawing takes longer than all the rest, and is not the subject here.
WITHOUT_PICTURES = (
    "import sys; sys.modules['matplotlib'] = None; from sonde.cli import main; sys.exit(main())"
)
MONITOR = (PYTHON, "-c", WITHOUT_PICTURES, "monitor", "-o", "out", "--every", "0.1s", "--")


@pytest.mark.parametrize("closed", (">&-", "2>&-", ">&- 2>&-"))
def test_closed_files_change_neither_output_nor_exit_code(tmp_path: Path, closed: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'"$@" {closed}', "sh", *MONITOR, "sh", "-c", "echo said; exit 3"],
        cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    assert done.returncode == 3
    assert done.stdout == ("" if closed.startswith(">") else "said\n")
    assert "Traceback" not in done.stderr


def test_a_reader_of_stderr_that_has_left_does_not_change_the_exit_code(tmp_path: Path) -> None:
    ours, theirs = os.pipe()
    process = subprocess.Popen([*MONITOR, "sh", "-c", "exit 3"], cwd=tmp_path, stderr=theirs)
    os.close(theirs)
    os.close(ours)
    assert process.wait(TIMEOUT_S) == 3


def test_a_signal_before_the_command_starts_keeps_it_from_starting(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as left, Command(["touch", str(tmp_path / "began")], {}) as job:
        os.kill(os.getpid(), signal.SIGTERM)
        job.start()
    assert left.value.code == 128 + signal.SIGTERM
    assert not (tmp_path / "began").exists()


_COUNT = """
import signal, time
got = []
signal.signal(signal.SIGINT, lambda *_: got.append(1))
signal.signal(signal.SIGTERM, lambda *_: got.append(0))
open("ready", "w").close()
while 0 not in got:
    time.sleep(0.01)
    if got: open("hit", "w").close()
open("got", "w").write(str(sum(got)))
"""


def test_an_interrupt_of_the_terminal_comes_once_though_all_files_lead_elsewhere(
    tmp_path: Path,
) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        os.execv(PYTHON, [*MONITOR, PYTHON, "-c", _COUNT])
    try:
        wait_for((tmp_path / "ready").exists)
        os.write(terminal, b"\x03")
        wait_for((tmp_path / "hit").exists)  # a terminal takes its time
        # In the order in which they were sent: whatever came of the first is there by now.
        wait_for(lambda: os.kill(pid, signal.SIGTERM) is None and (tmp_path / "got").exists())
        assert (tmp_path / "got").read_text() == "1"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)


def test_waiting_for_what_never_comes_ends(root: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(watch, "WAIT_S", 0.3)
    options = watch.MonitorOptions(max_s=0.2, wait_for=watch.Condition("gpu>1000"))
    folder = Folder(str(tmp_path / "out"))
    one = watch.Monitor(options, folder, Command([], {}), Scope(0))
    try:
        one.run(lambda _progress: None)
    finally:
        one.close()
        folder.close()
    assert one.reason.startswith("measuring did not begin") and not one.has_begun
    assert one.describe().window.end_ns <= _core.clock_ns()


@pytest.mark.parametrize("lacks", ("out", "root"))
def test_a_command_runs_though_it_cannot_be_measured(tmp_path: Path, lacks: str) -> None:
    env = dict(os.environ)
    if lacks == "out":
        (tmp_path / "out").write_text("not a folder")
    else:
        env["SONDE_DIR"] = "/proc/nowhere"
    done = subprocess.run(
        [*MONITOR, "sh", "-c", "echo ran; exit 3"], cwd=tmp_path, capture_output=True, text=True,
        timeout=TIMEOUT_S, env=env,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (3, "ran\n")
    assert done.stderr.startswith("sonde: it runs unmeasured: ") and done.stderr.count("\n") == 1


# ---- the folder ----------------------------------------------------------------------------------


def run_monitor(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PYTHON, "-c", WITHOUT_PICTURES, "monitor", "--every", "0.1s", *words], cwd=folder,
        capture_output=True, text=True, timeout=TIMEOUT_S,
    )  # fmt: skip


def test_a_folder_with_files_of_the_user_keeps_them(tmp_path: Path) -> None:
    (tmp_path / "img").mkdir()
    (tmp_path / "img" / "cat.png").write_text("a cat")
    Folder(str(tmp_path)).close()
    assert (tmp_path / "img" / "cat.png").read_text() == "a cat"


def test_links_in_the_folder_lead_to_nothing_that_is_written(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    names = ("report.json.tmp", "report.json", "log_result.csv.tmp")
    for name in names:
        (tmp_path / f"precious {name}").write_text("mine")
        (tmp_path / "out" / name).symlink_to(f"../precious {name}")
    assert run_monitor(tmp_path, "-o", "out", "--duration", "0.3").returncode == 0
    assert all((tmp_path / f"precious {name}").read_text() == "mine" for name in names)
    assert json.loads((tmp_path / "out" / "report.json").read_text())["format"] == 1


def test_a_lock_that_is_a_link_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / ".monitor.lock").symlink_to("precious")
    with pytest.raises(Error, match="-o DIR takes another folder"):
        Folder(str(tmp_path))
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_command_of_many_lines_is_one_line_of_the_report(tmp_path: Path) -> None:
    code = "import sys\n# not a head\x1b[31m\nsys.exit(3)"
    done = run_monitor(tmp_path, "-o", "out", "--", PYTHON, "-c", code)
    written = (tmp_path / "out" / "report.md").read_text()
    assert done.returncode == 3 and "sys.exit(3)" in written.splitlines()[0]
    assert "\x1b" not in written + done.stderr


def test_a_time_without_end_is_not_understood(tmp_path: Path) -> None:
    done = run_monitor(tmp_path, "--duration", "1e999")
    assert done.stderr == (
        "sonde: --duration '1e999' is not a time; write 30s, 5min, 100ms or plain seconds\n"
    )
