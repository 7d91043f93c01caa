"""How users name recordings."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sonde.cli import ps
from sonde.errors import NoSession
from sonde.session.target import find_sessions


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Path]:
    """A folder of recordings that this user may not look into."""
    folder = tmp_path / "closed"
    folder.mkdir()
    (folder / "host-1-20200101T000000.000000").mkdir()
    folder.chmod(0)
    is_root = os.geteuid() == 0  # who may read everything
    if is_root:
        os.seteuid(65534)
    yield folder
    if is_root:
        os.seteuid(0)
    folder.chmod(0o700)


@pytest.mark.parametrize(
    "target", ["4242", "all", "train.py", "host-1-20200101T000000.000000", "folder"]
)
def test_a_folder_that_may_not_be_read_is_not_called_empty(closed: Path, target: str) -> None:
    if target == "folder":
        target = str(closed / "host-1-20200101T000000.000000")
    with pytest.raises(NoSession, match=r"belongs to user .*, and nobody else may read it"):
        find_sessions(target, str(closed))


def test_ps_does_not_call_a_folder_empty_that_may_not_be_read(closed: Path) -> None:
    with pytest.raises(NoSession, match="nobody else may read it"):
        ps._list_here(str(closed))


def test_words_of_a_command_tell_two_runs_of_a_program_apart(root: Path, run) -> None:
    for task in ("nightly", "report"):
        run("import sonde; sonde.start()", task, SONDE_COLLECTOR="off")
    (nightly,) = find_sessions("program.py nightly", str(root))
    assert nightly.meta.argv[-1] == "nightly"
    with pytest.raises(NoSession, match=r"no recording called program\.py night;"):
        find_sessions("program.py night", str(root))  # whole words only
