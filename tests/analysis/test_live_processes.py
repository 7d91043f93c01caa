"""What every rank is doing now, of a job that hangs."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from conftest import wait_for
from sonde.analysis.live_processes import choose_current, drop_replaced
from support.needs import need
from support.ranks import start_ranks

need("torch")

HANGS = """
meet()
dist.all_reduce(torch.ones(1))
def fetch():
    while True: time.sleep(0.1)
if rank == 1: fetch()
dist.all_reduce(torch.ones(1))
"""


def test_the_rank_that_keeps_the_others_waiting_is_named(
    tmp_path: Path, root: Path, torch_zygote, sonde_cli
) -> None:
    ranks = start_ranks(tmp_path, HANGS, torch_zygote, TORCHELASTIC_RUN_ID="hangs")
    try:
        first, second = (f"rank {at} (pid {ranks[at].pid})" for at in range(2))
        wanted = (f"{first} waits in all_reduce, no. 2, for",
                  f"{second} is behind: it has finished 1", f"{second}: fetch (")  # fmt: skip
        said = [""]  # on a busy machine each of them comes there in its own time

        def is_told() -> bool:
            said.append(sonde_cli("stacks", "hangs").stdout)
            return all(words in said[-1] for words in wanted)

        with suppress(AssertionError):
            wait_for(is_told, 120)
        assert all(words in said[-1] for words in wanted), said[-1]
        each = sonde_cli("stacks", "hangs", "--each").stdout
        assert each.count("\nThread ") >= 2 and "Process" in each
        assert len(json.loads(sonde_cli("stacks", "hangs", "--format", "json").stdout)) == 2
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


def describe(rank: int, begun_s: int, *, alive: bool, job: str = "a", parent: str = "") -> Any:
    name = f"{job}-{rank}-{begun_s}"
    meta = SimpleNamespace(job=job, parent=parent, launcher="torchrun", ppid=1)
    return SimpleNamespace(id=name, rank=rank, start_wall_ns=begun_s * 10**9, host="h", pid=begun_s,
                           is_alive=lambda: alive, meta=meta)  # fmt: skip


def test_a_rank_that_was_started_again_is_shown_once_and_another_job_does_not_hide_one() -> None:
    runs = [describe(0, 1000, alive=True)]
    again = [describe(1, 1000, alive=False), describe(1, 1020, alive=True)]
    twice = [describe(2, 1020, alive=False), describe(2, 1000, alive=False)]
    other = [describe(3, 1000, alive=False), describe(3, 1000, alive=True, job="b")]
    # A loader's worker outlives its rank.
    worker = describe(4, 1010, alive=True, parent="a-4-1000")
    shown = choose_current([*runs, *again, *twice, *other, describe(4, 1000, alive=False), worker])
    assert sorted((one.meta.job, one.rank, one.start_wall_ns // 10**9) for one in shown) == [
        ("a", 0, 1000), ("a", 1, 1020), ("a", 2, 1020), ("a", 3, 1000), ("a", 4, 1000),
        ("a", 4, 1010), ("b", 3, 1000),
    ]  # fmt: skip


def test_a_rank_that_went_on_on_another_host_has_not_ended() -> None:
    def row(host: str, rank: int, *, alive: bool, is_child: bool = False) -> dict[str, Any]:
        return {"host": host, "job": "a", "rank": rank, "alive": alive, "is_child": is_child}

    rows = [row("x", 1, alive=False), row("y", 1, alive=True), row("x", 2, alive=False),
            row("y", 2, alive=True, is_child=True)]  # fmt: skip
    assert drop_replaced(rows) == rows[1:]
