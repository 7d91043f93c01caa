"""Ranks to record: programs that are several processes on one machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import sonde
from support.zygote import Forked, Zygote

TIMEOUT_S = 240.0
# Of a rank: two of them meet by a file, and do their sums on one thread.
HEAD = """
import os, sys, time
import torch, torch.distributed as dist
torch.set_num_threads(1)
rank = int(os.environ["RANK"])
def meet():
    where = os.environ.get("MEET")
    how = {"init_method": "file://" + where, "rank": rank, "world_size": 2} if where else {}
    dist.init_process_group("gloo", **how)
"""


def start_ranks(
    folder: Path, code: str, zygote: Zygote | None = None, **env: str
) -> list[subprocess.Popen[str] | Forked]:
    """Start two recorded ranks of this code; forks of `zygote`, which has imported torch, begin their
    recordings themselves."""
    script = folder / "rank.py"
    begin = "import sonde; sonde.start()\n" if zygote else ""
    script.write_text(begin + HEAD + code)
    shared = {**os.environ, "SONDE": "1", "SONDE_COLLECTOR": "off", "OMP_NUM_THREADS": "1"}
    shared |= {"MEET": str(folder / "meet"), "WORLD_SIZE": "2", "SONDE_DIR": str(folder / "sonde")}
    if zygote:
        words = [str(script)]
        return [zygote.start(words, {**shared, "RANK": str(at), **env}) for at in range(2)]
    return [
        subprocess.Popen(
            [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env={**shared, "RANK": str(rank), **env},
        )
        for rank in range(2)
    ]  # fmt: skip


def finish(ranks: Sequence[subprocess.Popen[str] | Forked]) -> list[str]:
    """Wait until all have ended well; what they printed."""
    done = [rank.communicate(timeout=TIMEOUT_S) for rank in ranks]
    codes = [rank.returncode for rank in ranks]
    assert codes == [0] * len(ranks), (codes, done)
    return [out for out, _err in done]


def ask(folder: Path, sql: str) -> list[dict[str, object]]:
    """Rows of all ranks."""
    return sonde.open(str(folder / "sonde")).query(sql).to_pylist()
