"""Processes of our own: nothing that is installed beside sonde breaks them, and failures are told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import sonde
from conftest import find_processes, wait_for
from sonde import launch
from sonde.session import list_sessions

PACKAGE = Path(sonde.__file__).parent  # where the core is, too

SHADOWED = """
import dataclasses, sys, time
sys.path.insert(0, sys.argv[1])
import sonde
assert sonde.__file__.startswith(sys.argv[1])
sonde.start()
print("ready", flush=True)
time.sleep(600)
"""
ALONE = """
import os, sonde, time
os.environ["PYTHONHOME"] = "/nowhere"  # no Python starts from here on
sonde.start()
print("ready", flush=True)
time.sleep(600)
"""


def test_a_module_beside_sonde_does_not_hide_the_standard_library(
    start, root: Path, tmp_path: Path
) -> None:
    site = tmp_path / "site-packages"
    site.mkdir()
    (site / "sonde").symlink_to(PACKAGE)
    for name in ("dataclasses", "typing", "threading", "queue"):
        (site / f"{name}.py").write_text("raise ImportError('a backport for Python 2')")
    start(SHADOWED, str(site))
    wait_for(lambda: launch.has_collector(str(root)), 60)
    wait_for(lambda: len(find_processes(str(root))) == 1)  # several may start; all but one give way
    (pid,) = find_processes(str(root))
    command = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    assert command[1] == str(site / "sonde" / "background.py")
    # When memory runs out, the kernel takes this one and not the job.
    wait_for(lambda: Path(f"/proc/{pid}/oom_score_adj").read_text() == "1000\n")


def test_a_process_that_fails_says_why(tmp_path: Path) -> None:
    report = tmp_path / "report"
    command = [sys.executable, str(PACKAGE / "background.py"), str(report), "collector.nothing"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 1
    assert report.read_text().startswith("ModuleNotFoundError: No module named 'sonde.collector.no")
    assert report.read_text().count("\n") == 1


def test_a_missing_collector_is_a_row_with_the_reason(start, root: Path) -> None:
    start(ALONE)
    Path(launch.collector_report(str(root))).write_text("ImportError: no pyarrow (x.py, line 3)\n")
    sql = "SELECT state, detail, t_ns > 0 AS t FROM sonde.source WHERE source = 'collector'"
    (session,) = list_sessions(os.environ["SONDE_DIR"])
    assert sonde.open(session.folder).query(sql).to_pylist() == [
        {"state": "failed", "detail": "ImportError: no pyarrow (x.py, line 3)", "t": True}
    ]


def test_a_collector_that_starts_takes_the_report_away(start, root: Path) -> None:
    root.mkdir(mode=0o700)
    report = Path(launch.collector_report(str(root)))
    report.write_text("it failed\n")
    start("import sonde, time; sonde.start(); print('ready', flush=True); time.sleep(600)")
    wait_for(lambda: not report.exists(), 60)


def test_our_own_processes_do_without_pandas(tmp_path: Path, run, root) -> None:
    """Arrow would import it, which takes longer than most commands."""
    (tmp_path / "pandas.py").write_text("raise SystemExit('pandas was imported')")
    run("import sonde; sonde.start(collector=False)")
    words = ["query", "program.py", "SELECT COUNT(*) AS n FROM sonde.source", "--format", "csv"]
    done = subprocess.run(
        [sys.executable, "-m", "sonde", *words], capture_output=True, text=True, timeout=100,
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.startswith("n\n"), done.stderr


WITHOUT = """
import sys
from sonde.background import leave_out_numpy
leave_out_numpy()
import pyarrow as pa, pyarrow.compute as pc
assert "numpy" not in sys.modules and pc.sum(pa.array([1, 2])).as_py() == 3
import numpy
assert numpy.arange(3).sum() == 3
"""


def test_arrow_does_without_numpy_and_others_get_it() -> None:
    pytest.importorskip("numpy")
    if int(pytest.importorskip("pyarrow").__version__.partition(".")[0]) < 18:
        pytest.skip("this version of Arrow needs numpy")
    subprocess.run([sys.executable, "-c", WITHOUT], timeout=240, check=True)


@pytest.mark.skipif(sys.version_info < (3, 15), reason="imports are lazy from Python 3.15 on")
def test_queries_work_where_all_imports_are_lazy(root: Path) -> None:
    # Arrow's functions fail there, and so did every query of a table of stacks.
    env = {**os.environ, "PYTHON_LAZY_IMPORTS": "all"}
    program = "import sonde, time; sonde.start(); time.sleep(0.3)"
    subprocess.run([sys.executable, "-c", program], env=env, timeout=240, check=True)
    (session,) = list_sessions(str(root))
    sql = "SELECT count(*) > 0 AS found FROM python.stack_sample"
    command = [sys.executable, "-m", "sonde", "query", session.folder, sql, "--format", "csv"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240)
    assert done.stdout.split() == ["found", "True"], done.stderr
