"""Torch: modules, steps, and that the program does not notice."""

from __future__ import annotations

import json
import os
import re
import sys

import pytest

from conftest import TIMEOUT_S, wait_for
from sonde.session import list_sessions, steering
from sonde.store.recording import Recording
from support.needs import need
from support.places import TESTS
from support.zygote import Zygote

need("torch")

RESULTS = TESTS / "support" / "torch_results.py"
CASES = [
    "plain", "checkpoint", "reentrant checkpoint", "autocast", "compile eager",
    "compile aot_eager", "compile in place", "compile parts", "deepcopy", "save", "pickle", "fx",
    "export", "jit.trace", "jit.script", "functional_call", "func.grad", "autograd.grad",
    "raise in forward", "recursion", "thread", "fork", "attribute",
]  # fmt: skip
HEAD = """
import sys, time, threading
import torch
from torch import nn
import sonde
torch.set_num_threads(1)
torch.manual_seed(0)
def train(model, steps, size=8, optimizer=None):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(steps):
        optimizer.zero_grad(); model(torch.randn(4, size)).pow(2).mean().backward(); optimizer.step()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.rest = nn.Linear(8, 8), nn.Sequential(nn.ReLU(), nn.Linear(8, 1))
    def forward(self, x): return self.rest(self.first(x))
"""


@pytest.fixture
def run(run_torch):
    return run_torch


@pytest.fixture
def start(start_torch):
    return start_torch


def query(sql: str) -> list[dict[str, object]]:
    return Recording(list_sessions(os.environ["SONDE_DIR"])).query(sql).to_pylist()


def record(run, code: str, **settings: str) -> None:
    options = {"collector": "off", "torch.budget_pct": "0", **settings}
    run(HEAD + f"sonde.start(**{options!r})\n" + code)


# ---- the program does not notice ----------------------------------------------------------------


@pytest.fixture(scope="module")
def results(tmp_path_factory, torch_zygote: Zygote) -> tuple[dict[str, object], dict[str, object]]:
    found = []
    for words in ([], ["record"]):
        env = {**os.environ, "SONDE_DIR": str(tmp_path_factory.mktemp("results"))}
        done = torch_zygote.run([str(RESULTS), *words], env, TIMEOUT_S / 2)
        assert done.returncode == 0, done.stderr
        said = re.sub(r"pid=\d+", "pid", done.stderr)  # 3.12 warns of forks by number
        found.append({**json.loads(done.stdout), "stderr": said})
    return found[0], found[1]


@pytest.mark.parametrize("case", [*CASES, "stderr"])
def test_results_are_the_same_to_the_last_bit(results, case: str) -> None:
    bare, recorded = results
    assert recorded[case] == bare[case]


def test_no_graph_breaks(results) -> None:
    _losses, breaks, graphs = results[1]["compile aot_eager"]
    assert (breaks, graphs) == (0, 1)


def test_torch_is_as_it_was_after_the_end(run) -> None:
    done = run(
        HEAD
        + "before = vars(nn.Module)['__call__'], vars(torch.autograd.Variable)['_execution_engine'],"
        " vars(torch.utils.data.dataloader._BaseDataLoaderIter)['__next__']\n"
        "sonde.start(collector='off'); train(Net(), 3); sonde.stop()\n"
        "after = vars(nn.Module)['__call__'], vars(torch.autograd.Variable)['_execution_engine'],"
        " vars(torch.utils.data.dataloader._BaseDataLoaderIter)['__next__']\n"
        "print(all(a is b for a, b in zip(before, after)))\n"
        "from torch.optim import optimizer as o\n"
        "print(len(o._global_optimizer_pre_hooks), len(o._global_optimizer_post_hooks))"
    )
    assert done.stdout.split() == ["True", "0", "0"]


# ---- modules ------------------------------------------------------------------------------------


def test_each_call_has_a_row_for_each_stage(run) -> None:
    record(run, "train(Net(), 5)")
    rows = query(
        "SELECT module, stage, count(*) n, count(DISTINCT step) s FROM python.torch_trace GROUP BY ALL"
    )
    assert {(r["module"], r["stage"], r["n"], r["s"]) for r in rows} == {
        (name, stage, 5, 5)
        for name in ("Net", "Net.first", "Net.rest", "Net.rest.0", "Net.rest.1")
        for stage in ("forward", "backward")
    } | {("SGD", "step", 5, 5)}


def test_the_columns_are_those_users_know(run) -> None:
    record(run, "train(Net(), 2)")
    names = list(query("SELECT * FROM python.torch_trace LIMIT 1")[0])
    assert names[:8] == [
        "step",
        "seq",
        "module",
        "stage",
        "allocated",
        "max_allocated",
        "cached",
        "duration",
    ]


def test_without_a_gpu_every_call_has_the_memory_of_the_process(run) -> None:
    record(run, "train(Net(), 5)")
    (row,) = query(
        "SELECT count(*) n, count(allocated) a, count(max_allocated) m, count(cached) c,"
        " bool_and(allocated BETWEEN 1 AND max_allocated AND max_allocated <= cached) sound"
        " FROM python.torch_trace WHERE stage <> 'backward'"
    )
    assert row == {"n": 30, "a": 30, "m": 30, "c": 30, "sound": True}


def test_what_is_inside_and_a_modules_own_time_add_up(run) -> None:
    record(run, "train(Net(), 5)")
    wrong = query(
        "SELECT * FROM (SELECT step, stage, max(duration) FILTER (depth = 0) whole,"
        " sum(self_duration) parts FROM python.torch_trace WHERE stage <> 'step' GROUP BY ALL)"
        " WHERE abs(whole - parts) > 1e-8"
    )
    assert wrong == []


def test_backward_belongs_to_the_module_that_ran_forward(run) -> None:
    record(
        run,
        "class Slow(torch.autograd.Function):\n"
        "    @staticmethod\n"
        "    def forward(ctx, x): return x * 1\n"
        "    @staticmethod\n"
        "    def backward(ctx, g):\n"
        "        time.sleep(0.05)\n"
        "        return g\n"
        "class Sleeper(nn.Module):\n"
        "    def forward(self, x): return Slow.apply(x)\n"
        "train(nn.Sequential(nn.Linear(8, 8), Sleeper(), nn.Linear(8, 1)), 4)",
    )
    rows = query(
        "SELECT module, min(duration) d FROM python.torch_trace WHERE stage = 'backward' AND step > 0"
        " GROUP BY module"
    )
    by_name = {r["module"]: r["d"] for r in rows}
    assert by_name["Sequential.1"] >= 0.05
    assert by_name["Sequential"] >= 0.05
    assert by_name["Sequential.0"] < 0.05 > by_name["Sequential.2"]


def test_nearly_all_of_backward_has_an_owner(run) -> None:
    # What is outside of modules, the loss, has none.
    record(run, "train(nn.Sequential(*[nn.Linear(512, 512) for _ in range(16)]), 10, 512)")
    (row,) = query("SELECT median(owned_pct) AS owned FROM python.torch_step WHERE step > 1")
    assert row["owned"] >= 95


def test_forward_again_inside_backward_is_called_recompute(run) -> None:
    record(
        run,
        "from torch.utils.checkpoint import checkpoint\n"
        "class Again(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__(); self.net = Net()\n"
        "    def forward(self, x): return checkpoint(self.net, x, use_reentrant=False)\n"
        "train(Again(), 3)",
    )
    rows = query(
        "SELECT module, stage, count(*) n FROM python.torch_trace WHERE module = 'Again.net' GROUP BY ALL"
    )
    assert {(r["stage"], r["n"]) for r in rows} == {
        ("forward", 3),
        ("recompute", 3),
        ("backward", 3),
    }


def test_a_call_that_raises_has_a_row_and_the_next_ones_are_right(run) -> None:
    record(
        run,
        "class Bad(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__(); self.net, self.bad = Net(), True\n"
        "    def forward(self, x):\n"
        "        y = self.net(x)\n"
        "        if self.bad: raise ValueError\n"
        "        return y\n"
        "model = Bad()\n"
        "for _ in range(3):\n"
        "    try: model(torch.ones(4, 8))\n"
        "    except ValueError: pass\n"
        "model.bad = False\n"
        "train(model, 3)",
    )
    rows = query(
        "SELECT raised, depth, count(*) n FROM python.torch_trace WHERE module = 'Bad'"
        " AND stage = 'forward' GROUP BY ALL"
    )
    assert {(r["raised"], r["depth"], r["n"]) for r in rows} == {(True, 0, 3), (False, 0, 3)}


def test_several_calls_of_one_module_are_numbered(run) -> None:
    record(
        run,
        "class Twice(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__(); self.one = nn.Linear(8, 8)\n"
        "    def forward(self, x): return self.one(self.one(x))\n"
        "train(Twice(), 2)",
    )
    rows = query(
        "SELECT step, call FROM python.torch_trace WHERE module = 'Twice.one' AND stage = 'forward' ORDER BY step, call"
    )
    assert [(r["step"], r["call"]) for r in rows] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_threads_do_not_mix(run) -> None:
    record(
        run,
        "def infer(model):\n"
        "    with torch.no_grad():\n"
        "        for _ in range(200): model(torch.ones(4, 8))\n"
        "models = [Net() for _ in range(4)]\n"
        "threads = [threading.Thread(target=infer, args=(m,)) for m in models]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]",
    )
    rows = query(
        "SELECT thread, split_part(module, '.', 1) root, count(*) n FROM python.torch_trace GROUP BY ALL"
    )
    assert sorted(r["root"] for r in rows) == ["Net", "Net#2", "Net#3", "Net#4"]
    assert {r["n"] for r in rows} == {1000}
    assert len({r["thread"] for r in rows}) == 4


def test_modules_are_described(run) -> None:
    record(run, "train(Net(), 1)")
    rows = query(
        "SELECT module, type, parameters, own_parameters own, dtype, device, parent FROM python.torch_module"
    )
    by_name = {r.pop("module"): tuple(r.values()) for r in rows}
    assert by_name["Net"] == ("Net", 81, 0, "float32", "cpu", None)
    assert by_name["Net.rest.1"] == ("Linear", 9, 9, "float32", "cpu", "Net.rest")
    assert by_name["Net.rest.0"] == ("ReLU", 0, 0, None, None, "Net.rest")


def test_modules_that_come_and_go_do_not_lend_their_names(run) -> None:
    record(
        run,
        "import gc\n"
        "class A(nn.Linear): pass\n"
        "class B(nn.Linear): pass\n"
        "for i in range(50):\n"
        "    (A if i % 2 else B)(8, 8)(torch.ones(1, 8)); gc.collect()",
    )
    rows = query(
        "SELECT left(module, 1) kind, count(*) n, count(DISTINCT module) d FROM python.torch_trace GROUP BY ALL"
    )
    assert {(r["kind"], r["n"], r["d"]) for r in rows} == {("A", 25, 25), ("B", 25, 25)}


# ---- steps --------------------------------------------------------------------------------------


def list_steps() -> list[tuple[object, ...]]:
    rows = query("SELECT step, ended_by, modules FROM python.torch_step ORDER BY step")
    return [tuple(row.values()) for row in rows]


def test_an_optimizer_ends_steps(run) -> None:
    record(run, "train(Net(), 3)")
    assert list_steps() == [(0, "optimizer", 5), (1, "optimizer", 5), (2, "optimizer", 5)]


def test_two_optimizers_in_turn_make_one_step(run) -> None:
    record(
        run,
        "a, b = Net(), Net()\n"
        "one, two = torch.optim.SGD(a.parameters(), 0.1), torch.optim.SGD(b.parameters(), 0.1)\n"
        "for _ in range(4):\n"
        "    train(a, 1, optimizer=one); train(b, 1, optimizer=two)",
    )
    assert [step for step in list_steps() if step[1] == "optimizer"] == [
        (0, "optimizer", 5), (1, "optimizer", 10), (2, "optimizer", 10), (3, "optimizer", 10),
    ]  # fmt: skip


def test_without_an_optimizer_the_models_next_call_ends_the_step(run) -> None:
    record(
        run, "model = Net()\nwith torch.no_grad():\n    for _ in range(3): model(torch.ones(1, 8))"
    )
    assert list_steps() == [(0, "root", 5), (1, "root", 5), (2, "end", 5)]


def test_a_teacher_without_gradients_does_not_end_the_students_step(run) -> None:
    record(
        run,
        "teacher, student = Net(), Net()\n"
        "optimizer = torch.optim.SGD(student.parameters(), 0.1)\n"
        "for _ in range(3):\n"
        "    with torch.no_grad(): target = teacher(torch.ones(1, 8))\n"
        "    (student(torch.ones(1, 8)) - target).pow(2).sum().backward()\n"
        "    optimizer.step()",
    )
    assert list_steps() == [(0, "optimizer", 10), (1, "optimizer", 10), (2, "optimizer", 10)]


def test_an_evaluation_after_training_has_steps_of_its_own(run) -> None:
    record(
        run,
        "model = Net(); train(model, 2)\n"
        "with torch.no_grad():\n"
        "    for _ in range(3): model(torch.ones(1, 8))",
    )
    assert [step[1] for step in list_steps()] == ["optimizer", "optimizer", "root", "root", "end"]


def test_where_a_steps_time_goes(run) -> None:
    record(
        run,
        "class Slow(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 8\n"
        "    def __getitem__(self, i):\n"
        "        time.sleep(0.02)\n"
        "        return torch.ones(8)\n"
        "model = Net(); optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for x in torch.utils.data.DataLoader(Slow(), batch_size=2):\n"
        "    time.sleep(0.03)\n"
        "    optimizer.zero_grad(); model(x).sum().backward(); optimizer.step()",
    )
    for row in query("SELECT * FROM python.torch_step"):
        assert row["input_wait_ns"] >= 0.04e9
        assert row["host_to_device_ns"] >= 0.03e9
        parts = ("input_wait", "host_to_device", "forward", "backward", "optimizer", "other")
        assert sum(row[f"{part}_ns"] for part in parts) == pytest.approx(row["dur_ns"], rel=0.02)


def test_how_often_a_step_calls_the_model_and_what_it_uses_of_a_processor(run) -> None:
    record(
        run,
        "model = Net(); optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "def burn(until=0.05):\n"
        "    until += time.thread_time()\n"
        "    while time.thread_time() < until: pass\n"
        "for _ in range(4):\n"
        "    optimizer.zero_grad()\n"
        "    loss = sum(model(x).sum() for x in torch.ones(5, 2, 8))\n"
        "    loss.backward(retain_graph=True); loss.backward()\n"
        "    burn(); time.sleep(0.1); optimizer.step()",
    )
    rows = query("SELECT * FROM python.torch_step ORDER BY step")
    assert rows[0]["cpu_ns"] is None  # since when is not known
    # Until an optimizer has ended a step, a call of the model does.
    trained = [row for row in rows if row["ended_by"] == "optimizer"][1:]
    assert trained
    for row in trained:
        assert (row["calls"], row["backward_passes"]) == (5, 2)
        assert row["cpu_ns"] >= 0.05e9
        assert row["cpu_ns"] <= row["dur_ns"] - 0.09e9


# ---- on and off ---------------------------------------------------------------------------------


def test_it_waits_for_torch(run_anew) -> None:
    run_anew(
        "import sonde\nsonde.start(collector='off')\n"
        "import torch, json, sys\nfrom torch import nn\n"
        "m = nn.Linear(2, 2)\nimport wave\n"
        "for _ in range(3): m(torch.ones(1, 2))"
    )
    assert query("SELECT count(*) n FROM python.torch_trace") == [{"n": 3}]
    details = [
        r["detail"]
        for r in query("SELECT detail FROM sonde.source_log WHERE source = 'torch' ORDER BY t_ns")
    ]
    assert details[0] == "waiting for the program to import torch"


def test_it_is_switched_off_and_on_in_a_live_program(start) -> None:
    process = start(
        HEAD + "sonde.start(collector='off')\nmodel = Net()\nprint('ready', flush=True)\n"
        "while True: train(model, 1); time.sleep(0.001)"
    )
    (session,) = list_sessions(os.environ["SONDE_DIR"])

    def count() -> object:
        return query("SELECT count(*) n FROM python.torch_trace")[0]["n"]

    wait_for(count)
    steering.configure(session, {"source.torch": "off"}, TIMEOUT_S)
    at_rest = count()
    wait_for(
        lambda: (
            query(
                "SELECT count(*) n FROM python.stack_sample WHERE t_ns > (SELECT max(t_ns) FROM python.torch_trace)"
            )[0]["n"]
            > 20
        )
    )
    assert count() == at_rest
    steering.configure(session, {"source.torch": "on"}, TIMEOUT_S)
    wait_for(lambda: count() > at_rest)
    assert process.poll() is None


def test_nothing_is_recorded_while_paused(run) -> None:
    record(
        run,
        "model = Net(); train(model, 2); sonde.pause(); train(model, 3); sonde.resume(); train(model, 4)",
    )
    assert query(
        "SELECT count(*) n FROM python.torch_trace WHERE module = 'Net' AND stage = 'forward'"
    ) == [{"n": 6}]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="3.10 has a dict for every object")
def test_a_module_is_not_made_slower_by_being_looked_at(run) -> None:
    # An object's attributes lie in it until somebody asks for its __dict__; then they do no more.
    record(
        run,
        "import gc\nmodel = nn.Sequential(nn.Tanh(), nn.Linear(8, 8))\n"
        "def has_dict(one): return any(type(held) is dict and '_modules' in held for held in gc.get_referents(one))\n"
        "before = [has_dict(one) for one in model.modules()]\n"
        "for _ in range(3): model(torch.ones(1, 8)).sum().backward()\n"
        "assert [has_dict(one) for one in model.modules()] == before\n"
        "vars(model[0]); assert has_dict(model[0]) and not before[1]",
    )


def count_compared(run, code: str) -> int:
    """How many steps the budget compared with others."""
    record(run, f"model = Net(); train(model, 4)\n{code}", **{"torch.budget_pct": "50"})
    (row,) = query("SELECT compared_steps AS n FROM sonde.overhead ORDER BY t_ns DESC LIMIT 1")
    return row["n"]


def test_what_steps_take_in_a_pause_is_not_taken_for_what_recording_costs(run) -> None:
    code = "sonde.pause(); train(model, 200); sonde.resume(); train(model, 4)"
    assert count_compared(run, code) == 0


def test_a_pause_within_steps_is_none_of_their_cost_either(run) -> None:
    code = (
        "optimizer = torch.optim.SGD(model.parameters(), 0.01)\n"
        "for _ in range(200):\n"
        "    sonde.pause(); model(torch.ones(1, 8)).sum().backward(); sonde.resume()\n"
        "    optimizer.step()"
    )
    assert count_compared(run, code) == 0


def test_the_first_step_after_a_pause_is_recorded_whole(run) -> None:
    record(
        run,
        "model = Net(); train(model, 2); sonde.pause(); train(model, 1); sonde.resume(); train(model, 1)",
    )
    rows = query(
        "SELECT step, count(*) n FROM python.torch_trace WHERE stage = 'backward' GROUP BY ALL ORDER BY step"
    )
    assert [row["step"] for row in rows] == [0, 1, 3] and len({row["n"] for row in rows}) == 1


def test_steps_that_are_left_out_are_compared_with_those_beside_them(run) -> None:
    assert count_compared(run, "train(model, 200)") > 3


def test_a_forked_child_has_rows_of_its_own(run) -> None:
    record(
        run,
        "import os\nmodel = Net()\nwith torch.no_grad(): model(torch.ones(1, 8))\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    sonde.start(collector='off')\n"
        "    with torch.no_grad():\n"
        "        for _ in range(3): model(torch.ones(1, 8))\n"
        "    sonde.stop(); os._exit(0)\n"
        "os.waitpid(pid, 0)",
    )
    rows = query(
        "SELECT pid, count(*) n FROM python.torch_trace WHERE module = 'Net' GROUP BY pid ORDER BY n"
    )
    assert [r["n"] for r in rows] == [1, 3]


def test_an_unknown_torch_is_said_to_be_one(run) -> None:
    run(
        HEAD + "from sonde.job.torch import seams\n"
        "seams.check_header = lambda torch: 'torch 9 lays out its observers in another way'\n"
        "sonde.start(collector='off', torch_budget_pct=0); train(Net(), 4)"
    )
    rows = query("SELECT detail FROM sonde.source_log WHERE source = 'torch' AND state = 'on'")
    assert "another way" in rows[0]["detail"]
    rows = query(
        "SELECT module, count(*) n FROM python.torch_trace WHERE stage = 'backward' GROUP BY 1"
    )
    assert {r["module"] for r in rows} == {"Net", "Net.first", "Net.rest", "Net.rest.1"}
