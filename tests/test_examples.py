"""The examples run and say what they promise."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

import sonde
from sonde import plugins
from support.needs import need
from support.places import TOP


def test_a_table_of_ones_own() -> None:
    done = subprocess.run(
        [sys.executable, str(TOP / "examples" / "own_table.py")],
        capture_output=True, text=True, check=True, timeout=240,
    )  # fmt: skip
    first, second = map(ast.literal_eval, done.stdout.splitlines())
    assert (first["stage"], first["batches"], first["norm"]) == ("eval", 100, None)
    assert (second["stage"], second["batches"]) == ("train", 1000) and 0 < second["norm"] <= 1


def test_the_transformer_learns_and_its_modules_are_shown(sonde_cli) -> None:
    need("torch")
    script = TOP / "examples" / "train.py"
    done = sonde_cli("run", "--set", "collector=off", script, "--seconds", "3")
    assert done.returncode == 0, done.stderr
    losses = [float(line.split()[-1]) for line in done.stdout.splitlines()]
    assert losses[-1] < losses[0] or len(losses) < 3  # a crowded machine makes a step or two
    shown = sonde_cli("modules", "all").stdout
    assert "a step (mean of" in shown and "blocks.* (4" in shown and "attention" in shown


def test_the_phases_of_a_serving_loop_are_inside_its_steps(sonde_cli) -> None:
    done = sonde_cli("run", "--set", "collector=off", TOP / "examples" / "serve.py")
    assert done.returncode == 0, done.stderr
    spans = sonde.open("all").query(
        "SELECT name, COUNT(*) AS n, SUM(dur_ns) AS ns FROM event.span GROUP BY ALL"
    )
    sums = {row["name"]: row for row in spans.to_pylist()}
    assert sums["request"]["n"] == 60 and sums["decode"]["n"] == sums["step"]["n"]
    assert sums["prefill"]["ns"] + sums["decode"]["ns"] < sums["step"]["ns"]


def test_the_readme_names_only_commands_that_exist() -> None:
    text = (TOP / "README.md").read_text()
    names = set(re.findall(r"[`$] ?sonde ([a-z]+)", text))
    assert {"run", "ps", "query", "tables", "config"} <= names
    assert names <= set(plugins.list_names("cli"))
    targets = set(re.findall(r"^([a-z-]+):", (TOP / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make ([a-z-]+)", text)) <= targets


def test_the_readmes_own_table_is_a_table() -> None:
    text = (TOP / "README.md").read_text()
    (code,) = [
        block
        for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        if "class Batch" in block
    ]
    code = code.replace('emit(step, loss.item(), "train", None)', "emit(1, 0.5, 'train', None)")
    folder = sonde.start(collector="off")
    code = code.replace("sonde.table(Batch)", "sonde.table(Batch, 'job.readme')")
    exec(code, {"__name__": "__main__"})
    rows = sonde.open(folder).query("SELECT step, loss, stage, grad_norm FROM job.readme")
    assert rows.to_pylist() == [{"step": 1, "loss": 0.5, "stage": "train", "grad_norm": None}]
