"""A path belongs to one job, and to the newest one."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from sonde.errors import Error
from sonde.export.path_claim import claim, name_lock
from sonde.export.profiler_writer import ProfileFile


def test_a_file_is_one_writers_until_it_lets_go(tmp_path: Path) -> None:
    lock = name_lock(str(tmp_path / "p.json"), str(tmp_path))
    first = claim(lock, os.getpid())
    assert first is not None
    assert claim(lock, os.getpid()) is None
    os.unlink(first[0])
    os.close(first[1])
    again = claim(lock, os.getpid())
    assert again is not None
    os.close(again[1])


def test_the_late_writer_of_a_killed_job_leaves_the_path_to_the_job_after_it(
    run, tmp_path: Path
) -> None:
    folder = run("import sonde; print(sonde.start(collector='off'))").stdout.strip()
    path = tmp_path / "p.json"
    request = {
        "session": folder, "path": str(path), "is_child": False, "parts": [], "period_s": None,
        "windows": [time.monotonic_ns()],
    }  # fmt: skip
    file = ProfileFile(request, str(tmp_path))
    assert file.path == str(path)  # nobody else has had it
    file.close()
    held = claim(name_lock(str(path), str(tmp_path)), os.getpid())
    assert held is not None
    with pytest.raises(Error, match="another one has had the path since"):
        ProfileFile(request, str(tmp_path))
    os.unlink(held[0])
    os.close(held[1])
    path.write_text("[]")
    with pytest.raises(Error, match="another one has had the path since"):
        ProfileFile(request, str(tmp_path))
    assert os.listdir(tmp_path).count("p.json") == 1
