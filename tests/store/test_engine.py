"""The engine's limits, and archived rows that are remembered."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sonde.store.archive import Segment, SegmentMemory


def test_archived_rows_are_remembered_up_to_a_size_and_as_long_as_the_file_is_the_same(
    tmp_path: Path,
) -> None:
    def write(name: str, first: int) -> Segment:
        pq.write_table(pa.table({"n": pa.array(range(first, first + 100), pa.int64())}),
                       tmp_path / f"{name}.tmp")  # fmt: skip
        (tmp_path / f"{name}.tmp").rename(tmp_path / name)
        return Segment(str(tmp_path / name), 0, 100, 0, 0)

    memory = SegmentMemory(1000)  # one of them
    one, other = write("one", 0), write("other", 0)
    known = memory.read(one)
    assert memory.read(one) is known
    assert memory.read(other).equals(known)
    assert memory.read(one) is not known  # the other took its place
    assert memory.read(write("one", 7))["n"][0].as_py() == 7


LIMITED = """
import threading
import pyarrow as pa
from sonde.store.engine import limited
own = pa.default_memory_pool()  # what some of Arrow's functions use, whatever is set
with limited("1GiB"):
    kept = pa.allocate_buffer(1 << 20, memory_pool=own)
    gate = threading.Event()
    threads = [threading.Thread(target=gate.wait, daemon=True) for _ in range(12)]
    for thread in threads: thread.start()
    gate.set()
    for thread in threads: thread.join()
print("fine")
"""


def test_what_arrow_reserves_does_not_count_against_the_limit() -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True)
    assert done.stdout == "fine\n", done.stderr
