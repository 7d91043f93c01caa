"""Nodes of autograd's: whose they are, however they are seen and whatever they throw."""

from __future__ import annotations

import os

import pytest

from sonde.session import list_sessions
from sonde.store.recording import Recording
from support.needs import need

need("torch")

HEAD = """
import threading
import torch
from torch import nn
import sonde
from sonde.job.torch import seams
torch.set_num_threads(1)
if BY == "observer":
    seams._has_known_nodes = lambda torch: False
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.rest = nn.Linear(8, 8), nn.Sequential(nn.ReLU(), nn.Linear(8, 1))
    def forward(self, x): return self.rest(self.first(x))
def train(model, steps):
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(steps):
        optimizer.zero_grad(); model(torch.ones(4, 8)).sum().backward(); optimizer.step()
class Throw(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x * 1
    @staticmethod
    def backward(ctx, grad): raise ValueError("thrown")
class Inner(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x * 1
    @staticmethod
    def backward(ctx, grad):
        with torch.enable_grad():
            try: Throw.apply(torch.ones(2, requires_grad=True)).sum().backward()
            except ValueError: pass
        return grad
"""
WAYS = ("engine", "observer")
ALL = {"Net", "Net.first", "Net.rest", "Net.rest.1"}


@pytest.fixture
def run(run_torch):
    return run_torch


@pytest.fixture
def start(start_torch):
    return start_torch


@pytest.fixture(params=WAYS)
def record(run, request):
    def record(code: str, start: str = "sonde.start(collector='off', torch_budget_pct=0)\n") -> str:
        done = run(f"BY = {request.param!r}\n" + HEAD + start + code + "\nsonde.stop()")
        return str(done.stdout)

    record.by = request.param
    return record


def query(sql: str) -> list[tuple[object, ...]]:
    found = Recording(list_sessions(os.environ["SONDE_DIR"])).query(sql).to_pylist()
    return [tuple(row.values()) for row in found]


def list_backward() -> dict[int, set[str]]:
    """Modules with backward, by step."""
    found: dict[int, set[str]] = {}
    sql = "SELECT step, module FROM python.torch_trace WHERE stage = 'backward' AND duration > 0"
    for step, module in query(sql):
        found.setdefault(step, set()).add(module)
    return found


def test_every_node_has_an_owner_and_it_is_said_how_it_is_seen(record) -> None:
    record("train(Net(), 6)")
    backward = list_backward()
    assert sorted(backward) == list(range(6))
    # Without a number of its own, a ReLU's node may be the only one of its module.
    assert all(modules - {"Net.rest.0"} == ALL for modules in backward.values())
    # The sum is nobody's.
    assert query("SELECT median(owned_pct) > 50 FROM python.torch_step WHERE step > 1") == [(True,)]
    said = query(
        "SELECT detail FROM sonde.source_log WHERE source = 'torch' AND detail IS NOT NULL"
    )
    expected = {
        "engine": "as the engine runs them",
        "observer": "as torch reports them to observers",
    }
    assert expected[record.by] in said[-1][0]


@pytest.mark.parametrize(
    ("make", "error"),
    [
        ("Throw.apply(model(torch.ones(4, 8)))", "ValueError"),
        # Found by torch itself, in C++.
        ("(lambda y: [y.exp(), y.mul_(2)][0])(model(torch.ones(4, 8)).exp())", "RuntimeError"),
    ],
)
def test_what_a_node_throws_is_the_programs_and_ends_it(record, make: str, error: str) -> None:
    said = record(
        "model = Net(); train(model, 3)\n"
        f"for _ in range(3):\n    try: ({make}).sum().backward()\n"
        "    except Exception as error: print(type(error).__name__)\n"
        "train(model, 3)"
    )
    assert said.split() == [error] * 3
    assert query("SELECT DISTINCT stage FROM python.torch_trace ORDER BY 1") == [
        ("backward",), ("forward",), ("step",),
    ]  # fmt: skip
    last = list_backward()
    assert all(last[step] - {"Net.rest.0"} == ALL for step in (4, 5))


def test_what_a_pass_throws_that_python_did_not_begin_ends_its_nodes_too(record) -> None:
    record(
        "model = Net(); train(model, 3)\n"
        "y = Throw.apply(model(torch.ones(4, 8))).sum()\n"
        "try: torch.ops.aten._backward(y, [model.first.weight])\n"
        "except ValueError: pass\n"
        "train(model, 3)"
    )
    assert query("SELECT count(*) FROM python.torch_trace WHERE stage = 'recompute'") == [(0,)]
    assert query("SELECT count(*) FROM python.torch_step WHERE forward_ns <= 0") == [(0,)]


@pytest.mark.parametrize(
    "first",
    [
        # Before any module; and a chain in which two of a node's numbers are the same.
        "y = torch.ones(2, requires_grad=True)\nfor _ in range(40): y = y + 1\ny.sum().backward()",
        "torch.ones(2, requires_grad=True) + 1\ny = torch.ones(2, requires_grad=True)\n"
        "for _ in range(400): y = y + 1\ny.sum().backward()",
    ],
)
def test_whatever_runs_first_modules_have_backward(record, first: str) -> None:
    record(f"{first}\ntrain(Net(), 4)")
    assert all(list_backward()[step] - {"Net.rest.0"} == ALL for step in (1, 2, 3))


def test_what_is_thrown_and_caught_inside_a_node_leaves_it_as_it_was(record) -> None:
    record(
        "class Outer(nn.Module):\n"
        "    def __init__(self): super().__init__(); self.first = nn.Linear(8, 8)\n"
        "    def forward(self, x): return Inner.apply(self.first(x))\n"
        "train(Outer(), 6)"
    )
    assert all(modules == {"Outer", "Outer.first"} for modules in list_backward().values())
    (row,) = query(
        "SELECT count(*) FILTER (stage = 'recompute'), count(*) FILTER (stage = 'backward' AND "
        "module = 'Outer' AND self_duration <= 0) FROM python.torch_trace"
    )
    assert row == (0, 0)


def test_nodes_belong_to_the_models_of_their_threads(record) -> None:
    record(
        "for letter in 'ABC': globals()[letter] = type(letter, (Net,), {})\n"
        "train(Net(), 3)\n"
        "threads = [threading.Thread(target=train, args=(one(), 20)) for one in (A, B, C)]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()"
    )
    found = query(
        "SELECT left(module, 1) AS model, count(DISTINCT thread), count(*) FILTER "
        "(length(module) = 1 AND stage = 'backward') FROM python.torch_trace "
        "WHERE stage <> 'step' AND left(module, 1) <> 'N' GROUP BY 1 ORDER BY 1"
    )
    # One thread may end a step in which another one has yet to go back.
    assert [row[:2] for row in found] == [("A", 1), ("B", 1), ("C", 1)]
    assert all(row[2] > 10 for row in found)


def test_after_the_end_the_engine_is_torchs_own_and_can_be_watched_again(record) -> None:
    record(
        "train(Net(), 3); sonde.stop(); train(Net(), 3)\n"
        "sonde.start(collector='off', torch_budget_pct=0); train(Net(), 3)"
    )
    assert query(
        "SELECT count(*) FROM python.torch_trace WHERE stage = 'backward' AND module = 'Net'"
    ) == [(6,)]
