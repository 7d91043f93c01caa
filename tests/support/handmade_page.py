"""The page of a large job, made by hand: the numbers are known, the browser is the real one."""

from __future__ import annotations

import zlib

import pyarrow as pa

from sonde.web.answer import PageAnswer
from sonde.web.assets import make_single
from sonde.web.report import join_answers

S = 10**9
RANKS, STACKS, PIECES = 64, 10_000, 100


def make_large_page() -> str:
    """64 ranks with 10,000 distinct stacks, of which rank 7 is slow and rank 9 ends halfway."""
    processes = [
        {"part": rank, "session": f"s{rank}", "host": f"node{rank // 8}", "pid": 100 + rank,
         "rank": rank, "command": "train.py", "argv": "python train.py", "state": "ended",
         "from": 0, "job": "big", "python": "3.11", "ending": None}
        for rank in range(RANKS)
    ]  # fmt: skip
    about = {"target": "big", "base_ms": 0, "base_ns": "0", "until": PIECES * S, "live": False,
             "processes": processes, "thinned": "made by hand"}  # fmt: skip
    advice = {"findings": [], "outcomes": [], "places": [], "pieces": 1, "piece_ns": S}
    answers = {
        "about": PageAnswer(about), "stacks": _make_stacks(), "steps": _make_steps(),
        "marks": PageAnswer({"marks": [], "counts": {}}),
        "machine": PageAnswer({"charts": []}),
        "events": PageAnswer({"summary": [], "spans": [], "counters": [], "most": 1}),
        "modules": PageAnswer({"modules": [], "why": "none"}),
        "advice": PageAnswer({"advice": advice}), "now": PageAnswer({"groups": [], "notes": []}),
        "cost": PageAnswer({"loss": [], "sampling": [], "sources": [], "torch_pct": None}),
    }  # fmt: skip
    return make_single(zlib.compress(join_answers(answers)))


def _make_stacks() -> PageAnswer:
    """Every rank is a second in each of a hundred pieces at stack 100 * piece + rank."""
    owners = [(piece, rank) for piece in range(PIECES) for rank in range(RANKS)]
    count = len(owners)
    columns = {
        "piece": pa.array([piece for piece, _ in owners], pa.int32()),
        "thread": pa.array([rank for _, rank in owners], pa.int32()),
        "stack": pa.array([100 * piece + rank for piece, rank in owners], pa.int32()),
        "state": pa.array([0] * count, pa.uint8()), "samples": pa.array([100] * count, pa.int32()),
        "wall": pa.array([float(S)] * count), "cpu": pa.array([float(S)] * count),
    }  # fmt: skip
    # Node 0 is main; each stack is one function below it.
    numbers = list(range(1, STACKS + 1))
    zeros = [0] * STACKS
    names = {
        "stacks": [numbers, numbers, list(range(STACKS)), zeros, zeros],
        "nodes": [[-1, *zeros], list(range(STACKS + 1))],
        "places": [["main", *(f"work_{at}" for at in range(STACKS))], [0] * (STACKS + 1),
                   [1] * (STACKS + 1), ["mine"] * (STACKS + 1)],
        "hot": [[f"work_{at}" for at in range(STACKS)], zeros, numbers, [""] * STACKS,
                [""] * STACKS, [""] * STACKS],
        "waits": [""], "files": [["/job/train.py"], ["train.py"], ["mine"]],
    }  # fmt: skip
    threads = [{"part": rank, "thread": 100 + rank, "name": "MainThread", "main": True}
               for rank in range(RANKS)]  # fmt: skip
    data = {"version": 1, "width": S, "all": True, "names": names, "threads": threads}
    return PageAnswer(data, ["SELECT 1"], columns)


def _make_steps() -> PageAnswer:
    rows = [
        {"piece": piece, "host": f"node{rank // 8}", "pid": 100 + rank, "steps": 1,
         "dur": S * (3 if rank == 7 else 2) / 2, "input_wait": 0, "to_device": 0,
         "forward": S * (2 if rank == 7 else 1) / 2, "backward": S / 2, "optimizer": 0, "other": 0}
        for piece in range(PIECES)
        for rank in range(RANKS)
        if rank != 9 or piece < PIECES // 2
    ]  # fmt: skip
    return PageAnswer({"steps": {name: [row[name] for row in rows] for name in rows[0]}})
