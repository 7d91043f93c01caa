"""What sampling the heap costs a program that allocates all the time, in time and in memory."""

from __future__ import annotations

import ast
import hashlib
import hmac
import json
import resource
import sqlite3
import string
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import child
from result import Result, find_noise

# Those that do nothing but allocate, then those that do something with what they allocate.
KINDS = ("objects", "json", "buffers", "answers", "syntax", "training")
TURNS = 8
SETTLE_S = 0.7  # after which samples lie as far apart as they will: they begin with 2 ms to spend


def measure(rounds: int) -> list[Result]:
    """CPU time of the same work, on and off in turn within a process; a value is a process."""
    results = []
    with child.open_root() as root:
        for kind in KINDS:
            if kind == "training" and find_spec("torch") is None:
                continue
            found = [child.call(compare, kind, root=root) for _ in range(max(3, rounds) * 2)]
            own, slow, same = (
                [one[name] for one in found] for name in ("heap", "tracemalloc", "off")
            )
            results += [
                Result(
                    f"sampling the heap slows a program that makes {kind} by", "%", own, 1.0,
                    peers={"off, twice": same, "tracemalloc": slow}, noise=find_noise(own),
                ),
                Result("memory that this takes", "MiB", [one["mib"] for one in found], 5.0),
            ]  # fmt: skip
    return results


def compare(kind: str) -> dict[str, float]:
    """Return by how many percent each tool lengthens the work, and what ours takes in memory."""
    import tracemalloc

    import sonde
    from sonde.job.source_switch import switch_source

    assert sonde.start(collector="off")
    tools = {
        "off": (lambda: None, lambda: None),
        "heap": (lambda: switch_source("heap", True), lambda: switch_source("heap", False)),
        "tracemalloc": (tracemalloc.start, tracemalloc.stop),
    }
    work = WORKS[kind]
    work(10)
    ratios: dict[str, list[float]] = {name: [] for name in tools}
    mib = 0.0
    for turn in range(TURNS):
        for name, (start, stop) in tools.items():
            if name == "tracemalloc" and turn % 4:
                continue  # it takes ten times as long, and is not what is looked for
            plain, before = time_work(work), read_rss()
            start()
            settle(work, name)
            ratios[name].append(time_work(work) / plain)
            mib = max(mib, read_rss() - before) if name == "heap" else mib
            stop()
    return {name: 100 * (median(of) - 1) for name, of in ratios.items()} | {"mib": mib}


def settle(work: Callable[[int], None], tool: str) -> None:
    """Let the samples of a program that allocates for long become as rare as they will. The same
    with nothing switched on: otherwise the two would differ by what was done before."""
    end = time.process_time() + (SETTLE_S if tool != "tracemalloc" else 0.0)
    while time.process_time() < end:
        work(1)


def time_work(work: Callable[[int], None]) -> float:
    begin = time.process_time()
    work(20)
    return time.process_time() - begin


def read_rss() -> float:
    """Return the memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


class Item:
    def __init__(self, number: int) -> None:
        self.name, self.tags = f"item {number}", [number]


def make_objects(times: int) -> None:
    for _ in range(times):
        [Item(number) for number in range(5_000)]


def make_json(times: int) -> None:
    rows = [{"id": number, "name": str(number), "tags": [number] * 3} for number in range(1_000)]
    for _ in range(times):
        json.loads(json.dumps(rows))


def make_buffers(times: int) -> None:
    for _ in range(times * 500):
        kept = [bytes(600 + 40 * at) for at in range(20)]
        del kept


def make_answers(times: int) -> None:
    """What a web application does for a request: JSON, a query, a signature and a page."""
    base = sqlite3.connect(":memory:")
    base.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT, price REAL)")
    items = [(number, f"item {number}", number * 1.5) for number in range(200)]
    base.executemany("INSERT INTO item VALUES (?, ?, ?)", items)
    line = string.Template("<li id=$id>$name: $price</li>")
    asked = json.dumps({"user": "somebody", "ids": list(range(0, 200, 10)), "token": "x" * 64})
    for _ in range(times * 40):
        request = json.loads(asked)
        marks = ",".join("?" * len(request["ids"]))
        rows = base.execute(
            f"SELECT id, name, price FROM item WHERE id IN ({marks}) ORDER BY price DESC",
            request["ids"],
        ).fetchall()
        page = "".join(line.substitute(id=i, name=name, price=price) for i, name, price in rows)
        sign = hmac.new(request["token"].encode(), page.encode(), hashlib.sha256).hexdigest()
        json.dumps({"page": page, "sign": sign, "total": sum(price for _i, _name, price in rows)})
    base.close()


def make_syntax(times: int) -> None:
    """What tools for source code do: parse, walk the tree, compile."""
    text = Path(json.__file__).with_name("decoder.py").read_text()
    for _ in range(times):
        tree = ast.parse(text)
        sum(isinstance(node, ast.Name) for node in ast.walk(tree))
        compile(tree, "decoder.py", "exec")


def make_training(times: int) -> None:
    import torch

    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
    optimizer = torch.optim.Adam(model.parameters())
    data, goal = torch.ones(64, 64), torch.zeros(64, 8)
    for _ in range(times * 40):
        loss = torch.nn.functional.mse_loss(model(data), goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()


WORKS: dict[str, Callable[[int], None]] = {
    "objects": make_objects,
    "json": make_json,
    "buffers": make_buffers,
    "answers": make_answers,
    "syntax": make_syntax,
    "training": make_training,
}
