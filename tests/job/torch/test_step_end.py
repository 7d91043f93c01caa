"""The end of a step, in C: hooks of optimizers and loaders, and the rows that every step has."""

from __future__ import annotations

import gc
import os
import sys
from collections import deque
from types import SimpleNamespace
from weakref import ref

import pytest

from sonde import _core
from sonde.job.torch.steps import OPTIMIZER, Steps
from sonde.session import list_sessions
from sonde.session import texts as intern
from sonde.store.recording import Recording
from support.needs import need

# ---- which steps ---------------------------------------------------------------------------------


def test_every_release_chooses_the_same_steps_for_a_job_may_mix_them() -> None:
    baselines = [step for step in range(200) if _core.torch_plan(step, True, 1, 0, 0) == 0]
    assert baselines == [18, 28, 45, 60, 98, 103, 123, 153, 179, 197]
    kinds = [_core.torch_plan(step, False, 3, 2, 2) for step in range(100)]
    assert [at for at, kind in enumerate(kinds) if kind >= 2] == [1, 20, 24, 40, 59, 71, 82, 90]
    assert [at for at, kind in enumerate(kinds) if kind == 3] == [20, 59]


# ---- loaders -------------------------------------------------------------------------------------


def make_class(values: list[object], meet) -> type:
    """A class of iterators, as torch's, that gives these, or raises them."""

    class Batches:
        def __init__(self) -> None:
            self.left = list(values)

        def __iter__(self):
            return self

        def __next__(self) -> object:
            if not self.left:
                raise StopIteration
            value = self.left.pop(0)
            if isinstance(value, BaseException):
                raise value
            return value

    Batches.original = Batches.__next__
    Batches.__next__ = _core.TorchNext(Batches.__next__, meet)
    return Batches


def test_batches_and_exceptions_pass_and_each_iterator_is_met_once() -> None:
    met: list[object] = []
    kind = make_class([1, KeyError("worker"), 2], met.append)
    first, second = kind(), kind()
    assert next(first) == 1
    with pytest.raises(KeyError, match="worker"):
        next(first)
    assert list(first) == [2]
    assert list(make_class([], met.append)()) == []
    assert next(second) == 1 and second.__next__.__wrapped__ is kind.original
    assert met[0] is first and met[2] is second and len(met) == 3


def test_a_loader_is_not_held_alive() -> None:
    kind = make_class([1], lambda _iterator: None)
    iterator = kind()
    assert list(iterator) == [1]
    gone = ref(iterator)
    del iterator
    gc.collect()
    assert gone() is None


def test_ctrl_c_while_a_loader_is_met_reaches_the_program() -> None:
    def interrupt(_iterator: object) -> None:
        raise KeyboardInterrupt

    for values in ([1], []):
        with pytest.raises(KeyboardInterrupt):
            next(make_class(values, interrupt)())


# ---- optimizers ----------------------------------------------------------------------------------


class Optimizer:
    """Stands for torch's."""


class Hooks:
    """The hooks of a recording, and what became of the steps."""

    def __init__(self, texts: _core.Text) -> None:
        self.host, self.steps = SimpleNamespace(failed=False), Steps()
        self.ended: list[_core.Step] = []
        self.others: list[object] = []
        self.steps.subscribe(self.ended.append)
        self.core = _core.TorchOptimizers(
            self.host, texts, self.steps, OPTIMIZER, self.others.append
        )

    def step(self, optimizer: object) -> None:
        self.core.before(optimizer, (), {})
        self.core.after(optimizer, (), {})


@pytest.fixture
def hooks(tmp_path) -> Hooks:
    return Hooks(intern.create_text(str(tmp_path), 4096))


def test_only_the_optimizer_that_leads_ends_a_step(hooks) -> None:
    lead, other = Optimizer(), Optimizer()
    hooks.core.lead = ref(lead)
    for optimizer in (lead, other, lead):
        hooks.step(optimizer)
    assert [step.number for step in hooks.ended] == [0, 1] and hooks.others == [other]
    assert hooks.ended[1].begin_ns == hooks.ended[0].end_ns


def test_an_optimizer_that_is_gone_leads_no_more(hooks) -> None:
    lead = Optimizer()
    hooks.core.lead = ref(lead)
    del lead
    hooks.step(fresh := Optimizer())
    assert hooks.ended == [] and hooks.others == [fresh]


def test_a_source_that_was_switched_off_ends_no_steps(hooks) -> None:
    lead = Optimizer()
    hooks.core.lead = ref(lead)
    hooks.host.failed = True
    hooks.step(lead)
    assert hooks.ended == []


def test_what_a_listener_raises_reaches_the_program_and_the_step_has_ended(hooks) -> None:
    def interrupt(_step: object) -> None:
        raise KeyboardInterrupt

    lead = Optimizer()
    hooks.core.lead = ref(lead)
    hooks.steps.subscribe(interrupt)
    with pytest.raises(KeyboardInterrupt):
        hooks.step(lead)
    assert hooks.steps.number == len(hooks.ended) == 1


def test_steps_leave_nothing_behind(hooks) -> None:
    lead = Optimizer()
    hooks.core.lead = ref(lead)
    seen: deque[object] = deque(maxlen=1)
    hooks.steps.unsubscribe(hooks.steps._listeners[0])
    hooks.steps.subscribe(seen.append)
    objects = (None, OPTIMIZER, lead, seen)
    before = [sys.getrefcount(one) for one in objects]
    for _ in range(1000):
        hooks.step(lead)
    after = [sys.getrefcount(one) for one in objects]
    assert max(abs(late - early) for late, early in zip(after, before, strict=True)) < 50


# ---- a program -----------------------------------------------------------------------------------

LOOP = """
import sonde, torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter
torch.set_num_threads(1)
original = _BaseDataLoaderIter.__next__
sonde.start(collector="off", follow=False)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for batch in DataLoader(torch.ones(200, 4), batch_size=1):
    optimizer.zero_grad(); model(batch).sum().backward(); optimizer.step()
sonde.stop()
print(_BaseDataLoaderIter.__next__ is original)
"""


def query(sql: str) -> list[dict[str, object]]:
    return Recording(list_sessions(os.environ["SONDE_DIR"])).query(sql).to_pylist()


def test_each_step_of_a_long_loop_has_its_row_and_the_parts_make_the_whole(run_torch) -> None:
    need("torch")
    assert run_torch(LOOP).stdout.split() == ["True"]
    rows = query("SELECT * FROM python.torch_step WHERE ended_by = 'optimizer' ORDER BY step")
    assert [row["step"] for row in rows] == list(range(200))
    for row in rows[1:]:
        parts = ("input_wait", "host_to_device", "forward", "backward", "optimizer", "other")
        assert sum(row[f"{part}_ns"] for part in parts) == pytest.approx(row["dur_ns"])
        assert min(row[f"{part}_ns"] for part in parts) >= 0 and row["input_wait_ns"] > 0
    # Each of the first 64 steps was judged, and later ones as far as there was time for that.
    (last,) = query("SELECT MAX(step) AS step FROM sonde.overhead")
    assert 64 <= last["step"] <= 199


QUICK = """
import torch, sonde
from sonde.job.torch.budget import Budget
judged, note_all = [], Budget.note_all
def count(budget, steps, *rested):
    judged.append(len(steps))
    return note_all(budget, steps, *rested)
Budget.note_all = count
assert sonde.start(torch_budget_pct=1)
model, x = torch.nn.Linear(1, 1), torch.zeros(1)
with torch.no_grad():
    for _ in range(20_000):
        model(x)
sonde.stop()
print(len(judged), sum(judged))
"""


def test_of_very_short_steps_only_some_are_judged(run_torch) -> None:
    need("torch")
    calls, judged = map(int, run_torch(QUICK).stdout.split())
    assert calls > 64 and 64 < judged < 10_000
    (row,) = query("SELECT COUNT(*) AS steps FROM python.torch_step")
    assert row["steps"] >= 19_999  # the rows are there for all


def test_what_an_optimizer_did_comes_after_the_modules_of_its_step(run_torch) -> None:
    need("torch")
    run_torch(LOOP)
    (row,) = query(
        "SELECT COUNT(*) AS n, COUNT(DISTINCT s.step) AS steps, COUNT(*) FILTER (s.unrecorded) AS off, "
        "COUNT(*) FILTER (t.seq <> 2 * s.modules OR t.self_duration <> t.duration) AS odd "
        "FROM python.torch_trace t JOIN python.torch_step s USING (step) "
        "WHERE t.stage = 'step' AND t.module = 'SGD'"
    )
    # How many steps the budget allows depends on how busy the machine is.
    assert row["n"] == row["steps"] >= 5 and row["off"] == row["odd"] == 0
