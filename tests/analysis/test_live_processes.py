"""What every rank is doing now, of a job that hangs."""

from __future__ import annotations

import json
from pathlib import Path

from conftest import wait_for
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
        text = wait_for(lambda: (said := sonde_cli("stacks", "hangs").stdout)
                        and "is behind" in said and said)  # fmt: skip
        assert f"rank 0 (pid {ranks[0].pid}) waits in all_reduce, no. 2, for" in text
        assert f"rank 1 (pid {ranks[1].pid}) is behind: it has finished 1" in text
        assert f"rank 1 (pid {ranks[1].pid}): fetch at " in text
        each = sonde_cli("stacks", "hangs", "--each").stdout
        assert each.count("\nThread ") >= 2 and "Process" in each
        assert len(json.loads(sonde_cli("stacks", "hangs", "--format", "json").stdout)) == 2
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
