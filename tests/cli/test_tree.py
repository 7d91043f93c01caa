"""`sonde tree`: the call tree as text, CSV and JSON."""

from __future__ import annotations

import json

from sonde.cli import main

PROGRAM = """
import json, time
def parse(text):
    return json.loads(text)
def work():
    end = time.monotonic() + 0.6
    while time.monotonic() < end:
        parse(text)
    time.sleep(0.3)
text = json.dumps(list(range(50000)))
work()
"""


def test_all_commands_call_a_file_by_the_same_name(
    run, root, capsys, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where the program begins
    run(PROGRAM, SONDE="1", SONDE_COLLECTOR="off")
    for command in ("tree", "top", "advise"):
        assert main([command, "all"]) == 0
        text = capsys.readouterr().out
        assert "program.py:" in text and f"{tmp_path.name}/program.py:" not in text, text


def test_it_names_the_functions_the_library_call_and_the_wait(run, root, capsys) -> None:
    run(PROGRAM, SONDE="1", SONDE_COLLECTOR="off")
    assert main(["tree", "all"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("program.py (") and " working (" in text
    assert any("json.loads" in line and "program.py:4" in line for line in text.splitlines()), text
    assert main(["tree", "all", "--sort", "waiting", "--limit", "3"]) == 0
    text = capsys.readouterr().out
    assert "time.sleep(0.3)" in text, text
    assert main(["tree", "all", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    (work,) = [row for row in rows if row["name"] == "work"]
    assert work["owner"] == "mine" and work["total_s"] >= 0.8
    assert abs(work["working_s"] + work["waiting_s"] - work["total_s"]) < 1e-5
