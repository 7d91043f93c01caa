"""The shapes of what modules are given: asked for by torch.shapes."""

from __future__ import annotations

import os

import pytest

from sonde.session import list_sessions
from sonde.store.recording import Recording
from support.needs import need

need("torch")

PROGRAM = """
import torch
from torch import nn
import sonde
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.rest = nn.Linear(8, 2), nn.Identity()
    def forward(self, x, *others, mask=None): return self.rest(self.first(x))
sonde.start(collector="off", torch_budget_pct=0, **{settings!r})
model = Net()
model(torch.ones(4, 8))
model(torch.ones(3, 8), [torch.ones(1), (torch.ones(()), "text")], mask=torch.ones(3, 3))
traced = torch.jit.trace(Net(), torch.ones(5, 8))
assert "size" not in str(traced.graph), traced.graph
sonde.stop()
"""


@pytest.fixture
def record(run_torch):
    def record(**settings: str) -> list[tuple[str, str | None]]:
        run_torch(PROGRAM.replace("{settings!r}", repr(settings)))
        rows = Recording(list_sessions(os.environ["SONDE_DIR"])).query(
            "SELECT module, input_shapes FROM python.torch_trace WHERE stage = 'forward'"
            " ORDER BY t_ns LIMIT 6"
        )
        return [(row["module"], row["input_shapes"]) for row in rows.to_pylist()]

    return record


def test_shapes_of_all_tensors_in_the_arguments_are_recorded(record) -> None:
    assert record(torch_shapes="on") == [
        ("Net", "[[4,8]]"), ("Net.first", "[[4,8]]"), ("Net.rest", "[[4,2]]"),
        ("Net", "[[3,8],[1],[],[3,3]]"), ("Net.first", "[[3,8]]"), ("Net.rest", "[[3,2]]"),
    ]  # fmt: skip


def test_shapes_are_not_recorded_unless_asked_for(record) -> None:
    assert {shapes for _module, shapes in record()} == {None}
