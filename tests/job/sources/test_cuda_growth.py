"""A look at who allocates while a GPU's memory grows: with a stand-in for torch, and for real."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

import sonde
from sonde.job.sources import cuda_growth
from sonde.session import list_sessions
from support.needs import need_cuda

MB = 2**20
SECOND = 10**9


class Torch:
    """What is asked of torch: what is in use, and the history of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.used, self.blocks, self.is_on, self.trace = 0, 0, False, 1
        self.frames = [{"name": "hold", "filename": "/job/train.py", "line": 3}]
        core = SimpleNamespace(
            _cuda_memoryStats=lambda _device: {
                "allocated_bytes": {"all": {"current": self.used}},
                "allocation": {"all": {"current": self.blocks}},
            },
            _cuda_isHistoryEnabled=lambda: self.is_on,
        )
        segment = {"device": 0, "blocks": [
            {"state": "active_allocated", "size": MB, "frames": self.frames}]}  # fmt: skip
        memory = SimpleNamespace(
            _record_memory_history=lambda enabled, **_how: setattr(self, "is_on", bool(enabled)),
            _snapshot=lambda: {"device_traces": [[1] * self.trace]},
        )
        cuda = SimpleNamespace(
            is_initialized=lambda: True, current_device=lambda: 0,
            memory_snapshot=lambda: [segment],
        )  # fmt: skip
        whole = SimpleNamespace(_C=core, __file__="/lib/torch/__init__.py")
        for name, one in {"torch": whole, "torch.cuda": cuda, "torch.cuda.memory": memory}.items():
            monkeypatch.setitem(sys.modules, name, one)


class Job:
    """A program that makes ten steps a second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.torch, self.rows, self.listeners = Torch(monkeypatch), [], []
        self.is_child = False
        steps = SimpleNamespace(subscribe=self.listeners.append, unsubscribe=self.listeners.remove)
        monkeypatch.setattr(cuda_growth, "steps", steps)
        context = SimpleNamespace(
            writer=lambda _row: lambda *row: self.rows.append(row),
            guard=lambda call: call,
            is_inherited=lambda: self.is_child,
        )
        self.source = cuda_growth.Source(context)
        self.source.start()
        self.number = 0

    def run(self, seconds: float, bytes_more: int = 0, blocks_more: int = 0) -> int:
        """Make steps for so long, each of which keeps so much; return how many were looked at."""
        looked = 0
        for _ in range(round(10 * seconds)):
            self.number += 1
            self.torch.used += bytes_more
            self.torch.blocks += blocks_more
            step = SimpleNamespace(end_ns=SECOND + self.number * SECOND // 10, number=self.number)
            for listener in [*self.listeners]:
                listener(step)
            looked += self.torch.is_on
        return looked


@pytest.fixture
def job(monkeypatch) -> Job:
    return Job(monkeypatch)


def test_steady_growth_is_looked_at_once_and_for_a_short_time(job) -> None:
    assert 6 <= job.run(20, MB, 1) <= 15
    moments = {row[0] for row in job.rows}
    assert len(moments) == len(job.rows) == 3
    assert {row[2:6] for row in job.rows} == {("cuda:0", "hold", "/job/train.py", 3)}
    assert not job.torch.is_on


def test_the_next_look_comes_after_a_pause_that_grows(job) -> None:
    first = job.run(20, MB, 1)
    assert job.run(40, MB, 1) == 0
    assert job.run(30, MB, 1) == first
    assert job.run(100, MB, 1) == 0


@pytest.mark.parametrize(("more", "blocks"), [(0, 0), (1024, 1), (MB, 0)])
def test_what_does_not_grow_by_more_and_more_blocks_is_left_alone(
    job, more: int, blocks: int
) -> None:
    assert job.run(60, more, blocks) == 0
    assert job.rows == []


def test_growth_that_ends_is_left_alone(job) -> None:
    for _ in range(10):
        assert job.run(2, MB, 1) == 0
        assert job.run(2) == 0


def test_a_history_of_the_program_itself_is_left_alone(job) -> None:
    job.torch.is_on = True
    job.run(20, MB, 1)
    assert job.torch.is_on and job.rows == []


def test_a_history_that_the_program_begins_during_a_look_stays(job) -> None:
    while not job.torch.is_on:
        job.run(0.1, MB, 1)
    job.torch.trace = 1000  # events
    job.run(10, MB, 1)
    assert job.torch.is_on


def test_the_end_of_the_recording_ends_the_look(job) -> None:
    while not job.torch.is_on:
        job.run(0.1, MB, 1)
    job.source.stop()
    assert not job.torch.is_on and job.listeners == []


@pytest.mark.parametrize("steps", [0, 5])
def test_a_look_that_fails_leaves_no_history_on(job, steps: int) -> None:
    def refuse() -> None:
        raise RuntimeError("no room")

    cuda = sys.modules["torch.cuda"]
    while steps and not job.torch.is_on:
        job.run(0.1, MB, 1)
    cuda.memory_snapshot = refuse
    with pytest.raises(RuntimeError, match="no room"):
        job.run(20, MB, 1)
    assert not job.torch.is_on


def test_a_child_does_not_touch_the_allocator(job) -> None:
    while not job.torch.is_on:
        job.run(0.1, MB, 1)
    job.is_child = True
    job.source.stop()
    assert job.torch.is_on and job.listeners == []


def test_an_allocator_that_is_not_torchs_is_left_alone(job) -> None:
    def refuse(_device: int) -> dict:
        raise RuntimeError("this allocator has no statistics")

    sys.modules["torch"]._C._cuda_memoryStats = refuse
    assert job.run(20, MB, 1) == 0


LEAK = """
import time, torch, sonde
kept, weight = [], torch.randn(512, 512, device="cuda", requires_grad=True)
def keep(made):
    kept.append(made * 2)                                 # line 5
assert sonde.start()
end = time.monotonic() + 12
while time.monotonic() < end:
    made = torch.randn(512, 512, device="cuda") @ weight
    keep(made.detach())
    made.sum().backward()
    sonde.step()
    time.sleep(0.01)
sonde.stop()
assert not torch._C._cuda_isHistoryEnabled()
"""


def test_the_line_of_a_real_leak_is_known(run, root) -> None:
    need_cuda()
    run(LEAK)
    (session,) = list_sessions(str(root))
    advice = sonde.advise(session.folder, rules=["gpu_memory_creep"])
    assert [one.line.rpartition(":")[2] for one in advice.findings] == ["5 in keep"]
