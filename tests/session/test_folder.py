"""Session folders: who lives, who is dead, and whose pid it was."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import sonde
from conftest import wait_for
from sonde.errors import Damaged
from sonde.session import Session, list_sessions
from sonde.session.files import read_checked, write_checked
from sonde.session.process import read_start_ticks

SLEEP = (
    "import sonde, time; sonde.start(collector='off'); print('ready', flush=True); time.sleep(60)"
)


def edit_meta(folder: Path, **changes: object) -> Session:
    path = str(folder / "meta.json")
    write_checked(path, {**read_checked(path), **changes})
    return Session(str(folder))


def test_a_running_process_is_running_and_a_killed_one_killed(start) -> None:
    process = start(SLEEP)
    (session,) = list_sessions(os.environ["SONDE_DIR"])
    assert session.find_state() == "running"
    process.kill()
    process.wait()
    assert session.find_state() == "killed"


def test_a_zombie_is_dead(start) -> None:
    process = start(SLEEP)
    (session,) = list_sessions(os.environ["SONDE_DIR"])
    os.kill(process.pid, 9)
    wait_for(lambda: session.find_state() == "killed")
    assert read_start_ticks(process.pid) is None
    assert os.path.exists(f"/proc/{process.pid}")  # not waited for yet


def test_a_pid_used_again_is_not_mistaken(start, run) -> None:
    run("import sonde, os; sonde.start(collector='off'); os.kill(os.getpid(), 9)", check=False)
    (session,) = list_sessions(os.environ["SONDE_DIR"])
    other = start("print('ready', flush=True); import time; time.sleep(60)")
    session = edit_meta(Path(session.folder), pid=other.pid)
    assert session.find_state() == "killed" and not session.is_alive()


def test_a_file_that_is_damaged_after_it_was_read_is_not_remembered(run) -> None:
    run("import sonde; sonde.start(collector='off')")
    (session,) = list_sessions(os.environ["SONDE_DIR"])
    meta = Path(session.path("meta.json"))
    text = meta.read_text()
    meta.write_text(text.replace('"host": "', '"host": "x', 1))
    with pytest.raises(Damaged):
        Session(session.folder)
    meta.write_text(text)
    assert Session(session.folder).host == session.host


def test_without_file_locks_the_pid_decides(start) -> None:
    process = start(SLEEP)
    (session,) = list_sessions(os.environ["SONDE_DIR"])
    session = edit_meta(Path(session.folder), locked=False)
    assert session.is_alive()
    process.kill()
    process.wait()
    assert not session.is_alive()


def test_another_host_or_boot_is_unknown_or_over(start) -> None:
    start(SLEEP)
    (session,) = list_sessions(os.environ["SONDE_DIR"])
    copy = Path(session.folder + "-copy")
    shutil.copytree(session.folder, copy)
    assert edit_meta(copy, host="elsewhere").find_state() == "unknown"
    assert edit_meta(copy, host=session.host, boot_id="before").find_state() == "killed"


def test_a_copied_folder_answers_like_the_original(run, tmp_path: Path) -> None:
    folder = run(
        "import sonde, gc; print(sonde.start(collector='off')); gc.collect()"
    ).stdout.strip()
    moved = tmp_path / "elsewhere" / "copy"
    shutil.copytree(folder, moved)
    sql = "SELECT COUNT(*) AS n FROM python.gc_pause"
    assert sonde.open(str(moved)).query(sql) == sonde.open(folder).query(sql)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "{}", '{"format": 1}', '{"format": "1", "wall_ns": 3}', "\x00" * 50],
)
def test_a_folder_without_sound_meta_is_no_session(tmp_path: Path, text: str) -> None:
    (tmp_path / "meta.json").write_text(text)
    with pytest.raises(Damaged):
        Session(str(tmp_path))


def test_reading_changes_nothing(run, sonde_cli) -> None:
    folder = Path(
        run("import sonde, gc; print(sonde.start(collector='off')); gc.collect()").stdout.strip()
    )

    def fingerprint() -> dict[str, tuple[int, bytes]]:
        return {p.name: (p.stat().st_mtime_ns, p.read_bytes()) for p in folder.iterdir()}

    before = fingerprint()
    for args in (
        ("ps",),
        ("query", folder, "FROM python.gc_pause"),
        ("tables", folder),
        ("config", folder),
    ):
        assert sonde_cli(*args).returncode == 0
    assert fingerprint() == before


def test_another_user_can_neither_read_nor_steer(start) -> None:
    if os.getuid() != 0:
        pytest.skip("needs to be root to become another user")
    start(SLEEP)
    (session,) = list_sessions(os.environ["SONDE_DIR"])
    code = f"import os; os.setuid(65534); print(os.access({session.path('control')!r}, os.R_OK))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_wall_clock_that_jumps_leaves_rows_in_order(run) -> None:
    code = """
import time, sonde
class Row:
    n: int
emit = sonde.table(Row)
print(sonde.start(collector="off"))
for n in range(3):
    time.time_ns = lambda n=n: -10**18 * n     # whatever the wall clock says now
    emit(n)
"""
    folder = run(code).stdout.strip()
    rows = sonde.open(folder).query("SELECT n FROM job.row ORDER BY ts, t_ns").to_pylist()
    assert [row["n"] for row in rows] == [0, 1, 2]
