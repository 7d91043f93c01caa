"""The few lines that we write to a program's stderr: they reach nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

# Recording is not possible there, which costs one line.
START = "assert sonde.start(collector='off') is None\n"


@pytest.fixture
def spoiled(tmp_path: Path) -> dict[str, str]:
    """The environment of a program that cannot be recorded."""
    (tmp_path / "file").write_text("")
    return {"SONDE_DIR": str(tmp_path / "file" / "sonde")}


def test_the_line_reaches_stderr(run, spoiled) -> None:
    done = run("import sonde\n" + START, **spoiled)
    assert done.stderr.startswith("sonde: not recording: ") and done.stderr.count("\n") == 1


REUSE = """
os.close(2)
assert os.open("orders.db", os.O_RDWR | os.O_CREAT | os.O_TRUNC) == 2
os.write(2, b"RECORD-1\\n")
"""
CHECK = """
os.write(2, b"RECORD-2\\n")
print(open("orders.db").read())
"""


@pytest.mark.parametrize("order", ["import first", "import last", "inheritable"])
def test_a_file_that_became_descriptor_2_is_left_alone(
    order: str, run, spoiled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    begin = {
        "import first": "import sonde.job.recorder\n" + REUSE,
        "import last": REUSE + "import sonde\n",
        "inheritable": "import sonde.job.recorder\n" + REUSE + "os.set_inheritable(2, True)\n",
    }[order]
    done = run("import os\n" + begin + START + CHECK, **spoiled)
    assert done.stdout.split() == ["RECORD-1", "RECORD-2"]


def test_a_closed_stderr_is_left_alone(run, spoiled, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    begin = (
        "import os, sys\nsys.stderr.close()\nos.dup2(os.open('log', os.O_CREAT | os.O_RDWR), 2)\n"
    )
    run(begin + "import sonde\n" + START, **spoiled)
    assert (tmp_path / "log").read_text() == ""


def test_nobody_waits_for_a_pipe_that_is_full(run, spoiled) -> None:
    code = f"""
import os, signal
r, w = os.pipe()
os.set_blocking(w, False)
try:
    while True:
        os.write(w, bytes(1 << 16))
except BlockingIOError:
    os.set_blocking(w, True)
os.dup2(w, 2)
import sonde
{START}
print("done")
"""
    assert run(code, **spoiled).stdout == "done\n"


def test_a_pipe_that_nobody_reads_kills_nobody(run, spoiled) -> None:
    code = f"""
import os, signal
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
r, w = os.pipe()
os.dup2(w, 2)
os.close(r)
import sonde
{START}
print("done")
"""
    assert run(code, **spoiled).stdout == "done\n"
