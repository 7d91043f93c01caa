"""Rows of a job with many ranks, as live_processes.read_processes gives them: all but one wait in a
collective."""

from __future__ import annotations

import json
from typing import Any

Row = dict[str, Any]
SECOND = 10**9
TRUNK = [["main", "/job/train.py", 33], ["<module>", "/job/train.py", 40]]
C10D = "/opt/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py"
LOADER = "/opt/lib/python3.12/site-packages/torch/utils/data/dataloader.py"
WAITING = [["all_reduce", C10D, 2810], ["step", "/job/trainer.py", 212], *TRUNK]
STUCK = [["DataLoader.__next__", LOADER, 630], ["load", "/job/data.py", 88], *TRUNK]
QUEUE = [["Queue.get", "/opt/lib/python3.12/queue.py", 171], ["run", "/job/data.py", 9]]


def make_thread(thread: int, stack: list[list[object]], name: str | None = None) -> Row:
    return {
        "thread": thread, "name": name, "idle": True, "gil": False, "wait": "lock",
        "lasted_ns": 45 * SECOND, "stack": json.dumps(stack),
    }  # fmt: skip


def make_collective(size: int, entered: int, *, waits: bool) -> Row:
    return {
        "group_name": "0", "group_desc": "default_pg", "op": "all_reduce",
        "group_ranks": ",".join(map(str, range(size))), "entered": entered,
        "finished": entered - waits, "pending": entered if waits else None,
        "lasted_ns": 45 * SECOND if waits else None,
    }  # fmt: skip


def make_row(rank: int | None, size: int, stack: list[list[object]], **more: object) -> Row:
    pid = 1000 + (rank or 0)
    row = {
        "host": f"node{(rank or 0) // 8:03}", "pid": pid, "rank": rank, "world_size": size,
        "job": "train-7", "is_child": False, "command": "python train.py", "cwd": "/job",
        "alive": True, "note": None, "collectives": [],
        "threads": [make_thread(pid, stack), make_thread(10**6 + pid, QUEUE, "loader")],
    }  # fmt: skip
    return {**row, **more}


def make_ranks(size: int, slow: int = 17) -> list[Row]:
    """Rows of `size` ranks, 8 on each host; one of them is still at its data."""
    return [
        make_row(rank, size, STUCK if rank == slow else WAITING,
                 collectives=[make_collective(size, 211 if rank == slow else 212,
                                              waits=rank != slow)])
        for rank in range(size)
    ]  # fmt: skip
