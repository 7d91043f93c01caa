"""Torch, used as hard as programs do: what they see, what is counted, and that nothing breaks."""

from __future__ import annotations

from itertools import groupby

import pytest

from job.sources.test_torch import HEAD, list_steps, query, record
from support.needs import need

need("torch")

pytestmark = pytest.mark.usefixtures("no_collector")


@pytest.fixture
def run(run_torch):
    return run_torch


def read_states() -> list[object]:
    """One after the other; the same again has only more to say."""
    rows = query("SELECT state FROM sonde.source_log WHERE source = 'torch' ORDER BY t_ns")
    return [state for state, _ in groupby(row["state"] for row in rows)]


# ---- signals -------------------------------------------------------------------------------------


def test_ctrl_c_in_naming_or_at_the_end_of_a_step_reaches_the_program(run) -> None:
    done = run(
        HEAD + "import signal\nfrom sonde.job.torch import module_names as naming\n"
        "from sonde.job.torch.steps import steps\n"
        "sonde.start(collector='off')\nmodel = Net()\n"
        "def interrupt(*_): signal.raise_signal(signal.SIGINT)\n"
        "list_parts, naming._list_parts = naming._list_parts, interrupt\n"
        "try: model(torch.ones(1, 8))\n"
        "except KeyboardInterrupt: print('named')\n"
        "naming._list_parts = list_parts\n"
        "steps.subscribe(interrupt)\n"
        "try: model(torch.ones(1, 8))\n"
        "except KeyboardInterrupt: print('ended')"
    )
    assert done.stdout.split() == ["named", "ended"]


# ---- what the program could see ------------------------------------------------------------------


def test_modes_and_the_limit_of_recursion_see_nothing_of_us(run) -> None:
    code = (
        "from torch.overrides import TorchFunctionMode\n"
        "class Mode(TorchFunctionMode):\n"
        "    seen = 0\n"
        "    def __torch_function__(self, function, types, args=(), kwargs=None):\n"
        "        self.seen += 1\n"
        "        return function(*args, **(kwargs or {}))\n"
        "with Mode() as mode:\n"
        "    model = Net(); train(model, 3)\n"
        "    with torch.no_grad(): [model(torch.ones(1, 8)) for _ in range(3)]\n"
        "class Deep(nn.Module):\n"
        "    depth = 0\n"
        "    def forward(self, x):\n"
        "        self.depth += 1\n"
        "        return self(x)\n"
        "deep = Deep()\n"
        "try: deep(1)\n"
        "except RecursionError: print(mode.seen, deep.depth)"
    )
    bare = run(HEAD + code).stdout
    assert bare.split()[0] != "0"
    assert run(HEAD + "sonde.start(collector='off')\n" + code).stdout == bare


def test_who_compiles_an_optimizer_is_not_warned_of_us(run) -> None:
    done = run(
        HEAD + "sonde.start(collector='off')\nmodel = Net()\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "model(torch.ones(1, 8)).sum().backward()\n"
        "torch.compile(lambda: optimizer.step(), backend='eager')()"
    )
    assert "sonde" not in done.stderr


# ---- where steps end -----------------------------------------------------------------------------


def test_a_model_that_is_called_once_does_not_make_one_endless_step(run) -> None:
    record(
        run,
        "once, model = nn.Linear(8, 8), nn.Sequential(*[nn.Identity() for _ in range(99)])\n"
        "with torch.no_grad():\n"
        "    once(torch.ones(1, 8))\n"
        "    for _ in range(500): model(torch.ones(1, 8))",
    )
    assert query("SELECT sum(lost)::BIGINT lost, count(*) > 300 many FROM python.torch_step") == [
        {"lost": 0, "many": True}
    ]


def test_a_thread_for_each_request_has_steps(run) -> None:
    record(
        run,
        "import os\nmodel = Net().requires_grad_(False)\n"
        "for _ in range(4):\n"
        "    thread = threading.Thread(target=model, args=(torch.ones(1, 8),))\n"
        "    thread.start(); thread.join()\n"
        # Python is done with a thread a moment before the system is.
        "    while str(thread.native_id) in os.listdir('/proc/self/task'): time.sleep(0.001)",
    )
    assert [step[1:] for step in list_steps()] == [("root", 5)] * 3 + [("end", 5)]


def test_neither_a_default_device_nor_a_model_that_is_gone_keeps_steps_from_ending(run) -> None:
    record(
        run,
        "torch.set_default_device('cpu')\nmodel = Net()\n"
        "with torch.no_grad():\n"
        "    nn.Linear(8, 8)(torch.ones(1, 8))\n"
        "    for _ in range(3): model(torch.ones(1, 8))",
    )
    assert [step[1] for step in list_steps()] == ["root", "root", "root", "end"]


# ---- where the time of a step goes ---------------------------------------------------------------

SLEEPER = """
class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): time.sleep(0.005); return x * 1
    @staticmethod
    def backward(ctx, g): time.sleep(0.005); return g
class Sleeper(nn.Module):
    def __init__(self):
        super().__init__(); self.line = nn.Linear(8, 8)
    def forward(self, x): return Slow.apply(self.line(x))
"""


def check_parts(forward: float, backward: float) -> None:
    rows = query("SELECT * FROM python.torch_step WHERE ended_by = 'optimizer' AND step > 0")
    assert rows
    for row in rows:
        assert row["forward_ns"] >= forward * 1e9
        assert row["backward_ns"] >= backward * 1e9
        parts = ("input_wait", "host_to_device", "forward", "backward", "optimizer", "other")
        assert sum(row[f"{part}_ns"] for part in parts) == pytest.approx(row["dur_ns"], rel=1e-6)


def test_backward_inside_forward_is_counted_once(run) -> None:
    record(
        run,
        SLEEPER + "class Outer(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__(); self.inner, self.last = Sleeper(), Sleeper()\n"
        "    def forward(self, x):\n"
        "        x = x.clone().requires_grad_()\n"
        "        return self.last(x + torch.autograd.grad(self.inner(x).sum(), x)[0])\n"
        "model = Outer()\n"
        "train(model, 4, optimizer=torch.optim.SGD(model.last.parameters(), 0.1))",
    )
    check_parts(forward=0.01, backward=0.01)


def test_a_model_called_inside_an_optimizer_is_counted_once(run) -> None:
    record(
        run,
        SLEEPER + "model = Sleeper()\n"
        "optimizer = torch.optim.LBFGS(model.parameters(), 0.01, max_iter=2)\n"
        "def closure():\n"
        "    optimizer.zero_grad(); loss = model(torch.ones(1, 8)).pow(2).sum(); loss.backward()\n"
        "    return loss\n"
        "for _ in range(4): optimizer.step(closure)",
    )
    check_parts(forward=0.005, backward=0.005)


def test_an_optimizer_inside_backward_leaves_each_step_its_backward(run) -> None:
    record(
        run,
        SLEEPER + "model = nn.Sequential(Sleeper(), Sleeper())\n"
        "for one in model.parameters():\n"
        "    one.optimizer = torch.optim.SGD([one], 0.1)\n"
        "    one.register_post_accumulate_grad_hook(lambda one: one.optimizer.step())\n"
        "for _ in range(5): model(torch.ones(1, 8)).sum().backward()",
    )
    check_parts(forward=0.01, backward=0.01)


def test_time_after_the_end_of_a_step_is_the_next_one_s(run) -> None:
    """On a busy machine the parts of a step were more than the step."""
    run(
        HEAD + SLEEPER + "from sonde.job.torch.steps import steps\n"
        "steps.subscribe(lambda step: time.sleep(0.01 * (step.number == 2)))  # before ours\n"
        "sonde.start(collector='off')\n"
        "model = nn.Sequential(Sleeper(), Sleeper())\n"
        "for one in model.parameters():\n"
        "    one.optimizer = torch.optim.SGD([one], 0.1)\n"
        "    one.register_post_accumulate_grad_hook(lambda one: one.optimizer.step())\n"
        "for _ in range(5): model(torch.ones(1, 8)).sum().backward()\n"
        "sonde.stop()"
    )
    check_parts(forward=0.01, backward=0.01)


# ---- modules -------------------------------------------------------------------------------------


def test_a_part_that_has_no_parameters_yet_is_described(run) -> None:
    record(
        run,
        "class Half(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__(); self.net, self.lazy = Net(), nn.LazyLinear(3)\n"
        "    def forward(self, x): return self.net(x)\n"
        "model = Half()\n"
        "train(model, 3, optimizer=torch.optim.SGD(model.net.parameters(), 0.1))",
    )
    rows = query("SELECT module, parameters n FROM python.torch_module")
    assert {(r["module"], r["n"]) for r in rows} >= {("Half", 81), ("Half.lazy", 0)}
    assert read_states() == ["on", "off"]


def test_a_loss_made_anew_in_every_step_does_not_fill_the_memory(run) -> None:
    record(
        run,
        "model = Net()\n"
        "for _ in range(1100): nn.MSELoss()(model(torch.ones(1, 8)), torch.ones(1, 1))",
    )
    rows = query(
        "SELECT count(DISTINCT module) AS names, count(*) AS calls FROM python.torch_trace"
        " WHERE module LIKE 'MSELoss%'"
    )
    assert rows == [{"names": 1001, "calls": 1100}]


# ---- on and off ----------------------------------------------------------------------------------


def test_a_start_that_fails_leaves_torch_as_it_was(run) -> None:
    done = run(
        HEAD + "from sonde.job.torch import recording as tracing\n"
        "find_engine = tracing.find_engine\n"
        "tracing.find_engine = lambda: 1 / 0\n"
        "before = vars(nn.Module)['__call__']\n"
        "sonde.start(collector='off'); train(Net(), 2)\n"
        "print(vars(nn.Module)['__call__'] is before)\n"
        "sonde.stop()\n"
        "tracing.find_engine = find_engine\n"
        "sonde.start(collector='off'); train(Net(), 2)"
    )
    assert done.stdout == "True\n"
    assert read_states() == ["failed", "on", "off"]


def test_threads_that_train_do_not_mind_a_recording_that_comes_and_goes(run) -> None:
    run(
        HEAD + "done = False\n"
        "def work(model):\n"
        "    while not done:\n"
        "        train(model, 2)\n"
        "        with torch.no_grad(): nn.Sequential(nn.Linear(8, 8), model)(torch.ones(1, 8))\n"
        "train(Net(), 1)\n"
        "threads = [threading.Thread(target=work, args=(Net(),)) for _ in range(4)]\n"
        "[thread.start() for thread in threads]\n"
        "for _ in range(5):\n"
        "    sonde.start(collector='off', torch_budget_pct=0)\n"
        "    train(Net(), 20)\n"
        "    sonde.stop()\n"
        "done = True\n"
        "[thread.join() for thread in threads]"
    )
    assert set(read_states()) == {"on", "off"}
