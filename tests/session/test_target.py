"""How users name recordings."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from conftest import wait_for
from sonde.cli import ps
from sonde.errors import NoSession
from sonde.session import list_sessions
from sonde.session.target import find_nearest_name, find_sessions, find_workers


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Path]:
    """A folder of recordings that this user may not look into."""
    folder = tmp_path / "closed"
    folder.mkdir()
    (folder / "host-1-20200101T000000.000000").mkdir()
    folder.chmod(0)
    is_root = os.geteuid() == 0  # who may read everything
    if is_root:
        os.seteuid(65534)
    yield folder
    if is_root:
        os.seteuid(0)
    folder.chmod(0o700)


@pytest.mark.parametrize(
    "target", ["4242", "all", "train.py", "host-1-20200101T000000.000000", "folder"]
)
def test_a_folder_that_may_not_be_read_is_not_called_empty(closed: Path, target: str) -> None:
    if target == "folder":
        target = str(closed / "host-1-20200101T000000.000000")
    with pytest.raises(NoSession, match=r"belongs to user .*, and nobody else may read it"):
        find_sessions(target, str(closed))


def test_ps_does_not_call_a_folder_empty_that_may_not_be_read(closed: Path) -> None:
    with pytest.raises(NoSession, match="nobody else may read it"):
        ps._list_here(str(closed))


def test_words_of_a_command_tell_two_runs_of_a_program_apart(root: Path, run) -> None:
    for task in ("nightly", "report"):
        run("import sonde; sonde.start()", task, SONDE_COLLECTOR="off")
    (nightly,) = find_sessions("program.py nightly", str(root))
    assert nightly.meta.argv[-1] == "nightly"
    with pytest.raises(NoSession, match=r"no recording called program\.py night;"):
        find_sessions("program.py night", str(root))  # whole words only


SERVED = """
import multiprocessing, sys, time
def work():
    time.sleep(1000)
if __name__ == "__main__":
    worker = multiprocessing.get_context("forkserver").Process(target=work, daemon=True)
    worker.start()
    print("ready", flush=True)
    worker.join()
"""


def test_the_workers_of_a_rank_are_its_own_also_where_a_server_forks_them(
    root: Path, start
) -> None:
    """As multiprocessing does by itself from Python 3.14 on: the server counted as one more rank."""
    ranks = [
        start(SERVED, SONDE="1", SONDE_COLLECTOR="off", TORCHELASTIC_RUN_ID="served",
              RANK=str(rank), WORLD_SIZE="2")
        for rank in range(2)
    ]  # fmt: skip
    # Each is three processes: the rank, the server, the worker (and, for a while, others).
    try:
        for rank in range(2):
            wait_for(
                lambda r=rank: sum(one.rank == r for one in find_sessions("served", str(root))) >= 3
            )
        sessions = find_sessions("served", str(root))
        workers = find_workers(sessions)
        assert {one.pid for one in sessions if one.id not in workers} == {one.pid for one in ranks}
    finally:  # a worker would outlive its rank, and keep its output open
        for one in list_sessions(str(root)):
            if one.is_alive():
                os.kill(one.pid, signal.SIGKILL)


def test_a_launcher_whose_rank_has_the_same_number_has_no_worker() -> None:
    """SLURM numbers its tasks; torchrun in one of them numbers its own."""
    agent, rank, worker = (
        SimpleNamespace(id=name, host="h", pid=pid, rank=0, start_wall_ns=pid,
                        meta=SimpleNamespace(job="j", launcher=by, ppid=pid - 1, parent=None, argv=argv))
        for name, pid, by, argv in (
            ("agent", 2, "slurm", ["torchrun"]), ("rank", 3, "torchrun", ["train.py"]),
            ("worker", 4, "torchrun", ["-c", "from multiprocessing.forkserver import main"]),
        )
    )  # fmt: skip
    assert find_workers([worker, rank, agent]) == {"worker"}


def test_a_program_that_a_rank_starts_may_be_the_one_that_trains() -> None:
    wrapper, train = (
        SimpleNamespace(id=name, host="h", pid=pid, rank=0, start_wall_ns=pid,
                        meta=SimpleNamespace(job="j", launcher="slurm", ppid=pid - 1, parent=None,
                                             argv=["python", f"{name}.py"]))
        for name, pid in (("wrapper", 2), ("train", 3))
    )  # fmt: skip
    assert find_workers([wrapper, train]) == set()


def test_a_name_that_begins_so_is_nearer_than_one_that_looks_alike() -> None:
    assert find_nearest_name("torch", ["orc", "torch.distributed.run"]) == (
        "did you mean torch.distributed.run? "
    )
    assert find_nearest_name("trian.py", ["train.py"]) == "did you mean train.py? "
