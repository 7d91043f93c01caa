"""python.variable: watched variables, from running programs to the table."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import pytest

import sonde
from conftest import wait_for
from sonde import _core
from sonde.session import Session, list_sessions, steering
from support.needs import need, need_cuda

HEAD = """
import sys, time
import sonde
from sonde.job.torch.steps import USER, steps
def start(watch): sonde.start(collector="off", torch_watch=watch)
def end(): steps.end(USER)
"""


def only_session(root: Path) -> Session:
    (session,) = list_sessions(str(root))
    return session


def read_rows(root: Path, columns: str = "*") -> list[dict[str, object]]:
    return (
        sonde.open(only_session(root).folder)
        .query(f"SELECT {columns} FROM python.variable ORDER BY step, name")
        .to_pylist()
    )


def read_word(root: Path) -> tuple[str, str | None]:
    (row,) = (
        sonde.open(only_session(root).folder)
        .query("SELECT state, detail FROM sonde.source WHERE source = 'variable'")
        .to_pylist()
    )
    return row["state"], row["detail"]


# ---- plain programs ------------------------------------------------------------------------------

PLAIN = """
start("loss@train; name@train, flags@train; huge@train; thing@train; big@train")
class Thing: pass
def train(step):
    loss, name, flags, huge, thing, big = step / 4, "é" * 300, [True, None], 10**400, Thing(), 2**70
    end()
for step in range(3): train(step)
"""


def test_numbers_texts_and_other_values_are_written_at_each_step(run, root) -> None:
    assert run(HEAD + PLAIN).stderr == ""
    rows = read_rows(root)
    assert len(rows) == 18 and {row["func"] for row in rows} == {"train"}
    assert [row["number"] for row in rows if row["name"] == "loss"] == [0, 0.25, 0.5]
    last = {row["name"]: row for row in rows[-6:]}
    assert last["name"]["value"].startswith("'ééé") and len(last["name"]["value"]) < 250
    assert (last["flags"]["value"], last["flags"]["kind"]) == ("[True, None]", "list")
    assert last["huge"]["value"].startswith("<int of 13") and last["huge"]["number"] is None
    assert (last["thing"]["value"], last["thing"]["kind"]) == ("<__main__.Thing>", "Thing")
    assert last["big"]["number"] == 2.0**70
    assert {row["shape"] for row in rows} == {None}


MISSING = """
start("loss@train")
def train(step):
    if step > 2 and step != 5: loss = step
    end()
def other(): end()
other(); other()
for step in range(8): train(step)
"""


def test_what_is_missing_is_told_once_until_it_is_there(run, root) -> None:
    run(HEAD + MISSING)
    rows = read_rows(root, "step, kind, number, value")
    assert [(row["step"], row["kind"], row["number"], row["value"]) for row in rows] == [
        (0, "missing", None, "train is not running when a step ends"),
        (2, "missing", None, "train has no loss"),
        (5, "int", 3, None),
        (6, "int", 4, None),
        (7, "missing", None, "train has no loss"),
        (8, "int", 6, None),
        (9, "int", 7, None),
    ]


MODULE = """
start("loss@<module>")
for step in range(2):
    loss = step + 0.5
    end()
"""


def test_a_loop_outside_of_functions_is_watched_as_module(run, root) -> None:
    run(HEAD + MODULE)
    assert [row["number"] for row in read_rows(root)] == [0.5, 1.5]


TEXTS = """
start("name@train")
def train(name): end()
for step in range(1500): train(f"name {step}")
"""


def test_texts_without_end_do_not_fill_the_recording(run, root) -> None:
    run(HEAD + TEXTS)
    rows = read_rows(root, "step, value")
    assert len(rows) == 1500 and rows[900]["value"] == "'name 900'"
    assert {row["value"] for row in rows[1010:]} == {"<more than 1000 different>"}


def test_nothing_is_watched_until_it_is_asked_for(run, root) -> None:
    run(HEAD + "sonde.start(collector='off')\nassert steps._listeners == ()\nend()")
    log = sonde.open(only_session(root).folder).query(
        "SELECT state, detail FROM sonde.source_log WHERE source = 'variable' ORDER BY t_ns"
    )
    assert log.to_pylist()[0] == {"state": "on", "detail": "nothing is watched; set torch.watch"}
    assert read_rows(root) == []


LIVE = """
import os
sonde.start(collector="off")
def train(step):
    loss = step
    end()
def turn(step):
    while not os.path.exists(sys.argv[1] + str(step)): time.sleep(0.001)
    train(step)
    print("done", flush=True)
print("ready", flush=True)
for step in range(4): turn(step)
assert steps._listeners == ()
"""


def test_it_is_set_changed_and_ended_while_the_program_runs(start, root, tmp_path) -> None:
    process = start(HEAD + LIVE, str(tmp_path / "go"))
    session = only_session(root)
    changes = ("", "loss@train", "step@train", "off")
    for turn, watch in enumerate(changes):
        if watch:
            steering.configure(session, {"torch.watch": watch}, 30)
            word = "nothing is watched; set torch.watch" if watch == "off" else None
            wait_for(lambda word=word: read_word(root) == ("on", word))
        (tmp_path / f"go{turn}").touch()
        assert process.stdout.readline() == "done\n"
    assert process.wait(60) == 0, process.stderr.read()
    # Steps are counted while somebody wants to know of them.
    rows = read_rows(root, "step, name, number")
    assert [tuple(row.values()) for row in rows] == [(0, "loss", 1), (1, "step", 2)]


FAILS = """
start("loss@train")
import sonde.job.variables.rows as variables
def broken(*_): raise KeyError("ours")
variables.Variables.record = broken
def train():
    loss = 1
    end()
train(); train()
print("fine")
"""


def test_a_failure_of_ours_ends_the_source_and_not_the_program(run, root) -> None:
    done = run(HEAD + FAILS)
    assert (done.stdout, done.stderr) == ("fine\n", "")
    assert read_word(root)[0] == "failed"


# ---- numbers in memory ---------------------------------------------------------------------------


def summarize(raw: bytes, kind: str, shape, strides, most: int = 4096) -> tuple:
    import ctypes

    buffer = ctypes.create_string_buffer(raw)
    return _core.summarize(ctypes.addressof(buffer), kind, shape, strides, most)


@pytest.mark.parametrize("kind", "fdqihbe")
def test_numbers_of_every_kind_are_read(kind: str) -> None:
    values = (-3, 0, 5, 2)
    raw = struct.pack(f"<4{kind}", *values)
    size = struct.calcsize(kind)
    assert summarize(raw, kind, (4,), (size,)) == (4, 0, -3.0, 5.0, 1.0)


@pytest.mark.parametrize("kind", "QIHB")
def test_numbers_without_sign_are_read(kind: str) -> None:
    top = 256 ** struct.calcsize(kind) - 1
    raw = struct.pack(f"<2{kind}", top, 1)
    found = summarize(raw, kind, (2,), (struct.calcsize(kind),))
    assert found[:4] == (2, 0, 1.0, float(top))


def test_nan_is_counted_and_left_out() -> None:
    raw = struct.pack("<4f", 1, math.nan, 3, math.nan)
    assert summarize(raw, "f", (4,), (4,)) == (4, 2, 1.0, 3.0, 2.0)
    assert summarize(struct.pack("<f", math.nan), "f", (), ()) == (1, 1, None, None, None)
    half = struct.pack("<3e", math.nan, math.inf, 6e-8)
    assert summarize(half, "e", (2,), (4,)) == (2, 1, *[pytest.approx(5.96e-8, rel=1e-3)] * 3)
    assert summarize(struct.pack("<f", -2.5)[2:], "E", (), ())[2] == -2.5


def test_strides_are_followed_and_may_be_zero_or_negative() -> None:
    raw = struct.pack("<6h", 1, 2, 3, 4, 5, 6)
    assert summarize(raw, "h", (2, 2), (6, 4))[2:] == (1.0, 6.0, 3.5)  # corners of 2x3
    assert summarize(raw, "h", (4,), (0,)) == (4, 0, 1.0, 1.0, 1.0)


def test_of_many_numbers_some_are_looked_at_in_every_column() -> None:
    rows, columns = 256, 64
    raw = struct.pack(f"<{rows * columns}h", *[c for _ in range(rows) for c in range(columns)])
    seen, nans, least, largest, mean = summarize(raw, "h", (rows, columns), (columns * 2, 2), 256)
    assert 200 < seen <= 256 and nans == 0
    assert (least, largest) == (0, 63) and mean == pytest.approx(31.5, rel=0.1)


def test_nothing_is_what_an_empty_array_holds() -> None:
    assert summarize(b"", "f", (0, 3), (12, 4)) == (0, 0, None, None, None)


@pytest.mark.parametrize(
    ("kind", "shape", "strides"),
    [("x", (1,), (1,)), ("f", (1,), ()), ("f", (-1,), (4,)), ("f", (2**40, 2**40), (0, 0)),
     ("f", (1,) * 17, (0,) * 17), ("é", (1,), (4,))],
)  # fmt: skip
def test_what_cannot_be_is_refused(kind: str, shape, strides) -> None:
    with pytest.raises(ValueError):
        summarize(b"\0" * 8, kind, shape, strides)


def test_arrays_of_numpy_are_summarised(run, root) -> None:
    pytest.importorskip("numpy")
    run(
        HEAD + "import numpy as np\n"
        "start('a@f; b@f; c@f; d@f; e@f; g@f')\n"
        "def f():\n"
        "    a, b, c = np.arange(6.).reshape(2, 3).T, np.float32(0.5), np.bool_(True)\n"
        "    d, e = np.array(['x']), np.array([1, 2], '>i4')\n"
        "    g = np.complex64(1)\n"
        "    end()\n"
        "f()\n"
    )
    a, b, c, d, e, g = read_rows(root)
    assert (a["kind"], a["shape"], a["dtype"], a["device"]) == ("ndarray", "3x2", "float64", "cpu")
    assert [a[key] for key in ("elements", "seen", "least", "largest", "mean", "nans")] == [
        6, 6, 0.0, 5.0, 2.5, 0,
    ]  # fmt: skip
    assert (b["number"], c["number"]) == (0.5, 1)
    assert (d["seen"], e["seen"], d["mean"], e["mean"], e["nans"]) == (0, 0, None, None, None)
    assert (g["number"], g["value"]) == (None, "<numpy.complex64>")


# ---- torch ---------------------------------------------------------------------------------------

TORCH = HEAD + "import warnings; warnings.simplefilter('error')\nimport torch\n"

TENSORS = """
start("loss@train; bits@train; half@train; net.weight@train; net.weight.grad@train; "
      "nan@train; many@train; meta@train; gone@train; sparse@train; empty@train; part@train; cow@train")
def train():
    net = torch.nn.Linear(2, 2)
    torch.nn.init.constant_(net.weight, 0.5)
    loss = net(torch.ones(1, 2)).mean()
    loss.backward()
    bits, half = torch.tensor([True, False]), torch.full((3,), 1.5, dtype=torch.bfloat16)
    nan, many = torch.tensor(float("nan")), torch.zeros(1000, 1000)
    meta, gone, empty = torch.empty(3, device="meta"), torch.ones(4), torch.empty(0, 3)
    gone.untyped_storage().resize_(0)
    sparse = torch.eye(3).to_sparse()
    cow = torch._lazy_clone(torch.ones(3))
    part = torch.arange(12.).reshape(3, 4)[:, 1::2]
    end()
    assert torch._C._is_cow_tensor(cow)
    return loss.item()
print(train())
"""


def test_tensors_are_summarised_where_they_lie(run_torch, root) -> None:
    need("torch")
    done = run_torch(TORCH + TENSORS)
    assert done.stderr == ""
    rows = {row["name"]: row for row in read_rows(root)}
    loss = rows["loss"]
    assert loss["number"] == loss["mean"] == pytest.approx(float(done.stdout), rel=1e-6)
    assert (loss["kind"], loss["shape"], loss["dtype"]) == ("Tensor", "scalar", "float32")
    assert (rows["net.weight"]["kind"], rows["net.weight"]["mean"]) == ("Parameter", 0.5)
    assert rows["net.weight.grad"]["mean"] == 0.5
    assert (rows["bits"]["mean"], rows["half"]["mean"]) == (0.5, 1.5)
    assert math.isnan(rows["nan"]["number"]) and rows["nan"]["nans"] == 1
    assert rows["many"]["elements"] == 10**6 and 3000 < rows["many"]["seen"] <= 4096
    assert rows["part"]["mean"] == 6.0 and rows["part"]["elements"] == 6
    for name in ("meta", "gone", "sparse", "empty", "cow"):
        assert (rows[name]["seen"], rows[name]["mean"]) == (0, None), name


UNSEEN = """
from torch.utils._python_dispatch import TorchDispatchMode
from torch.overrides import TorchFunctionMode
seen = []
class Functions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        seen.append(func)
        return func(*args, **(kwargs or {}))
class Operations(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        seen.append(func)
        return func(*args, **(kwargs or {}))
start("loss@train; wrapped@inside")
def train():
    loss = 2 * torch.ones(3, requires_grad=True).sum()
    before = (torch.get_rng_state(), loss.grad_fn, loss._version, torch.is_grad_enabled())
    with Functions(), Operations():
        seen.clear()
        end()
        assert seen == [], seen
    after = (torch.get_rng_state(), loss.grad_fn, loss._version, torch.is_grad_enabled())
    assert torch.equal(before[0], after[0]) and before[1:] == after[1:]
def inside(wrapped):
    end()
    return wrapped
train()
torch.vmap(inside)(torch.ones(2, 2))
with torch.inference_mode(): inside(torch.ones(2))
"""


def test_neither_modes_nor_autograd_nor_chance_see_it(run_torch, root) -> None:
    need("torch")
    assert run_torch(TORCH + UNSEEN).stderr == ""
    found = {
        (row["name"], row["step"]): row["seen"]
        for row in read_rows(root)
        if row["kind"] != "missing"
    }
    assert found == {("loss", 0): 1, ("wrapped", 1): 0, ("wrapped", 2): 2}


TRAIN = """
import hashlib
torch.manual_seed(1)
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
def train(step):
    loss = net(torch.randn(16, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()
losses = [train(step) for step in range(50)]
print(hashlib.sha256(repr(losses).encode()).hexdigest())
"""


def test_losses_are_the_same_to_the_last_bit_and_so_is_what_is_written(run_torch, root) -> None:
    need("torch")
    bare = run_torch(TORCH + TRAIN).stdout
    watch = "start('loss@train; optimizer.param_groups[0][\\'lr\\']@train')\n"
    done = run_torch(TORCH + watch + TRAIN + "print(losses[7])")
    assert done.stdout.splitlines()[0] == bare.strip() and done.stderr == ""
    rows = read_rows(root, "step, name, number")
    assert len(rows) == 100
    assert {row["number"] for row in rows if "lr" in row["name"]} == {0.01}
    (seventh,) = [row["number"] for row in rows if row["step"] == 7 and row["name"] == "loss"]
    assert seventh == float(done.stdout.splitlines()[1])


CUDA = """
import warnings
start("loss@train; many@train; turned@train")
net = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
many = torch.arange(10**6, device="cuda", dtype=torch.float32)
turned = torch.arange(6., device="cuda").reshape(2, 3).T
losses = []
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch says that this is a prototype
    torch.cuda.set_sync_debug_mode("error")
def train(many, turned):
    loss = net(torch.ones(8, 64, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
for step in range(20): train(many, turned)
torch.cuda.set_sync_debug_mode("default")
torch.cuda.synchronize()
train(many, turned)
sonde.stop()
print([loss.item() for loss in losses])
"""


def test_tensors_on_a_device_are_read_later_without_waiting(run, root) -> None:
    need_cuda()
    done = run(TORCH + CUDA)
    assert done.stderr == ""
    losses = eval(done.stdout)
    rows = read_rows(root)
    seen = {row["step"]: row for row in rows if row["name"] == "loss" and row["seen"]}
    assert seen and {row["device"] for row in seen.values()} == {"cuda:0"}
    assert all(row["number"] == pytest.approx(losses[step]) for step, row in seen.items())
    many = [row for row in rows if row["name"] == "many" and row["seen"]]
    assert all(row["seen"] == 4096 and row["largest"] == 999_999 for row in many) and many
    turned = [row for row in rows if row["name"] == "turned" and row["seen"]]
    assert all((row["mean"], row["seen"]) == (2.5, 6) for row in turned) and turned


GRAPH = """
start("loss@train")
static = torch.ones(8, device="cuda")
graph = torch.cuda.CUDAGraph()
def train():
    loss = (static * 2).sum()
    end()
    return loss
side = torch.cuda.Stream()
with torch.cuda.stream(side): train()
side.synchronize()
with torch.cuda.graph(graph): loss = train()
for _ in range(3): graph.replay()
torch.cuda.synchronize()
train()
assert loss.item() == 16
"""


def test_nothing_is_copied_while_a_graph_is_captured(run, root) -> None:
    need_cuda()
    assert run(TORCH + GRAPH).stderr == ""
    seen = {row["step"]: row["seen"] for row in read_rows(root)}
    assert seen[1] == 0 and len(seen) == 3
