"""pstats: counts and seconds as the profile module and its viewers read them."""

from __future__ import annotations

import io
import pstats
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from sonde.analysis.profile import Profile
from support.handmade_stacks import (
    HOSTILE,
    WALL,
    FakeRecording,
    record_training,
    write,
)


def read_pstats(profile: Profile, folder: Path) -> dict[str, tuple]:
    stats = pstats.Stats(str(write("pstats", profile, folder)))
    return {func: row for (_, _, func), row in stats.stats.items()}


def test_pstats_counts_samples_and_sums_seconds(tmp_path: Path) -> None:
    stats = pstats.Stats(str(write("pstats", record_training().profile(), tmp_path)))
    assert stats.total_tt == pytest.approx(WALL / 1e9)
    rows = {func: row[:4] for (_, _, func), row in stats.stats.items()}
    assert rows["main"] == (12, 12, 0.0, 0.12)
    assert rows["wait"] == (12, 12, 0.12, 0.12)
    assert rows["matmul"] == (6, 6, 0.06, 0.06)
    assert rows["backward"] == (4, 4, 0.02, 0.04)


def test_pstats_counts_a_function_that_calls_itself_once_per_sample(tmp_path: Path) -> None:
    rows = read_pstats(FakeRecording().see("main|fib|fib|fib", 10).profile(), tmp_path)
    assert rows["fib"][:4] == (1, 1, 0.01, 0.01)
    assert {caller[2]: row for caller, row in rows["fib"][4].items()} == {
        "main": (1, 1, 0.0, 0.01), "fib": (1, 1, 0.01, 0.01),
    }  # fmt: skip


def test_pstats_splits_a_function_by_its_callers(tmp_path: Path) -> None:
    callers = read_pstats(record_training().profile(weight="cpu"), tmp_path)["matmul"][4]
    assert {caller[2]: row for caller, row in callers.items()} == {
        "forward": (4, 4, 0.016, 0.016), "backward": (2, 2, 0.008, 0.008),
    }  # fmt: skip


def test_pstats_prints_itself_its_callers_and_its_callees(tmp_path: Path) -> None:
    path = write("pstats", record_training().profile(), tmp_path)
    out = io.StringIO()
    stats = pstats.Stats(str(path), stream=out).sort_stats("cumulative")
    stats.print_stats()
    stats.print_callers()
    stats.print_callees()
    assert "train.py:10(main)" in out.getvalue() and HOSTILE in out.getvalue()
    doubled = pstats.Stats(str(path), str(path))
    assert doubled.total_tt == pytest.approx(2 * WALL / 1e9)


def test_gprof2dot_reads_pstats(tmp_path: Path) -> None:
    pytest.importorskip("gprof2dot")
    path = write("pstats", record_training().profile(), tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "gprof2dot", "-f", "pstats", "-n0", "-e0", str(path)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert re.search(r"train:20:train\\n33.33%\\n\(0.00%\)\\n8", done.stdout), done.stdout


def test_snakeviz_reads_pstats(tmp_path: Path) -> None:
    pytest.importorskip("snakeviz")
    from snakeviz.stats import json_stats, table_rows

    stats = pstats.Stats(str(write("pstats", record_training().profile(), tmp_path)))
    rows = {row[5]: row for row in table_rows(stats)}
    assert rows["train.py:40(matmul)"][1] == "0.06"
    tree = json_stats(stats)
    assert {key.rpartition("(")[2] for key in tree} >= {"main)", "train)", "wait)"}


def test_flameprof_reads_pstats(tmp_path: Path) -> None:
    pytest.importorskip("flameprof")
    import flameprof

    stats = pstats.Stats(str(write("pstats", record_training().profile(), tmp_path)))
    out = io.StringIO()
    flameprof.render(stats.stats, out, "svg")
    texts = [node.text or "" for node in ElementTree.fromstring(out.getvalue()).iter()]
    assert any("main" in text for text in texts) and any("matmul" in text for text in texts)
