"""The Makefile, where it does the same with one Python after the other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAKE = """#!/bin/sh
# In the place of make: what is asked of the first Python fails.
case "$*" in *VENV=*7.1*) exit 2 ;; esac
"""
PYTHON = """#!/bin/sh
case "$2" in *abiflags*) echo "{version} $0" ;; *) echo {version}.0 ;; esac
"""


def write_program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("target, variable", [("test-all", "VERSIONS"), ("test-free", "FREE")])
def test_a_python_that_fails_does_not_keep_the_others_from_being_tested(
    tmp_path, monkeypatch, target, variable
):
    make = write_program(tmp_path / "make", MAKE)
    for version in ("7.1", "7.2"):
        write_program(
            tmp_path / version / "bin" / f"python{version}", PYTHON.format(version=version)
        )
    monkeypatch.setenv("TEST_PYTHONS", str(tmp_path))
    monkeypatch.delenv("MAKEFLAGS", raising=False)
    done = subprocess.run(
        ["make", "-C", ROOT, "--no-print-directory", target, f"MAKE={make}", f"{variable}=7.1 7.2 7.3",
         f"PYTHON={sys.executable}"],
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode != 0, done.stdout
    last = done.stdout.splitlines()[-1]
    assert last.startswith("tested with 7.1") and "7.2" in last, done.stdout + done.stderr
    assert last.endswith("7.3; failed: 7.1"), last
