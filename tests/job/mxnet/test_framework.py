"""PyTorch in a profile of sonde.profiler: its operators and modules, in the sums and in the trace."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.needs import need

need("torch")

# The example of the original's own documentation, around a loop of torch.
HEAD = """
import torch
from torch import nn
from sonde import profiler
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
profiler.set_config(profile_all=True, filename='profile.json', continuous_dump=True,
                    aggregate_stats=True, dump_period=0.1)
"""
EXAMPLE = """
profiler.set_state('run')
train(40)
profiler.pause()
train(70)
profiler.resume()
train(20)
profiler.set_state('stop')
print(profiler.dumps(format='json'))
profiler.dump()
"""


@pytest.fixture
def run(run_torch: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.chdir(tmp_path)
    return run_torch


def read_times(text: str) -> dict[str, dict[str, dict[str, float]]]:
    times: dict[str, dict[str, dict[str, float]]] = json.loads(text)["Time"]
    return times


def count_rows(path: Path) -> Counter[tuple[str, str]]:
    events = json.loads(path.read_text())["traceEvents"]
    return Counter((event["cat"], event["name"]) for event in events if event["ph"] == "X")


def test_every_operator_and_module_is_in_the_sums_and_in_the_trace(
    run: Any, tmp_path: Path
) -> None:
    times = read_times(run(HEAD + EXAMPLE).stdout)
    counts = {(kind, name): sums["Count"] for kind in times for name, sums in times[kind].items()}
    # A step calls addmm once, and mm in the backward pass; what lies in the pause is not counted.
    assert counts["operator", "aten::addmm"] == counts["operator", "AddmmBackward0"] == 60
    assert counts["module,forward", "Sequential.0"] == counts["module,backward", "Sequential"] == 60
    assert counts["optimizer", "SGD"] == 60
    linear = times["operator"]["aten::linear"]
    assert linear["Total"] >= times["operator"]["aten::addmm"]["Total"]
    assert 0 < linear["Min"] <= linear["Avg"] <= linear["Max"] <= linear["Total"]
    shown = count_rows(tmp_path / "profile.json")
    assert shown["operators", "aten::addmm"] == shown["modules", "Sequential.0"] == 60
    assert shown["backward", "Sequential"] == shown["modules", "SGD"] == 60


def test_a_profile_in_a_recording_records_all_of_torch_while_it_lasts(run: Any) -> None:
    code = (
        "import os, sonde\nsonde.start(collector='off')\ntrain(3)\n" + EXAMPLE + "train(9)\n"
        "sonde.step()\nfrom sonde.job.torch.steps import steps\n"
        "rows = sonde.open(os.getpid()).query(\n"
        "    'SELECT COUNT(*) AS n FROM python.operator WHERE op = $$aten::addmm$$')\n"
        "print(steps.profiled, rows['n'][0])\n"
    )
    *text, last = run(HEAD + code).stdout.splitlines()
    times = read_times("\n".join(text))
    assert times["operator"]["aten::addmm"]["Count"] == 60
    assert times["module,forward"]["Sequential"]["Count"] == 60
    assert last == "False 60"


def test_the_last_call_of_a_model_that_is_not_trained_counts(run: Any, tmp_path: Path) -> None:
    code = (
        "profiler.set_state('run')\nwith torch.no_grad():\n"
        "    for _ in range(5): model(torch.ones(2, 8))\n"
        "profiler.set_state('stop')\nprint(profiler.dumps(format='json'))\nprofiler.dump()\n"
        "assert profiler.dumps(format='json').count('Sequential.0') == 1\n"
    )
    times = read_times(run(HEAD + code).stdout)
    assert times["module,forward"]["Sequential"]["Count"] == 5
    assert count_rows(tmp_path / "profile.json")["modules", "Sequential"] == 5


def test_resetting_the_sums_resets_those_of_torch(run: Any) -> None:
    code = (
        "profiler.set_state('run')\ntrain(3)\nprofiler.dumps(reset=True)\ntrain(2)\n"
        "profiler.set_state('stop')\nprint(profiler.dumps(format='json'))\n"
    )
    times = read_times(run(HEAD + code).stdout)
    assert times["operator"]["aten::addmm"]["Count"] == 2
    assert times["module,forward"]["Sequential"]["Count"] == 2


def test_operators_are_left_alone_when_they_are_not_wanted(run: Any) -> None:
    code = (
        "profiler.set_config(profile_symbolic=False, profile_imperative=False, aggregate_stats=True,"
        " filename='profile.json')\n"
        "profiler.set_state('run')\ntrain(3)\nprint(profiler.dumps(format='json'))\n"
    )
    assert read_times(run(HEAD + code).stdout) == {}


def test_operators_of_threads_and_of_a_forked_child_are_counted_apart(run: Any) -> None:
    code = (
        "import os, threading\nprofiler.set_state('run')\nx = torch.ones(2, 2)\n"
        "threads = [threading.Thread(target=lambda: [x.mm(x) for _ in range(50)]) for _ in range(4)]\n"
        "[one.start() for one in threads]; [one.join() for one in threads]\n"
        "child = os.fork()\n"
        "if not child:\n    [x.mm(x) for _ in range(7)]; os._exit(0)\n"
        "os.waitpid(child, 0)\nprint(profiler.dumps(format='json'))\n"
    )
    assert read_times(run(HEAD + code).stdout)["operator"]["aten::mm"]["Count"] == 200
