"""The shares of lines in python.heap, beside those of memray and of tracemalloc on the same program."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import sonde
from sonde.session import list_sessions
from support.needs import need

POINTS = 3.0
CALLS = "7"  # for each call from there, memray has Python make a frame, which it then counts
# What comes before it is one line, so that every tool sees the same numbers of lines.
PROGRAM = """
class Item:
    def __init__(self, number):
        self.name = "item %d" % number
        self.tags = [number, number + 1, number + 2]
def keep_items(count):
    return [Item(number) for number in range(count)]
def keep_rows(count):
    return [{"id": number, "place": (number, -number)} for number in range(count)]
def keep_texts(count):
    return [("text %d " % number) * 40 for number in range(count)]
def keep_buffers(count):
    return [bytearray(40_000 + number) for number in range(count)]
def keep_database(sqlite3, count):
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE texts (text TEXT)")
    for number in range(count):
        database.execute("INSERT INTO texts VALUES (?)", ("text %d " % number * 100,))
    return database
def churn(count):
    for number in range(count):
        str(number) * 30
        [number] * 200
def work():
    import sqlite3
    kept = [keep_items(6_000), keep_rows(3_000), keep_texts(2_000), keep_buffers(30)]
    kept.append(keep_database(sqlite3, 2_000))
    churn(2_000)
    return kept
"""
OURS = "sonde.start(collector='off', source_heap='on', heap_every='512B')"
SONDE = f"import sonde; {OURS}{PROGRAM}kept = work()\nsonde.stop()\n"
MEMRAY = f"""import json, memray, sys; tracker = memray.Tracker(sys.argv[1], trace_python_allocators=True){PROGRAM}
with tracker:
    kept = work()
MAPS = {{memray.AllocatorType.MMAP.value, memray.AllocatorType.MUNMAP.value}}
def add_up(records):
    sums = {{}}
    for record in records:
        if not record.size or record.allocator in MAPS: continue
        stack = record.stack_trace(1)
        if stack and stack[0][1] == __file__:
            sums[stack[0][2]] = sums.get(stack[0][2], 0) + record.size
    return sums
reader = memray.FileReader(sys.argv[1])
print(json.dumps({{"alive": add_up(reader.get_leaked_allocation_records(merge_threads=True)),
                   "allocated": add_up(reader.get_allocation_records())}}))
"""
TRACEMALLOC = f"""import json, tracemalloc; tracemalloc.start(){PROGRAM}
kept = work()
found = tracemalloc.take_snapshot().statistics("lineno")
tracemalloc.stop()
print(json.dumps({{"alive": {{one.traceback[0].lineno: one.size for one in found
                             if one.traceback[0].filename == __file__}}}}))
"""
DATABASE = "    kept.append(keep_database(sqlite3, 2_000))\n"  # the C library's memory: tracemalloc does not see it
SUMS = """
SELECT lineno, SUM(alive_bytes)::BIGINT AS alive, SUM(allocated_bytes)::BIGINT AS allocated
FROM python.heap WHERE file LIKE '%program.py' GROUP BY lineno
"""


@pytest.mark.parametrize("tool", ["memray", "tracemalloc"])
def test_each_line_has_the_share_that_others_give_it(
    run: Callable, root: Path, tmp_path: Path, tool: str
) -> None:
    need(tool)
    left_out = DATABASE if tool == "tracemalloc" else ""
    run(SONDE.replace(left_out, ""))
    (session,) = list_sessions(str(root))
    rows = sonde.open(session.folder).query(SUMS).to_pylist()
    program = {"memray": MEMRAY, "tracemalloc": TRACEMALLOC}[tool].replace(left_out, "")
    done = run(program, str(tmp_path / "found"))
    for of, theirs in json.loads(done.stdout).items():
        but = CALLS if of == "allocated" else ""
        ours = find_shares({str(row["lineno"]): row[of] for row in rows}, but)
        shares = find_shares(theirs, but)
        assert len([share for share in shares.values() if share > POINTS]) >= 6
        off = {line: (ours.get(line, 0.0), shares.get(line, 0.0)) for line in {*ours, *shares}}
        assert all(abs(one - other) <= POINTS for one, other in off.values()), (of, off)


def find_shares(sums: dict[str, int], left_out: str) -> dict[str, float]:
    """Return the per cent of all lines but one that each has."""
    kept = {line: of for line, of in sums.items() if line != left_out}
    whole = sum(kept.values())
    return {line: 100 * of / whole for line, of in kept.items()}
