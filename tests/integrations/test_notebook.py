"""Notebooks: values that show themselves, and the magics."""

from __future__ import annotations

import inspect
import subprocess
import sys
from types import SimpleNamespace

import pytest

import sonde
from sonde.advice.finding import Advice, Finding
from support.places import GOLDEN

HOSTILE = "</td><script>alert(1)</script>"


class Shell:
    """What the magics use of IPython's shell."""

    def __init__(self) -> None:
        self.magics: dict[tuple[str, str], object] = {}

    def register_magic_function(self, act, kind, name) -> None:
        self.magics[kind, name] = act

    def run_cell(self, cell: str) -> SimpleNamespace:
        exec(cell, {"sum": sum, "range": range})
        return SimpleNamespace(success=True)


def test_a_recording_and_advice_show_themselves_and_escape_names() -> None:
    recording = sonde.open(str(GOLDEN / "sealed") + "/")
    shown = recording._repr_html_()
    assert f"<bdi>{recording.sessions[0].pid}</bdi>" in shown and ".query(sql)" in shown
    finding = Finding("swap", HOSTILE, "critical", "most", 3, 3, 0.6, None, "", "",
                      {"util_pct": 43.2}, [], HOSTILE, "why", "do this")  # fmt: skip
    advice = Advice("", "", 10.0, 3, 0.0, ["one"], [finding])
    shown = advice._repr_html_()
    assert "<script" not in shown and "&lt;script&gt;" in shown
    assert "util 43.2 %" in shown and "Next: do this" in shown and "CRITICAL" in shown
    assert "Nothing is wrong" in Advice("", "", 10.0, 3, 0.0, ["one"])._repr_html_()
    lines = str(advice).splitlines()
    assert lines[0].startswith("CRITICAL: ") and lines[0].endswith("  [swap]"), lines
    assert lines[1] == "  util 43.2 %" and lines[-1] == "  next: do this"
    told: list[str] = []
    advice._repr_pretty_(SimpleNamespace(text=told.append), False)
    assert told == [str(advice)]


def test_an_error_of_ours_is_one_line_in_a_notebook() -> None:
    assert sonde.Error("no such job")._render_traceback_() == ["Error: no such job"]


def test_the_magics_profile_a_cell_and_ask_a_recording(run) -> None:
    done = run(
        "from types import SimpleNamespace\n" + inspect.getsource(Shell) + "import sonde\n"
        "shell = Shell(); sonde.load_ipython_extension(shell)\n"
        "cell = 'def slow():\\n  return sum(i * i for i in range(6_000_000))\\nslow()'\n"
        "assert shell.magics['cell', 'sonde']('', cell).tags == []\n"
        "result = shell.magics['cell', 'sonde']('night', cell)\n"
        "shown = result._repr_html_(); assert 'slow' in shown and '<table>' in shown, shown\n"
        "assert result.tags == ['night']\n"
        "told = []; result._repr_pretty_(SimpleNamespace(text=told.append), False)\n"
        "assert 'slow' in told[0] and '<' not in told[0].splitlines()[0]\n"
        "rows = shell.magics['line', 'sonde'](f'query {sonde.session().pid} SELECT 41 + 1 AS n')\n"
        "print(int(rows['n'][0].as_py() if hasattr(rows['n'][0], 'as_py') else rows['n'][0]))\n"
        "assert len(shell.magics['line', 'sonde']('query SELECT 41 + 1 AS n')) == 1\n"
        "assert sonde.open(sonde.session()).sessions[0].pid == sonde.session().pid\n"
        "try: shell.magics['line', 'sonde']('nothing')\n"
        "except sonde.Error as error: print('%sonde query' in str(error))\n"
    )
    assert done.stdout.split() == ["42", "True"]


def test_a_cell_that_waits_is_not_hidden_by_threads_of_the_kernel(run) -> None:
    done = run(
        "import threading, time\nfrom types import SimpleNamespace\nimport sonde\n"
        "kernel = {}\nname = '/opt/site-packages/kernel.py'\n"
        "exec(compile('import time\\ndef beat():\\n  time.sleep(60)', name, 'exec'), kernel)\n"
        "for _ in range(4): threading.Thread(target=kernel['beat'], daemon=True).start()\n"
        "class Shell(dict):\n"
        "  def register_magic_function(self, act, kind, name): self[kind] = act\n"
        "  def run_cell(self, cell):\n"
        "    exec(compile(cell, '/tmp/cell.py', 'exec'), {}); return SimpleNamespace(success=True)\n"
        "shell = Shell(); sonde.load_ipython_extension(shell)\n"
        "cell = 'import time\\ndef fetch():\\n  time.sleep(0.4)\\nfetch()'\n"
        "result = shell['cell']('', cell)\n"
        "rows = result.table()\n"
        "print(rows[0]['func'], round(rows[0]['self_pct']), {row['func'] for row in rows})\n"
        "print(result); print(result._repr_html_())\n"
        "shell['line']('tree')\n"
    )
    first, _, lines = done.stdout.partition("\n")
    func, share, *rest = first.split(maxsplit=2)
    assert func == "fetch" and int(share) > 90, done.stdout
    assert "beat" not in rest[0] and "profile_cell" not in rest[0]
    assert "line   4  fetch()" in lines and "<bdi>fetch()</bdi>" in lines
    assert "line   3  time.sleep(0.4)" in lines  # of a function that the cell defines
    assert "   total  share" in lines  # %sonde tree, of this process


def test_a_real_ipython_loads_the_extension() -> None:
    pytest.importorskip("IPython")
    code = (
        "%load_ext sonde\nprint('loaded', 'sonde' in get_ipython().magics_manager.magics['cell'])"
    )
    done = subprocess.run([sys.executable, "-m", "IPython", "-c", code], capture_output=True,
                          text=True, timeout=120, check=True)  # fmt: skip
    assert "loaded True" in done.stdout
