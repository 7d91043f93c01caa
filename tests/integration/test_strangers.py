"""Recordings of other users, and those that strangers made: they are read, and never written to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import sonde
from conftest import wait_for
from sonde.session import Session

WRITING = (
    ("config", "stack.every=5ms"), ("pause",), ("resume",), ("stop",), ("snapshot",),
    ("profile", "--duration", "0.1s"), ("profile", "start"), ("capture",),
)  # fmt: skip


@pytest.fixture
def theirs() -> Path:
    """A live recording in a folder of another user, with links where a tool would write."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    folder = Path(str(sonde.start(collector="off")))
    for name in ("snapshots", "runs", "captures"):
        (folder / name).symlink_to("../../victim")
    (folder.parent.parent / "victim").mkdir()
    for path in (folder, *folder.iterdir()):
        os.chown(path, 54321, 54321, follow_symlinks=False)
    return folder


def read_state(folder: Path) -> tuple[object, ...]:
    session = Session(str(folder))
    control = session.read_control()
    return session.read_config(), control["on"], control["asked"], control["run_asked"]


def test_root_does_not_write_into_a_recording_of_another_user(
    theirs: Path, tmp_path: Path, sonde_cli
) -> None:
    before = read_state(theirs)
    for command, *words in WRITING:
        at = 1 if words and not words[0].startswith("-") and command == "profile" else 0
        done = sonde_cli(command, *words[:at], theirs, *words[at:])
        assert done.returncode == 1 and done.stdout == "", (command, done)
        assert "belongs to user #54321" in done.stderr, (command, done)
    assert list((tmp_path / "victim").iterdir()) == []
    assert read_state(theirs) == before


def test_root_reads_a_recording_of_another_user(theirs: Path, sonde_cli) -> None:
    wait_for(lambda: "test_strangers.py" in sonde_cli("stacks", theirs).stdout)
    done = sonde_cli("stacks", theirs, "--locals")
    assert done.returncode == 0
    assert "last stacks that it saw" in done.stdout and "belongs to user #54321" in done.stdout
    done = sonde_cli("query", theirs, "SELECT 42 AS answer")
    assert done.returncode == 0 and "42" in done.stdout


def test_a_link_in_a_copied_recording_leads_nowhere(tmp_path: Path, sonde_cli) -> None:
    """An archive that somebody sent may contain links in place of folders."""
    folder = Path(str(sonde.start(collector="off")))
    sonde.stop()
    for name in ("snapshots", "runs"):
        (folder / name).symlink_to("../../victim")
    (tmp_path / "victim").mkdir()
    for command in (("snapshot",), ("profile",)):
        done = sonde_cli(*command, folder)
        assert done.returncode == 1 and "Traceback" not in done.stderr, done
    assert list((tmp_path / "victim").iterdir()) == []
