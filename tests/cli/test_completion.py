"""Completion, asked by real shells."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import sonde

BASH = """
source <(sonde completion bash)
COMP_WORDS=(sonde "$@"); COMP_CWORD=$#
_sonde
printf '%s\\n' "${COMPREPLY[@]}"
"""
FISH = "sonde completion fish | source; complete -C (string join ' ' -- sonde $argv)"


@pytest.fixture(params=["bash", "fish"])
def complete(request, tmp_path: Path, monkeypatch):
    """What a shell offers for these words, the last of which is begun."""
    if shutil.which(request.param) is None:
        pytest.skip(f"there is no {request.param}")
    program = tmp_path / "bin" / "sonde"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m sonde "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    script = ["-c", BASH, "bash"] if request.param == "bash" else ["-c", FISH]

    def ask(*words: str) -> set[str]:
        command = [request.param, *script, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        return {line.partition("\t")[0] for line in done.stdout.splitlines()}

    return ask


def test_commands_options_values_and_targets_are_completed(complete, monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", ["$(touch harm).py"])
    sonde.start(collector="off")
    assert complete("sta") == {"stacks"}
    assert {"--locals", "--tasks"} <= complete("stacks", "--")
    assert complete("query", "1", "--format", "par") >= {"parquet"}
    assert str(os.getpid()) in complete("stacks", str(os.getpid())[:2])
    assert complete("snapshot", "mer") >= {"merge"}
    assert not Path("harm").exists()
