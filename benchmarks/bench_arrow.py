"""A million rows from the ring into an Arrow table."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import child
from holder import ROWS, TABLE, hold_rows
from result import Result


def measure(rounds: int) -> list[Result]:
    """Million rows per second; each round in a fresh process, its first read left out."""
    with child.open_root() as root, hold_rows(root) as (_pid, folder):
        samples = [child.call(time_reads, folder, root=root) for _ in range(rounds)]

    def pick(key: str) -> list[float]:
        return [sample[key] for sample in samples]

    return [
        Result(
            "ring → Arrow: SessionTable.read_live",
            "M rows/s",
            pick("live"),
            20,
            at_least=True,
            peers={"the first read of a process": pick("first")},
            note="t_ns and 4 columns (one text) from the ring; ts, host, pid and rank added",
        ),
        Result("ring → Arrow: the C ring_read alone", "M rows/s", pick("ring"), 20, at_least=True),
        Result("ring → Arrow: make_table alone", "M rows/s", pick("table")),
    ]


def time_reads(folder: str) -> dict[str, float]:
    from sonde.session import Session
    from sonde.store.rows import make_table, open_tables

    session = Session(folder)
    table = open_tables(session)[TABLE]
    ring = table.ring
    first = rate(table.read_live)
    batch = ring.read(0)
    assert batch.rows == ROWS
    return {
        "first": first,
        "live": median(rate(table.read_live) for _ in range(7)),
        "ring": median(rate(lambda: ring.read(0)) for _ in range(7)),
        "table": median(rate(lambda: make_table(session, table.schema, batch)) for _ in range(7)),
    }


def rate(read: Callable[[], object]) -> float:
    begin = time.perf_counter()
    read()
    return ROWS / (time.perf_counter() - begin) / 1e6
