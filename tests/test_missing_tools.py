"""Tests where a package of sonde[tools] is missing: what needs it is left out, the rest is run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent
# As on a free-threaded Python, whatever is installed here.
WITHOUT = """
import support.missing_tools as tools
tools.find_spec = lambda name: None

def pytest_configure(config):
    config.pluginmanager.register(tools.MissingTools())
"""


def test_a_file_that_cannot_be_imported_without_it_is_left_out_and_the_others_run(tmp_path) -> None:
    (tmp_path / "conftest.py").write_text(WITHOUT)
    (tmp_path / "test_needs.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'duckdb'\")"
    )
    (tmp_path / "test_other.py").write_text("def test_other():\n    pass\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path],
        capture_output=True, text=True, timeout=240, check=False, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(TESTS), "PYTEST_ADDOPTS": ""},
    )  # fmt: skip
    assert "1 passed, 1 skipped" in done.stdout, done.stdout
    assert "duckdb is not installed" in done.stdout
