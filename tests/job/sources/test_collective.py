"""Collectives: two gloo ranks that do what is known to the byte."""

from __future__ import annotations

import os
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest

from conftest import wait_for
from support.native_tools import make_driver
from support.needs import need, need_cuda
from support.ranks import ask, finish, start_ranks
from support.zygote import Zygote

need("torch")

DELAY_S = 0.3
# Each phase says when it begins, so that its collectives can be told from the others.
PROGRAM = """
import sonde
class Phase:
    name: str
begin = sonde.table(Phase)
folder = os.path.dirname(os.environ["MEET"])
def wait_for(name):
    while not os.path.exists(os.path.join(folder, name)): time.sleep(0.01)
meet()

begin("plain")
group = dist.new_group([0, 1], group_desc="mine")
dist.all_reduce(torch.ones(1000))
dist.all_gather([torch.empty(10, dtype=torch.bfloat16) for _ in range(2)], torch.ones(10, dtype=torch.bfloat16), group=group)
dist.broadcast(torch.ones(3, 5, dtype=torch.int64), 0)
dist.barrier()
if rank == 0: dist.send(torch.ones(7), 1)
else: dist.recv(torch.empty(7), 0)

begin("delay")
if rank == 0:
    work = dist.all_reduce(torch.ones(1), async_op=True)
    open(os.path.join(folder, "asked"), "w").close()
else:
    wait_for("asked")
    time.sleep(DELAY)
    work = dist.all_reduce(torch.ones(1), async_op=True)
work.wait()

begin("between")
def train(model, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(4, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))

model = torch.nn.parallel.DistributedDataParallel(make())
begin("ddp")
train(model)

begin("between")
from torch.distributed.fsdp import fully_shard
model = make()
for layer in model: fully_shard(layer)
fully_shard(model)
begin("fsdp")
train(model)

begin("functional")
from torch.distributed import _functional_collectives as functional
compiled = torch.compile(lambda x: functional.all_reduce(x * 2, "sum", group) + 1, backend="eager", fullgraph=True)
assert compiled(torch.ones(11)).tolist() == [5.0] * 11
begin("end")
dist.destroy_process_group()
"""
MODEL_BYTES = 2 * (64 * 64 + 64) * 4
# The collectives of a phase: those from its beginning to the next one's.
IN_PHASE = """
    FROM (SELECT *, LEAD(t_ns) OVER (PARTITION BY rank ORDER BY t_ns) AS next_ns FROM job.phase) p
    JOIN python.collective c ON c.rank = p.rank AND c.t_ns >= p.t_ns AND c.t_ns < p.next_ns
    WHERE p.name = '{}'"""


def need_recorder() -> None:
    """Leave the test out where gloo has no flight recorder: groups, numbers and sizes come from it."""
    torch = Path(find_spec("torch").origin).parent
    header = torch / "include/torch/csrc/distributed/c10d/FlightRecorder.hpp"
    if not header.exists() or "dump_fr_trace" not in header.read_text():
        pytest.skip("this torch's gloo has no flight recorder")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, torch_zygote: Zygote) -> Path:
    """What two ranks recorded of the program above."""
    need_recorder()
    made = tmp_path_factory.mktemp("ranks")
    finish(start_ranks(made, PROGRAM.replace("DELAY", str(DELAY_S)), torch_zygote))
    return made


def in_phase(folder: Path, columns: str, phase: str, rest: str = "") -> list[dict[str, object]]:
    return ask(folder, f"SELECT {columns} {IN_PHASE.format(phase)} {rest}")


@pytest.mark.parametrize("rank", [0, 1])
def test_each_collective_is_a_row_with_its_bytes(folder: Path, rank: int) -> None:
    rows = in_phase(
        folder,
        "op, backend, c.input_bytes, output_bytes, dtype, state",
        "plain",
        f"AND c.rank = {rank} AND op NOT IN ('send', 'recv') ORDER BY c.t_ns",
    )
    assert [tuple(row.values()) for row in rows] == [
        ("all_reduce", "gloo", 4000, 4000, "float32", "ended"),
        ("all_gather", "gloo", 20, 40, "bfloat16", "ended"),
        ("broadcast", "gloo", 120, 120, "int64", "ended"),
        ("barrier", "gloo", 0, 0, None, "ended"),
    ]


def test_sends_and_receives_are_there_too(folder: Path) -> None:
    rows = in_phase(
        folder,
        "c.rank, op, c.input_bytes, dtype",
        "plain",
        "AND op IN ('send', 'recv') ORDER BY 1",
    )
    assert [tuple(row.values()) for row in rows] == [
        (0, "send", 28, "float32"),
        (1, "recv", 28, "float32"),
    ]


def test_groups_are_told_with_their_ranks(folder: Path) -> None:
    rows = in_phase(
        folder,
        "DISTINCT group_desc, group_ranks, group_size",
        "plain",
        "AND group_name IS NOT NULL ORDER BY 1",
    )
    assert [tuple(row.values()) for row in rows] == [
        ("default_pg", "0,1", 2),
        ("mine", "0,1", 2),
    ]


def test_a_collective_lasts_until_the_last_rank_has_come(folder: Path) -> None:
    first, second = in_phase(folder, "c.t_ns, dur_ns", "delay", "ORDER BY c.rank")
    assert first["dur_ns"] >= DELAY_S * 1e9
    assert second["t_ns"] - first["t_ns"] >= DELAY_S * 1e9
    assert first["t_ns"] + first["dur_ns"] >= second["t_ns"]


def test_group_and_number_name_the_same_collective_on_every_rank(folder: Path) -> None:
    (row,) = ask(
        folder,
        "SELECT COUNT(*) AS n, COUNT(*) FILTER (ranks <> 2 OR kinds <> 1) AS wrong FROM ("
        "  SELECT group_name, seq, COUNT(DISTINCT rank) AS ranks, COUNT(DISTINCT (op, input_bytes)) "
        "AS kinds"
        "  FROM python.collective WHERE seq IS NOT NULL GROUP BY 1, 2)",
    )
    assert row["n"] > 20 and row["wrong"] == 0


def test_ddp_reduces_each_gradient_once_a_step(folder: Path) -> None:
    rows = in_phase(
        folder,
        "c.rank, step, SUM(c.input_bytes) AS bytes",
        "ddp",
        "AND op = 'all_reduce' GROUP BY ALL ORDER BY ALL",
    )
    assert [tuple(row.values()) for row in rows] == [
        (rank, step, MODEL_BYTES) for rank in range(2) for step in range(3)
    ]


def test_fsdp_gathers_each_weight_twice_and_reduces_its_gradient(folder: Path) -> None:
    rows = in_phase(
        folder,
        "c.rank, SUM(output_bytes) FILTER (op LIKE 'all_gather%') AS gathered, "
        "SUM(c.input_bytes) FILTER (op LIKE '%reduce%') AS reduced",
        "fsdp",
        "GROUP BY ALL ORDER BY ALL",
    )
    assert [tuple(row.values()) for row in rows] == [
        (rank, 3 * 2 * MODEL_BYTES, 3 * MODEL_BYTES) for rank in range(2)
    ]


def test_collectives_in_compiled_code_are_seen_and_break_no_graph(folder: Path) -> None:
    rows = in_phase(folder, "op, c.input_bytes, group_desc", "functional")
    assert [tuple(row.values()) for row in rows] == [("all_reduce", 44, "mine")] * 2


def test_the_thread_is_the_one_that_asked(folder: Path) -> None:
    (row,) = ask(
        folder,
        "SELECT COUNT(*) FILTER (thread <> pid) AS other, COUNT(thread) AS n FROM python.collective",
    )
    assert row["other"] == 0 and row["n"] > 20


def test_the_source_says_what_it_reads(folder: Path) -> None:
    rows = ask(
        folder,
        "SELECT detail FROM sonde.source_log WHERE source = 'collective' AND state = 'on' "
        "AND detail LIKE '%works%flight recorder%'",
    )
    assert len({row["detail"] for row in rows}) == 1


STUCK = """
import sonde
meet()
if rank == 0: work = dist.all_reduce(torch.ones(5), async_op=True)
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_collective_that_hangs_is_there_while_it_hangs(tmp_path: Path, torch_zygote) -> None:
    need_recorder()
    ranks = start_ranks(tmp_path, STUCK, torch_zygote)
    try:
        assert [rank.stdout.readline().strip() for rank in ranks] == ["ready"] * 2
        sql = "SELECT rank, op, input_bytes, seq, state, dur_ns FROM python.collective"
        (row,) = wait_for(lambda: ask(tmp_path, sql))
    finally:
        for rank in ranks:
            rank.send_signal(signal.SIGKILL)
            rank.communicate()
    assert tuple(row.values()) == (0, "all_reduce", 20, 1, "running", None)


AGAIN = """
import sonde
sonde.start(collector="off")
meet()
for _ in range(2):
    dist.all_reduce(torch.ones(3))
    sonde.stop()
    dist.all_reduce(torch.ones(4))
    sonde.start(collector="off")
dist.all_reduce(torch.ones(5))
sonde.pause()
dist.all_reduce(torch.ones(6))
sonde.resume()
child = os.fork()
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
dist.all_reduce(torch.ones(7))
dist.destroy_process_group()
"""


def test_only_what_is_asked_for_while_it_records_is_written(tmp_path: Path, torch_zygote) -> None:
    finish(start_ranks(tmp_path, AGAIN, torch_zygote))
    rows = ask(tmp_path, "SELECT input_bytes FROM python.collective WHERE rank = 0 ORDER BY t_ns")
    assert [row["input_bytes"] for row in rows] == [12, 12, 20, 28]


def test_a_source_that_is_off_leaves_torch_alone(tmp_path: Path, torch_zygote) -> None:
    code = "meet()\ndist.all_reduce(torch.ones(3))\n"
    finish(start_ranks(tmp_path, code, torch_zygote, SONDE_SOURCE_COLLECTIVE="off"))
    tables = ask(tmp_path, "SELECT table_name FROM information_schema.tables")
    if {"table_name": "collective"} in tables:
        assert ask(tmp_path, "SELECT * FROM python.collective") == []


CUDA = """
import sonde
torch.cuda.set_device(0)
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
x = torch.ones(1000, device="cuda")
for _ in range(20):
    dist.all_reduce(x)
    time.sleep(0.1)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    for _ in range(100): x = x + 1
graph.replay()
torch.cuda.synchronize()
time.sleep(1)
"""


def test_nccl_is_seen_with_the_time_of_the_device(tmp_path: Path) -> None:
    need_cuda()
    script_env = {"RANK": "0", "WORLD_SIZE": "1"}
    ranks = start_ranks(tmp_path, CUDA, **script_env)
    ranks[1].kill()
    ranks[1].communicate()
    finish(ranks[:1])
    rows = ask(
        tmp_path,
        f"SELECT op, backend, input_bytes, seq, state, dur_ns, device_dur_ns FROM python.collective "
        f"WHERE pid = {ranks[0].pid} ORDER BY t_ns",
    )
    assert [(row["op"], row["backend"], row["input_bytes"]) for row in rows] == [
        ("all_reduce", "nccl", 4000)
    ] * 20
    assert all(row["state"] == "ended" and row["dur_ns"] > 0 for row in rows)
    assert rows[-1]["device_dur_ns"] > 0


ARGUED = """
import sonde; sonde.start()
import os, time, torch, torch.distributed as dist
from sonde.job.recorder import recorder
how = {"init_method": "file://" + os.environ["MEET"], "world_size": 2, "rank": int(os.environ["MINE"])}
dist.init_process_group("gloo", **how)
unknown = torch.ones(1)
while unknown.item():  # by either of the two
    time.sleep(0.01)
    unknown = torch.tensor([float(recorder.session.meta.rank is None)])
    dist.all_reduce(unknown)
dist.destroy_process_group()
"""


def test_a_process_that_got_its_rank_as_an_argument_has_it(tmp_path: Path, torch_zygote) -> None:
    script = tmp_path / "argued.py"
    script.write_text(ARGUED)
    env = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    env |= {"SONDE_COLLECTOR": "off", "SONDE_DIR": str(tmp_path / "sonde"), "OMP_NUM_THREADS": "1"}
    env["MEET"] = str(tmp_path / "meet")
    finish([torch_zygote.start([str(script)], {**env, "MINE": str(at)}) for at in range(2)])
    rows = ask(tmp_path, "SELECT rank, world_size FROM sonde.session ORDER BY rank")
    assert rows == [{"rank": 0, "world_size": 2}, {"rank": 1, "world_size": 2}]
    assert ask(tmp_path, "SELECT DISTINCT rank FROM python.collective ORDER BY 1") == [
        {"rank": 0}, {"rank": 1}
    ]  # fmt: skip


# ---- NCCL's recorder, with a pretended driver ----------------------------------------------------

ALONE = """
import ctypes, os, sys
driver = ctypes.CDLL(os.environ["DRIVER"])
driver.read_notes.restype = ctypes.c_char_p
import sonde, torch
import torch.distributed as dist
from sonde.job.sources import collective
find = collective.find_library
collective.find_library = lambda torch, name: (
    os.environ["DRIVER"] if name == "libtorch_cuda.so" else find(torch, name))
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
for device in (-1, 1):
    driver.activate(device)
    sonde.start(collector="off")
    dist.all_reduce(torch.ones(3))
    sonde.stop()
    print(driver.read_notes().decode().split())
"""


def test_a_program_without_a_cuda_context_does_not_get_one(run, tmp_path) -> None:
    """The thread that asks NCCL's recorder made one on device 0, also for ranks that only use gloo."""
    driver = make_driver(tmp_path)
    without, with_one = run(ALONE, DRIVER=str(driver)).stdout.splitlines()
    assert without == "[]"
    assert with_one.startswith("['retain', '1', 'use', '1', 'mode', '2', 'asked', '1'"), with_one
    assert "made" not in with_one
