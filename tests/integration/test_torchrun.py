"""`sonde run -- torchrun …`: one session per rank, and nothing else is different."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import sonde
from sonde.session import Session, list_sessions
from support.needs import need
from support.ranks import HEAD, TIMEOUT_S
from support.zygote import Forked

need("torch")

DYING = """
import signal
meet()
dist.barrier()
if rank == 1: os.kill(os.getpid(), signal.SIGKILL)
time.sleep(300)
"""
# The losses of twenty steps, to the last bit.
TRAINING = """
import warnings
warnings.simplefilter("ignore")
meet()
dist.all_reduce(torch.ones(777))
def train(name, model):
    torch.manual_seed(rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(20):
        loss = model(torch.randn(8, 32)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # One call for a line: two ranks share the pipe.
        os.write(1, f"{name} {rank} {step} {loss.item().hex()}\\n".encode())
def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(32, 64), torch.nn.ReLU(inplace=True), torch.nn.Dropout(0.1),
        torch.nn.Linear(64, 32),
    )
from torch.nn.parallel import DistributedDataParallel
train("ddp", DistributedDataParallel(make(), bucket_cap_mb=0.001))
from torch.distributed import fsdp
train("fsdp1", fsdp.FullyShardedDataParallel(make(), device_id=torch.device("cpu")))
model = make()
if hasattr(fsdp, "fully_shard"):  # before torch 2.6 it wants a GPU
    for layer in (model[0], model[3]): fsdp.fully_shard(layer)
    train("fsdp2", fsdp.fully_shard(model))
dist.destroy_process_group()
"""
# A free port, and no name of the job.
FREE = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0")
Launch = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def launch(root: Path, tmp_path: Path) -> Launch:
    """Run code on two ranks: launch(code, *words before torchrun's own)."""

    def launch(code: str, *words: str, runner: str = "-m torch.distributed.run", **env: str):
        script = tmp_path / "train.py"
        script.write_text(HEAD + code)
        torchrun = [*runner.split(), "--nproc-per-node", "2", *FREE]
        return subprocess.run(
            [sys.executable, *words, *torchrun, str(script)], capture_output=True, text=True,
            timeout=TIMEOUT_S, check=False,
            env={**os.environ, "SONDE_COLLECTOR": "off", "OMP_NUM_THREADS": "1", **env},
        )  # fmt: skip

    return launch


RUN = ("-m", "sonde", "run")
TORCHRUN = f"-- {Path(sys.executable).with_name('torchrun')}"


def sort_out(root: Path) -> tuple[list[Session], list[Session]]:
    """The sessions of the ranks, in their order, and the others."""
    sessions = list(list_sessions(str(root)))
    ranks = [session for session in sessions if session.rank is not None]
    return sorted(ranks, key=lambda session: session.rank or 0), [
        session for session in sessions if session.rank is None
    ]


def require_one_job(root: Path) -> str:
    """Two ranks and their launcher have one job; its name."""
    ranks, (launcher,) = sort_out(root)
    told = [(s.rank, s.meta.world_size, s.meta.local_rank, s.meta.launcher) for s in ranks]
    assert told == [(0, 2, 0, "torchrun"), (1, 2, 1, "torchrun")]
    (job,) = {str(session.meta.job) for session in (*ranks, launcher)}
    return job


def test_a_rank_of_a_named_job_that_is_killed_is_told_and_the_exit_code_is_kept(
    root: Path, launch: Launch, sonde_cli
) -> None:
    done = launch(DYING, *RUN, "--job", "nightly", runner="-m torch.distributed.run")
    assert done.returncode == 1, done.stderr  # as torchrun's own
    assert require_one_job(root) == "nightly"
    listed = json.loads(sonde_cli("ps", "--format", "json").stdout)
    assert {row["rank"]: row["state"] for row in listed}[1] == "killed"
    shown = sonde_cli("ps").stdout
    assert "nightly" in shown and ("SIGKILL" in shown or " killed " in shown)


def test_every_rank_has_a_session_of_one_job_and_losses_are_the_same_to_the_last_bit(
    root: Path, launch: Launch, start_torch: Callable[..., Forked], tmp_path: Path, monkeypatch
) -> None:
    # Unrecorded ranks need no launcher; they meet by a file.
    # On a machine with one GPU, FSDP would take it for both.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    shared = {"MEET": str(tmp_path / "meet"), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
              "CUDA_VISIBLE_DEVICES": ""}  # fmt: skip
    bare = [
        start_torch(HEAD + TRAINING, ready=False, RANK=rank, LOCAL_RANK=rank, **shared)
        for rank in "01"
    ]
    losses = [line for one in bare for line in one.communicate(timeout=TIMEOUT_S)[0].splitlines()]
    kinds = {line.split()[0] for line in losses}
    assert {"ddp", "fsdp1"} <= kinds <= {"ddp", "fsdp1", "fsdp2"}
    assert len(losses) == len(kinds) * 2 * 20
    ours = launch(TRAINING, *RUN, runner=TORCHRUN)
    assert ours.returncode == 0, ours.stderr
    assert sorted(ours.stdout.splitlines()) == sorted(losses)
    ranks, (launcher,) = sort_out(root)
    job = require_one_job(root)
    assert job.endswith(f"-{launcher.pid}")
    sql = "SELECT rank, op FROM python.collective WHERE input_bytes = 4 * 777 ORDER BY rank"
    rows = sonde.open(job).query(sql).to_pylist()
    assert [tuple(row.values()) for row in rows] == [(0, "all_reduce"), (1, "all_reduce")]
    for session in ranks:
        (row,) = (
            sonde.open(session.folder)
            .query("SELECT COUNT(*) AS n FROM python.collective")
            .to_pylist()
        )
        assert row["n"] > 3 * 20
