"""python.heap with stack.native=on: which function of C has allocated, below which line of Python."""

from __future__ import annotations

from pathlib import Path

import pytest

import sonde
from conftest import wait_for
from sonde.attach import libdw
from sonde.session import list_sessions
from support.native_tools import make_allocating_chain
from support.needs import need

BEFORE = """\
import ctypes, os, sys, time
import sonde
library = ctypes.CDLL(sys.argv[2])
for name in ("outer", "other", "thread"):
    getattr(library, "sonde_test_" + name).restype = ctypes.c_void_p
library.sonde_test_give.argtypes = [ctypes.c_void_p]
"""
START = """\
import ctypes, os, sys, time
import sonde
assert sonde.start(stack_native="on", source_heap="on", heap_every="16KiB")
"""
LIBRARY = (
    BEFORE
    + START
    + """\
def ask_outer(size):
    return library.sonde_test_outer(size)
def ask_other(size):
    return library.sonde_test_other(size)
"""
)
END = """
print("ready", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
sonde.stop()
"""
KEEPS = """
kept = []
print("ready", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
    kept += [ask_outer(300_000), ask_other(300_000)]
    while len(kept) > 40:
        library.sonde_test_give(kept.pop(0))
sonde.stop()
"""
ONCE = """
kept = ask_outer(50_000_000)     # a single call, before anything is known of these functions
"""
OUTSIDE = """
kept = [library.sonde_test_thread(300_000) for _ in range(20)]
"""
FREES = """
def churn():
    for _ in range(20):
        library.sonde_test_give(ask_outer(300_000))
print("ready", flush=True)
while not os.path.exists(sys.argv[1]):
    churn()
sonde.stop()
"""
ARRAYS = """
def keep_arrays():
    kept = []
    for _ in range(50):
        kept.append(numpy.empty(100_000))
    return kept
kept = keep_arrays()
"""
CHAINS = """
SELECT h.native, h.func, h.lineno, h.native_file, alive_bytes, allocated_bytes,
       list(f.func ORDER BY f.depth DESC) AS funcs
FROM python.heap h JOIN python.frame f USING (stack) WHERE h.native IS NOT NULL GROUP BY ALL
"""


@pytest.fixture(autouse=True)
def _unwinder() -> None:
    try:
        libdw.load()
    except libdw.NoUnwinder:
        pytest.skip("libdw is not installed")


@pytest.fixture
def chain(tmp_path: Path) -> str:
    return str(make_allocating_chain(tmp_path))


def find(root: Path, func: str, native: str = "sonde_test_inner") -> list[dict[str, object]]:
    """Return what a function of Python has allocated through a native one."""
    (session,) = list_sessions(str(root))
    rows = sonde.open(session.folder).query(CHAINS).to_pylist()
    return [row for row in rows if (row["func"], row["native"]) == (func, native)]


def find_alive(root: Path, func: str) -> int:
    return sum(row["alive_bytes"] for row in find(root, func))


def test_what_a_library_allocates_is_known_by_its_functions(start, root, tmp_path, chain) -> None:
    process = start(LIBRARY + KEEPS, str(tmp_path / "end"), chain)
    for func, native in [("ask_outer", "sonde_test_outer"), ("ask_other", "sonde_test_other")]:
        rows = wait_for(lambda func=func: find(root, func))
        for row in rows:
            assert row["funcs"][-2:] == [native, "sonde_test_inner"]
            assert row["native_file"] == chain
            assert row["funcs"][row["funcs"].index(func) + 1] != native  # ctypes has called it
            assert not any("sonde_heap" in one or "sonde_library" in one for one in row["funcs"])
    (tmp_path / "end").touch()
    assert process.wait(60) == 0


def test_a_single_allocation_is_known_as_well(start, root, tmp_path, chain, sonde_cli) -> None:
    process = start(LIBRARY + ONCE + END, str(tmp_path / "end"), chain)
    wait_for(lambda: find_alive(root, "ask_outer") > 0)
    assert find_alive(root, "ask_outer") == pytest.approx(50_000_000, rel=0.05)
    (session,) = list_sessions(str(root))
    tree = sonde_cli("memory", session.folder).stdout
    assert "sonde_test_inner (liballocating_chain)" in tree
    lines = sonde_cli("memory", session.folder, "--lines", "--format", "json").stdout
    assert '"line": 11' in lines and "sonde_test_inner" not in lines.partition('"line": 11')[0]
    graph = tmp_path / "graph.txt"
    sonde_cli("memory", session.folder, "--to", "collapsed", "-o", str(graph))
    assert "sonde_test_outer" in graph.read_text()
    (tmp_path / "end").touch()
    assert process.wait(60) == 0


def test_threads_that_run_no_python_are_known_by_their_functions(
    start, root, tmp_path, chain
) -> None:
    process = start(LIBRARY + OUTSIDE + END, str(tmp_path / "end"), chain)
    rows = wait_for(lambda: find(root, "<outside of Python>"))
    for row in rows:
        assert row["funcs"][-3:] == ["sonde_test_begin", "sonde_test_outer", "sonde_test_inner"]
    (tmp_path / "end").touch()
    assert process.wait(60) == 0


def test_what_is_freed_is_freed_where_it_was_allocated(start, root, tmp_path, chain) -> None:
    process = start(LIBRARY + FREES, str(tmp_path / "end"), chain)
    wait_for(lambda: sum(row["allocated_bytes"] for row in find(root, "ask_outer")) > 50_000_000)
    (tmp_path / "end").touch()
    assert process.wait(60) == 0
    (session,) = list_sessions(str(root))
    (row,) = (
        sonde.open(session.folder)
        .query(
            "SELECT SUM(alive_bytes)::BIGINT AS alive, MIN(alive_bytes) AS least FROM python.heap "
            "WHERE func = 'ask_outer'"
        )
        .to_pylist()
    )
    assert row["alive"] < 200_000 and row["least"] >= 0  # a block has 300,000


def test_arrays_of_numpy_are_known_by_the_function_that_makes_them(start, root, tmp_path) -> None:
    need("numpy")
    process = start("import numpy\n" + START + ARRAYS + END, str(tmp_path / "end"))

    def find_arrays() -> list[dict[str, object]]:
        (session,) = list_sessions(str(root))
        rows = sonde.open(session.folder).query(CHAINS).to_pylist()
        return [
            row for row in rows if row["func"] == "keep_arrays" and "array_empty" in row["funcs"]
        ]

    for row in wait_for(find_arrays):
        at = row["funcs"].index("array_empty")
        assert "_multiarray_umath" in row["native_file"]
        assert any(one.startswith("PyArray_") for one in row["funcs"][at:])
    (tmp_path / "end").touch()
    assert process.wait(60) == 0


def test_without_the_setting_nothing_of_it_is_there(start, root, tmp_path, chain) -> None:
    program = (LIBRARY + KEEPS).replace('stack_native="on", ', "")
    process = start(program, str(tmp_path / "end"), chain)
    (session,) = list_sessions(str(root))
    recording = sonde.open(session.folder)
    wait_for(lambda: recording.query("SELECT 1 FROM python.heap WHERE func = 'ask_outer'").num_rows)
    assert recording.query("SELECT 1 FROM python.heap WHERE native IS NOT NULL").num_rows == 0
    (tmp_path / "end").touch()
    assert process.wait(60) == 0


def test_where_native_functions_cannot_be_known_the_source_says_so(run, root) -> None:
    run(
        "import sonde; sonde.start(collector='off', stack_native='on', source_heap='on');"
        "kept = [bytes(100_000) for _ in range(100)]; sonde.stop()"
    )
    (session,) = list_sessions(str(root))
    rows = sonde.open(session.folder).query(
        "SELECT detail FROM sonde.source_log WHERE source = 'heap' AND state = 'on'"
    )
    assert "without native frames: they need the collector, and that is off" in str(
        rows.to_pylist()
    )
