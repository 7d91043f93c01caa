"""A device that waits for the host, one that does not, and one that changes its mind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sonde.session import list_sessions
from sonde.store.recording import Recording
from support.native_tools import make_device
from support.needs import need

need("torch")

HEAD = """
import ctypes, time
import torch
from torch import nn
import sonde
from sonde import _core
from sonde.job.torch import recording as tracing

pretended = ctypes.CDLL(LIBRARY)
pretended.work.argtypes = [ctypes.c_int64]
def find_device():
    _core.torch_device(LIBRARY, LIBRARY, 0, 7)
    return "cuda:0"
tracing.find_device = find_device
tracing.TorchRecording._read_memory = lambda self: None  # it has none

def do(part):
    time.sleep(0.001)
    pretended.work(int(part.ms * 1e6))
class Work(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, part):
        ctx.part = part
        do(part)
        return x * 1
    @staticmethod
    def backward(ctx, grad):
        do(ctx.part)
        return grad * 1, None
class Part(nn.Module):
    ms = 0
    def forward(self, x): return Work.apply(x, self)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = Part(), Part(), nn.Linear(4, 1)
    def forward(self, x): return self.last(self.second(self.first(x)))
model = Net()
optimizer = torch.optim.SGD(model.parameters(), 0.01)
def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4, requires_grad=True)).sum().backward()
        optimizer.step()
sonde.start(**{"collector": "off", "torch.budget_pct": BUDGET})
"""
PARTS = "module IN ('Net.first', 'Net.second')"


@pytest.fixture
def run(run_torch):
    return run_torch


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    return make_device(tmp_path_factory.mktemp("device"))


@pytest.fixture
def record(run, library):
    def record(code: str, budget: int = 0) -> str:
        names = f"LIBRARY, BUDGET = {str(library)!r}, {budget}\n"
        said = str(run(names + HEAD + code + "\nsonde.stop()").stdout)
        assert (
            query("SELECT state FROM sonde.source WHERE source = 'torch' AND state = 'failed'")
            == []
        )
        return said

    return record


def query(sql: str) -> list[tuple[object, ...]]:
    found = Recording(list_sessions(os.environ["SONDE_DIR"])).query(sql).to_pylist()
    return [tuple(row.values()) for row in found]


def test_a_device_that_waits_for_the_host_is_timed_by_its_clock(record) -> None:
    said = record(
        "train(80); before = pretended.count_events(); train(48)\n"
        "print((pretended.count_events() - before) / 48)"
    )
    # In each step two for the model and two for backward, and now and then one for a part; twelve of all.
    assert 4 <= float(said) < 9
    found = query(
        "SELECT stage, count(*) FILTER (NOT device_timed) > 60, count(*) FILTER (device_timed) > 1, "
        "count(DISTINCT device), count(*) FILTER (device_duration IS NULL) < count(*) / 4 "
        f"FROM python.torch_trace WHERE {PARTS} AND step > 0 GROUP BY 1 ORDER BY 1"
    )
    assert found == [(stage, True, True, 1, True) for stage in ("backward", "forward")]


def test_times_by_the_hosts_clock_are_those_that_events_tell(record) -> None:
    record("train(128)")
    found = query(
        "SELECT module, stage, median(device_duration / duration) FILTER (device_timed), "
        "median(device_duration / duration) FILTER (NOT device_timed) "
        f"FROM python.torch_trace WHERE {PARTS} AND step > 0 GROUP BY 1, 2 ORDER BY 1, 2"
    )
    assert [row[:2] for row in found] == [
        (f"Net.{part}", stage) for part in ("first", "second") for stage in ("backward", "forward")
    ]
    for _module, _stage, by_events, by_host in found:
        assert by_events == pytest.approx(by_host, rel=0.1)


def test_a_busy_device_has_all_its_events(record) -> None:
    record("model.first.ms = model.second.ms = 2\ntrain(60); time.sleep(0.3)")
    found = query(
        "SELECT stage, bool_and(device_timed), min(device_duration) >= 0.0019 "
        f"FROM python.torch_trace WHERE {PARTS} AND step > 0 AND device_duration IS NOT NULL "
        "GROUP BY 1 ORDER BY 1"
    )
    assert found == [("backward", True, True), ("forward", True, True)]


@pytest.mark.parametrize("budget", [0, 50])
def test_a_device_that_falls_behind_is_found_out_at_once(record, budget: int) -> None:
    record(
        "train(100); model.first.ms = model.second.ms = 5\n"
        "train(60); time.sleep(0.5)", budget,
    )  # fmt: skip
    # Where others have the processor at that very moment, the host is as slow as the device for a step.
    found = query(
        "SELECT stage, count(*) FILTER (NOT device_timed AND step < 100) > 20, "
        "10 * count(*) FILTER (step > 100 AND device_duration < 0.0049) "
        "<= count(*) FILTER (step > 100 AND device_duration IS NOT NULL), "
        "count(*) FILTER (step > 130 AND device_duration IS NOT NULL) > 0 "
        f"FROM python.torch_trace WHERE {PARTS} AND step > 0 GROUP BY 1 ORDER BY 1"
    )
    assert found == [("backward", True, True, True), ("forward", True, True, True)]


def test_one_heavy_module_among_many_is_enough_to_time_them_all(record) -> None:
    record(
        "class Many(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.parts = nn.Sequential(*[Part() for _ in range(40)], nn.Linear(4, 1))\n"
        "    def forward(self, x): return self.parts(x)\n"
        "model = Many(); model.parts[10].ms = 4\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.01)\n"
        "train(12)"
    )
    found = query(
        "SELECT stage, min(device_duration) >= 0.0039 FROM python.torch_trace WHERE step > 1 "
        "AND module = 'Many.parts.10' AND device_duration IS NOT NULL GROUP BY 1 ORDER BY 1"
    )
    assert found == [("backward", True), ("forward", True)]


def test_what_falls_behind_and_catches_up_within_a_step_is_found_by_its_parts(record) -> None:
    record(
        "class Many(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.parts = nn.Sequential(*[Part() for _ in range(9)], nn.Linear(4, 1))\n"
        "    def forward(self, x): return self.parts(x)\n"
        "model = Many()\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.01)\n"
        "train(24); model.parts[3].ms = 4; train(60)"
    )
    found = query(
        "SELECT stage, count(*) FILTER (step >= 24 AND device_duration < 0.0039) < 20, "
        "count(*) FILTER (step >= 24 AND device_timed) > 20 FROM python.torch_trace "
        "WHERE module = 'Many.parts.3' GROUP BY 1 ORDER BY 1"
    )
    assert found == [("backward", True, True), ("forward", True, True)]


def test_what_a_graph_captures_has_no_time(record) -> None:
    record(
        "other = nn.Sequential(Part())\n"
        "for _ in range(60):\n"
        "    pretended.capture(1); other(torch.ones(1, requires_grad=True)).sum().backward()\n"
        "    pretended.capture(0); train(1)"
    )
    assert query(
        "SELECT count(*) FROM python.torch_trace WHERE module LIKE 'Sequential%' "
        "AND device_duration IS NOT NULL"
    ) == [(0,)]


def test_passes_of_which_one_is_slow_all_have_times(record) -> None:
    record(
        "slow = nn.Sequential(Part()); slow[0].ms = 3\n"
        "for _ in range(60):\n"
        "    slow(torch.ones(1, requires_grad=True)).sum().backward(); train(1)"
    )
    (row,) = query(
        "SELECT count(*) FILTER (device_duration IS NULL) < 0.2 * count(*), count(*) > 100 "
        f"FROM python.torch_trace WHERE step > 1 AND {PARTS}"
    )
    assert row == (True, True)


def test_in_a_pause_there_are_no_events(record) -> None:
    said = record(
        "train(60); sonde.pause(); train(1); before = pretended.count_events(); train(20)\n"
        "print(pretended.count_events() - before); sonde.resume()"
    )
    assert said.split() == ["0"]


def test_with_two_devices_the_hosts_clock_does_not_say_which(record) -> None:
    record(
        "def forward(x):\n"
        "    x = model.first(x); pretended.use_device(1)\n"
        "    x = model.second(x); pretended.use_device(0)\n"
        "    return model.last(x)\n"
        "model.forward = forward\n"
        "train(80)"
    )
    (row,) = query(
        "SELECT bool_and(device_timed), count(DISTINCT device) FROM python.torch_trace "
        "WHERE stage = 'forward' AND device_duration IS NOT NULL"
    )
    assert row == (True, 2)
