"""A steady stream of rows into the archive: what gets lost, and what it costs the collector."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import child
from result import Result

RATE, SECONDS = 100_000, 20
STEP = 1_000  # rows at a time


def measure(rounds: int) -> list[Result]:
    """Once, whatever the rounds: it is long, and one lost row is one too many."""
    with child.open_root() as root:
        with child.hold(write, RATE, SECONDS, root=root) as process:
            folder, rate, elapsed_s = json.loads(process.stdout.readline())
            live = child.call(read_loss, folder, root=root)
            [collector] = child.find_collectors(root)
            cpu_s, peak_mb = read_cpu_s(collector), read_peak_mb(collector)
        sealed = Path(folder, "sealed.json")
        child.wait_until(sealed.exists, 60, "seal")
        ended = child.call(read_loss, folder, root=root)
    assert live["written"] == ended["written"] == RATE * SECONDS
    where = {key: count for key, count in {**live, **ended}.items() if count and key != "kept"}
    return [
        Result(
            f"archive: {RATE:,} rows/s for {SECONDS} s, rows lost",
            "rows",
            [max(one["written"] - one["kept"] for one in (live, ended))],
            0,
            note=f"{rate:,.0f} rows/s reached; from sonde.loss live and sealed: {where}",
        ),
        Result(
            "archive: collector's CPU of one core",
            "%",
            [cpu_s / elapsed_s * 100],
            note="its own start (a second of imports) included",
        ),
        Result("archive: collector's peak RSS", "MB", [peak_mb]),
    ]


def write(rate: int, seconds: int) -> None:
    """Write at a steady rate from the very start, while the collector is still coming up."""
    import sonde

    class Request:
        step: sonde.i64
        x: sonde.f64
        name: sonde.text
        tokens: sonde.i64

    folder = sonde.start()
    emit = sonde.table(Request)
    names = [f"phase-{i}" for i in range(16)]
    begin = time.perf_counter()
    for first in range(0, rate * seconds, STEP):
        for i in range(first, first + STEP):
            emit(i, i * 0.5, names[i & 15], i)
        time.sleep(max(0.0, begin + (first + STEP) / rate - time.perf_counter()))
    elapsed_s = time.perf_counter() - begin
    print(json.dumps([folder, rate * seconds / elapsed_s, elapsed_s]), flush=True)
    sys.stdin.read()


def read_loss(folder: str) -> dict[str, int]:
    import sonde

    rows = sonde.open(folder).query("SELECT * FROM sonde.loss WHERE table_name = 'job.request'")
    [row] = rows.to_pylist()
    return {key: value for key, value in row.items() if isinstance(value, int) and key != "pid"}


def read_cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def read_peak_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [peak] = [line for line in lines if line.startswith("VmHWM:")]
    return int(peak.split()[1]) * 1024 / 1e6
