"""Tests that end their worker, or stop it, are told; the others go on."""

from __future__ import annotations

import re
import subprocess
import sys

from conftest import TIMEOUT_S
from support.places import TESTS

PLUGIN = """
import pytest
from support.worker_watch import WorkerWatch
@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(WorkerWatch(12.0, reporter.write_line))
"""

BAD = """
import os, signal, time
def test_before(): pass
def test_stopped(): os.kill(os.getpid(), signal.SIGSTOP)
def test_between(): pass
def test_gone():
    if os.fork() == 0:  # has the pipe of its parent, and outlives it
        time.sleep(600)
    os._exit(3)
def test_after(): pass
"""

GOOD = "def test_a(): pass\ndef test_b(): pass\n"


def test_a_worker_that_no_limit_ends_is_ended_and_the_rest_runs(tmp_path) -> None:
    for name, text in (("conftest", PLUGIN), ("test_bad", BAD), ("test_good", GOOD)):
        (tmp_path / f"{name}.py").write_text(text)
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile",
            "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", ".", ".",
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S,
        env={"PYTHONPATH": str(TESTS)},
    )  # fmt: skip
    assert "2 failed, 5 passed" in done.stdout, done.stdout + done.stderr
    silent = re.findall(r"is silent for 12 s; tests that run: (.*)", done.stdout)
    assert [one.split("::")[-1] for one in silent] == ["test_stopped", "test_gone"]
    assert done.stdout.count("exec(eval(sys.stdin.readline()))") >= 2  # where each stood
