"""Our modules in processes of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from sonde.errors import Error
from sonde.web.own_process import run_module


def test_a_process_of_its_own_gives_way_and_can_be_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "asked.py").write_text(
        "import os, sys, time\n"
        "while len(sys.argv) > 1: time.sleep(0.1)\n"
        "print(os.getpriority(os.PRIO_PROCESS, 0))\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    usual = int(run_module("asked", [], 60.0, "late"))
    assert int(run_module("asked", [], 60.0, "late", niceness=usual + 7)) == usual + 7
    with pytest.raises(Error, match="it was too late"):
        run_module("asked", ["wait"], 0.5, "it was too late")
    with pytest.raises(Error, match="No module named nobody"):
        run_module("nobody", [], 60.0, "late")
