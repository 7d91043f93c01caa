"""What is known of the program's DataLoaders and optimizers, and of torch's threads."""

from __future__ import annotations

import os

import pytest

from sonde.session import list_sessions
from sonde.store.recording import Recording
from support.needs import need

need("torch")

HEAD = """
import gc, os, weakref
import torch
from torch.utils.data import DataLoader, Dataset
import sonde
torch.set_num_threads(1)
class Numbers(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return torch.full((4,), float(i))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def train(loader):
    for x in loader:
        optimizer.zero_grad(); model(x).sum().backward(); optimizer.step()
"""


@pytest.fixture
def run(run_torch):
    return run_torch


def query(sql: str) -> list[dict[str, object]]:
    return Recording(list_sessions(os.environ["SONDE_DIR"])).query(sql).to_pylist()


def record(run, code: str) -> str:
    return run(HEAD + "sonde.start(collector='off', follow=False)\n" + code).stdout


def test_a_loader_is_told_when_it_begins_to_be_used(run) -> None:
    record(run, "train(DataLoader(Numbers(), batch_size=2, drop_last=True))")
    (row,) = query("SELECT * FROM python.torch_loader")
    assert row["dataset"] == "__main__.Numbers"
    assert (row["workers"], row["batch_size"], row["prefetch_factor"]) == (0, 2, None)
    assert (row["drop_last"], row["persistent_workers"], row["context"]) == (True, False, None)


def test_the_pids_of_workers_are_told(run) -> None:
    printed = record(
        run,
        "loader = DataLoader(Numbers(), batch_size=2, num_workers=2, prefetch_factor=3,\n"
        "                    multiprocessing_context='fork', persistent_workers=True)\n"
        "train(loader); train(loader)\n"
        "print(*(worker.pid for worker in loader._iterator._workers))",
    )
    (row,) = query("SELECT * FROM python.torch_loader")
    assert (row["workers"], row["prefetch_factor"], row["context"]) == (2, 3, "fork")
    assert row["persistent_workers"]
    workers = query("SELECT worker, process FROM python.torch_worker ORDER BY worker")
    assert [row["process"] for row in workers] == [int(pid) for pid in printed.split()]


def test_the_same_facts_are_told_once_over_many_epochs(run) -> None:
    record(
        run, "loader = DataLoader(Numbers(), batch_size=2)\nfor _ in range(50):\n    train(loader)"
    )
    assert query("SELECT loader FROM python.torch_loader") == [{"loader": 0}]


def test_two_loaders_have_two_numbers(run) -> None:
    record(
        run,
        "one, other = (DataLoader(Numbers(), batch_size=size) for size in (2, 4))\n"
        "train(one); train(other); train(one)",
    )
    rows = query("SELECT loader, batch_size FROM python.torch_loader ORDER BY t_ns")
    assert rows == [{"loader": 0, "batch_size": 2}, {"loader": 1, "batch_size": 4}]


def test_an_iterator_is_not_kept_alive(run) -> None:
    printed = record(
        run,
        "batches = iter(DataLoader(Numbers(), batch_size=2))\nnext(batches)\n"
        "gone = weakref.ref(batches)\ndel batches\ngc.collect()\nprint(gone())",
    )
    assert printed.strip() == "None"


def test_batches_that_the_program_makes_itself_have_no_size(run) -> None:
    record(run, "train(DataLoader(Numbers(), batch_sampler=[[0, 1], [2]]))")
    assert query("SELECT batch_size FROM python.torch_loader") == [{"batch_size": None}]


def test_torchs_threads_are_told_when_they_change(run) -> None:
    record(
        run,
        "loader = DataLoader(Numbers(), batch_size=1)\n"
        "for _ in range(10): train(loader)\n"
        "torch.set_num_threads(2)\n"
        "for _ in range(10): train(loader)",
    )
    rows = query("SELECT threads, allowed_cores FROM python.torch_threads ORDER BY t_ns")
    assert [row["threads"] for row in rows] == [1, 2]
    assert rows[0]["allowed_cores"] == len(os.sched_getaffinity(0))


def test_torchs_aids_for_finding_faults_are_told_and_our_own_profiler_is_none(run) -> None:
    record(
        run,
        "loader = DataLoader(Numbers(), batch_size=1)\n"
        "from sonde.job.torch.kineto_driver import Kineto, is_program_profiling\n"
        "ours = Kineto(print)\n"
        "ours.begin(shapes=False, memory=False, stacks=False)\n"
        "for _ in range(10): train(loader)\n"
        "ours.end(); ours.drop()\n"
        "torch.autograd.set_detect_anomaly(True)\n"
        "for _ in range(10): train(loader)\n"
        "torch.autograd.set_detect_anomaly(False)\n"
        "with torch.profiler.profile():\n"
        "    for _ in range(10): train(loader)",
    )
    rows = query("SELECT anomaly, profiler FROM python.torch_debug ORDER BY t_ns")
    assert [(row["anomaly"], row["profiler"]) for row in rows] == [
        (False, False), (True, False), (False, True),
    ]  # fmt: skip


def test_how_an_optimizer_goes_through_its_parameters_is_told(run) -> None:
    record(
        run,
        "for options in ({}, {'foreach': True}, {'fused': True}):\n"
        "    optimizer = torch.optim.Adam(model.parameters(), 0.1, **options)\n"
        "    train(DataLoader(Numbers(), batch_size=2))\n"
        "    train(DataLoader(Numbers(), batch_size=2))",
    )
    rows = query("SELECT * FROM python.torch_optimizer ORDER BY t_ns")
    assert [row["way"] for row in rows] == ["single", "foreach", "fused"]
    told = {(row["optimizer"], row["can_fuse"], row["tensors"], row["device"]) for row in rows}
    assert told == {("Adam", True, 2, "cpu")}
