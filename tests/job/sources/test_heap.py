"""python.heap: who allocated what is alive, and what harm a hook in the allocators must not do."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

import sonde
from conftest import wait_for
from sonde.analysis.heap import Heap, list_grown_lines, read_heap_tree
from sonde.errors import Error
from sonde.session import list_sessions
from support.native_tools import make_library_that_allocates, make_library_that_loads_slowly
from support.needs import need

START = """\
import sonde
sonde.start(collector="off", source_heap="on", heap_every="16KiB")
"""
KEEPS = """
import os, time
class Item:
    def __init__(self, number):
        self.name = "item %d" % number      # line 7
kept = []
def keep(n):
    for number in range(n):
        kept.append(Item(number))           # line 11
def keep_buffers():
    return [bytearray(300_000) for _ in range(50)]    # line 13
def churn():
    for number in range(40_000):
        str(number) * 40                    # line 16
"""
# From 3.15 on, the buffer of a bytearray is an object of its own.
BUFFER = "bytes" if sys.version_info >= (3, 15) else None
DIES = """
keep(60_000)
buffers = keep_buffers()
churn()
os.kill(os.getpid(), 9)
"""


def read(root: Path, sql: str) -> list[dict[str, object]]:
    return sonde.open(find_first(root)).query(sql).to_pylist()


def find_first(root: Path) -> str:
    """Return the folder of the program, not that of a child."""
    return min(list_sessions(str(root)), key=lambda session: session.start_wall_ns).folder


def add_up_functions(root: Path) -> dict[str, dict[str, int]]:
    """Return what each function, and what it calls, holds and has allocated in buffers."""
    rows = read(
        root,
        "SELECT f.func, SUM(alive_bytes)::BIGINT AS alive, SUM(allocated_bytes)::BIGINT AS allocated "
        "FROM python.heap JOIN (SELECT DISTINCT stack, func FROM python.frame) AS f USING (stack) "
        "WHERE type IS NULL GROUP BY 1",
    )
    return {row["func"]: row for row in rows}


def find_line(root: Path, line: int, kind: str | None = None) -> dict[str, float]:
    of = "type IS NULL" if kind is None else f"type = '{kind}'"
    (row,) = read(
        root,
        "SELECT SUM(alive_bytes)::BIGINT AS alive, SUM(alive_blocks)::BIGINT AS blocks, "
        f"SUM(allocated_bytes)::BIGINT AS allocated FROM python.heap WHERE lineno = {line} AND {of}",
    )
    return row


def test_what_was_alive_is_known_by_line_and_type_after_kill_9(run, root, sonde_cli) -> None:
    done = run(START + KEEPS + DIES, check=False)
    assert done.returncode == -signal.SIGKILL
    # 60,000 strings of 59 or so bytes (51 from 3.12 on), drawn once in 16 KiB: one in fifteen off is four deviations.
    name_bytes = sys.getsizeof("item 12345")
    names, items, buffers = (
        find_line(root, 7, "str"),
        find_line(root, 11, "Item"),
        find_line(root, 13, BUFFER),
    )
    assert names["alive"] == pytest.approx(60_000 * name_bytes, rel=0.3)
    assert names["blocks"] == pytest.approx(60_000, rel=0.3)
    assert items["blocks"] == pytest.approx(60_000, rel=0.3)
    assert buffers["alive"] == pytest.approx(50 * 300_000, rel=0.05)
    churned = read(
        root,
        "SELECT SUM(alive_bytes)::BIGINT AS alive, SUM(allocated_bytes)::BIGINT AS allocated "
        "FROM python.heap WHERE lineno = 16",
    )[0]
    churned_bytes = 4.7 * 40 + sys.getsizeof("") + sys.getsizeof("12345")
    assert churned["allocated"] == pytest.approx(40_000 * churned_bytes, rel=0.3)
    assert churned["alive"] < churned["allocated"] / 20
    frames = read(
        root,
        "SELECT func FROM python.frame WHERE stack = (SELECT any_value(stack) FROM python.heap "
        "WHERE lineno = 7 AND type = 'str') ORDER BY depth",
    )
    assert [row["func"].rpartition(".")[2] for row in frames] == ["__init__", "keep", "<module>"]
    folder = find_first(root)
    tree = sonde_cli("memory", folder).stdout
    assert "keep_buffers" in tree and "Item objects" in tree
    lines = sonde_cli("memory", folder, "--lines", "--by", "allocated").stdout.splitlines()
    assert any(":16 in churn" in line for line in lines[1:4])


def test_of_a_program_that_has_ended_it_says_how_to_record_it_next_time(root, sonde_cli) -> None:
    folder = sonde.start(collector="off", source_stack="off")
    assert "sonde config" in sonde_cli("memory", folder).stderr
    sonde.stop()
    told = sonde_cli("memory", folder).stderr
    assert "sonde run --set source.heap=on" in told and "sonde config" not in told


def test_it_is_switched_on_and_off_live_and_tells_what_grew_between_two_moments(root) -> None:
    folder = sonde.start(collector="off", heap_every="4KiB")
    before = "SELECT COUNT(*) AS n FROM python.heap"
    assert sonde.open(folder).query(before).to_pylist() == [{"n": 0}]
    from sonde.job.recorder import recorder
    from sonde.job.source_switch import switch_source

    with pytest.raises(Error, match="was not recorded here"):
        read_heap_tree(Heap(sonde.open(folder)))
    switch_source("heap", True)
    assert "what was allocated before is not known" in Heap(sonde.open(folder)).describe_age()
    first = [bytearray(1000) for _ in range(2000)]
    recorder.publish()
    moment = sonde.open(folder).query("SELECT MAX(epoch_ns(ts)) AS ns FROM python.heap_history")
    second = [bytearray(5000) for _ in range(2000)]
    recorder.publish()
    switch_source("heap", False)
    third = [bytearray(5000) for _ in range(2000)]
    recording = sonde.open(folder)
    until = recording.query("SELECT MAX(epoch_ns(ts)) AS ns FROM python.heap_history")
    grown = list_grown_lines(recording, moment["ns"][0].as_py(), until["ns"][0].as_py())
    sonde.stop()
    line = test_it_is_switched_on_and_off_live_and_tells_what_grew_between_two_moments.__code__
    assert grown[0].func == line.co_name and grown[0].line == line.co_firstlineno + 14
    assert grown[0].alive_bytes == pytest.approx(2000 * 5000, rel=0.1)
    assert len(first) == len(second) == len(third)
    states = recording.query("SELECT state FROM sonde.source WHERE source = 'heap'").to_pylist()
    assert states == [{"state": "off"}]


CHURNS = """
import numpy, sonde
sonde.start(collector="off", source_heap="on", **settings)
def churn():
    for _ in range(600_000):
        numpy.empty(100_000, numpy.uint8)
churn()
sonde.stop()
"""


@pytest.mark.parametrize("settings", [{}, {"heap_every": "512KiB"}])
def test_a_program_that_allocates_fast_gets_fewer_samples_unless_told_how_many(
    run, root, settings
) -> None:
    need("numpy")
    run(f"settings = {settings}\n" + CHURNS)
    (churned,) = read(
        root,
        "SELECT SUM(allocated_bytes)::BIGINT AS bytes FROM python.heap WHERE func = 'churn'",
    )
    (row,) = read(
        root,
        "SELECT MAX(samples) AS samples, MAX(every_bytes) AS every FROM python.heap_sampling",
    )
    # 60 GB, of which 512 KiB are less than a microsecond's work: samples would take most of the time. On a
    # busy machine it takes a while to see that.
    if settings:
        assert row["every"] == 2**19 and row["samples"] > 100_000
    else:
        assert row["samples"] < 100_000
    assert churned["bytes"] == pytest.approx(600_000 * 100_000, rel=0.1 if settings else 0.6)


HARM = (
    START
    + """
import gc, os, sys, threading, tracemalloc
from sonde.job.source_switch import switch_source
def work(times):
    kept = []
    for number in range(times):
        kept.append({"number": number, "name": str(number) * 20, "list": [number] * (number % 90)})
        if number % 3 == 0:
            kept[number // 2] = None
    return len(repr(kept))
expected = work(3000)
def check():
    assert work(3000) == expected
early = [bytearray(100 + at) for at in range(20_000)]     # with the hook
switch_source("heap", False)
del early[::2]                                            # and freed without it
late = [bytearray(100 + at) for at in range(20_000)]
switch_source("heap", True)
del late[::2], early[::2]
tracemalloc.start(); check(); switch_source("heap", False); check(); switch_source("heap", True)
check(); tracemalloc.stop(); check()
switch_source("heap", False); tracemalloc.start(); switch_source("heap", True); check()
tracemalloc.stop(); check(); switch_source("heap", False); switch_source("heap", True); check()
def toggle():
    for _ in range(50):
        switch_source("heap", False); switch_source("heap", True)
threads = [threading.Thread(target=check) for _ in range(6)] + [threading.Thread(target=toggle)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
for _ in range(5):
    if (pid := os.fork()) == 0:
        check(); del late, early; gc.collect(); os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
for _ in range(3):
    code = "x = [str(i) * 9 for i in range(5000)]; exec(compile('y = x[:]', 'f', 'exec')); del x, y"
    exec(code, {})
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
for _ in range(3):
    other = interpreters.create()
    interpreters.run_string(other, code)
    interpreters.destroy(other)
check()
blocks = sys.getallocatedblocks()
kept = [object() for _ in range(50_000)]
grown = sys.getallocatedblocks() - blocks
assert abs(grown - 50_000) < 500, grown
print("unharmed")
"""
)


@pytest.mark.parametrize("allocator", ["default", "debug", "malloc", "malloc_debug"])
def test_it_does_no_harm_beside_other_hooks_forks_threads_and_interpreters(
    run, root, monkeypatch, allocator
) -> None:
    if allocator != "default":
        monkeypatch.setenv("PYTHONMALLOC", allocator)
    program = (
        HARM if "malloc" not in allocator else HARM.replace("assert abs(grown", "0 and (grown")
    )
    assert run(program).stdout == "unharmed\n"
    (row,) = read(root, "SELECT SUM(samples) AS n FROM python.heap_sampling")
    assert row["n"] > 0


ARRAYS = """
import os
import numpy
def keep(n):
    return [numpy.ones(125_000) for _ in range(n)]
def churn():
    for _ in range(200):
        numpy.zeros(125_000).copy()
kept = keep(60)
churn()
grown = kept[0].copy()
grown.resize(4_000_000, refcheck=False)
os.kill(os.getpid(), 9)
"""


def test_arrays_of_numpy_are_known_by_line(run, root) -> None:
    need("numpy")
    run(START + ARRAYS, check=False)
    found = add_up_functions(root)
    assert found["keep"]["alive"] == pytest.approx(60_000_000, rel=0.1)
    assert found["churn"]["allocated"] == pytest.approx(400_000_000, rel=0.1)
    assert found["churn"]["alive"] < 10_000_000
    # All of it, what the import keeps, and the array that was enlarged to 32 MB.
    assert 90_000_000 < found["<module>"]["alive"] < 120_000_000
    assert not read(root, "SELECT detail FROM sonde.source_log WHERE detail LIKE '%is not seen:%'")


LIBRARY = """
import ctypes, os, sqlite3, sys, threading, time, zlib
from _ctypes import dlclose
def load():
    library = ctypes.CDLL(sys.argv[1])
    for name in ("take", "take_by_pointer", "take_zeros", "take_aligned", "enlarge", "find_malloc"):
        getattr(library, name).restype = ctypes.c_void_p
    library.enlarge.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    library.give.argtypes = (ctypes.c_void_p,)
    return library
"""
LIBRARIES = (
    LIBRARY
    + """
library = load()
time.sleep(0.3)
bytearray(1_000_000)                              # libraries are looked for when a block is drawn
def use(name, n):
    return [getattr(library, name)(100_000) for _ in range(n)]
def plain(): return use("take", 100)
def pointer(): return use("take_by_pointer", 100)
def zeros(): return use("take_zeros", 100)
def aligned(): return use("take_aligned", 100)
def grown(): return [library.enlarge(one, 300_000) for one in use("take", 100)]
def churned():
    for one in use("take", 1000): library.give(one)
def packers(): return [zlib.compressobj(9) for _ in range(100)]
def rows():
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE t (a TEXT)")
    database.executemany("INSERT INTO t VALUES (?)", (("x" * 1000,) for _ in range(20_000)))
    return database
kept = [plain(), pointer(), zeros(), aligned(), grown(), churned(), packers(), rows()]
os.kill(os.getpid(), 9)
"""
)


def test_what_libraries_ask_the_c_library_for_is_known_by_line(run, root, tmp_path) -> None:
    run(START + LIBRARIES, str(make_library_that_allocates(tmp_path)), check=False)
    found = add_up_functions(root)
    for name in ("plain", "pointer", "zeros", "aligned"):
        assert found[name]["alive"] == pytest.approx(10_000_000, rel=0.2), name
    assert found["grown"]["alive"] == pytest.approx(30_000_000, rel=0.2)
    assert found["grown"]["allocated"] == pytest.approx(40_000_000, rel=0.2)
    assert found["churned"]["allocated"] == pytest.approx(100_000_000, rel=0.1)
    assert found["churned"]["alive"] < 5_000_000
    assert found["packers"]["alive"] == pytest.approx(100 * 268_000, rel=0.15)  # as zlib documents
    assert 20_000_000 < found["rows"]["alive"] < 30_000_000


FAILING = (
    LIBRARY
    + """
library = load()
time.sleep(0.3)
bytearray(1_000_000)                              # libraries are looked for when a block is drawn
def fail(bytes):
    assert library.take(ctypes.c_size_t(bytes)) is None
def small():
    for _ in range(400):
        fail(2**62)
        library.take(100)
def large():
    fail(2**63 + 10)                              # as a signed number it is below zero
    return [library.take(100_000) for _ in range(100)]
small()
kept = large()
os.kill(os.getpid(), 9)
"""
)


def test_what_cannot_be_allocated_is_not_counted(run, root, tmp_path) -> None:
    run(START + FAILING, str(make_library_that_allocates(tmp_path)), check=False)
    found = add_up_functions(root)
    assert found["large"]["alive"] == pytest.approx(10_000_000, rel=0.2)
    assert found.get("small", {"alive": 0})["alive"] < 500_000  # a sample stands for 16 KiB


UNSEALED = """
library = load()
assert library.unseal() == 0
import sonde
sonde.start(collector="off", source_heap="on", heap_every="16KiB")
def plain():
    return library.take(100_000)
print("ready", flush=True)
while not os.path.exists(sys.argv[2]):
    library.give(plain())
    bytearray(100_000)
    time.sleep(0.01)
sonde.stop()
"""


def test_a_library_whose_pages_stay_writable_is_seen_after_a_while(start, root, tmp_path) -> None:
    """It looks as if the loader were not done with it, to which each look for it costs time."""
    library = make_library_that_allocates(tmp_path, "-Wl,-z,now,-z,relro")
    process = start(LIBRARY + UNSEALED, str(library), str(tmp_path / "end"))
    wait_for(lambda: add_up_functions(root).get("plain", {"allocated": 0})["allocated"] > 3_000_000)
    (tmp_path / "end").touch()
    assert process.wait(60) == 0


HALF_LOADED = """
import sonde
from sonde.job.source_switch import switch_source
sonde.start(collector="off", heap_every="16KiB")
switch_source("heap", True); switch_source("heap", False)   # what Python loads for that is loaded now
dlopen = ctypes.CDLL(None).dlopen               # without the GIL, as a library in C++ calls it
dlopen.restype = ctypes.c_void_p
thread = threading.Thread(target=dlopen, args=(os.fsencode(sys.argv[1]), os.RTLD_NOW))
thread.start()
while "libslow_to_load" not in open("/proc/self/maps").read():
    time.sleep(0.001)
switch_source("heap", True)
assert thread.is_alive()
thread.join()
library = load()
def plain():
    return library.take(100_000)
print("ready", flush=True)
while not os.path.exists(sys.argv[2]):
    library.give(plain())
    bytearray(100_000)
    time.sleep(0.01)
sonde.stop()
"""


def test_a_library_that_was_half_loaded_at_the_first_look_is_seen_later(
    start, root, tmp_path
) -> None:
    library = make_library_that_loads_slowly(tmp_path)
    process = start(LIBRARY + HALF_LOADED, str(library), str(tmp_path / "end"))
    wait_for(lambda: add_up_functions(root).get("plain", {"allocated": 0})["allocated"] > 3_000_000)
    (tmp_path / "end").touch()
    assert process.wait(60) == 0


def test_libraries_can_be_left_out(run, root, tmp_path) -> None:
    start = START.replace("sonde.start(", "sonde.start(heap_libraries='off', ")
    run(start + LIBRARIES, str(make_library_that_allocates(tmp_path)), check=False)
    found = add_up_functions(root)
    assert not {"plain", "pointer", "zeros", "aligned", "rows"} & {
        name for name, one in found.items() if one["alive"] > 1_000_000
    }
    (row,) = read(root, "SELECT detail FROM sonde.source_log WHERE source = 'heap' LIMIT 1")
    assert row["detail"].endswith("heap.libraries is off")


LIBRARY_HARM = (
    LIBRARY
    + """
import sonde
from sonde.job.source_switch import switch_source
library = load()
original = library.find_malloc()
sonde.start(collector="off", heap_every="4KiB")
switch_source("heap", True)
assert library.find_malloc() != original          # ours stands in front of it
late = [library.take(5000) for _ in range(500)]
switch_source("heap", False)
assert library.find_malloc() == original          # and is gone again
[library.give(one) for one in late]
results = []
def work():
    for _ in range(20):
        results.append(library.churn(3000))
        zlib.decompress(zlib.compress(b"x" * 50_000))
def toggle():
    for _ in range(40):
        switch_source("heap", False); switch_source("heap", True)
threads = [threading.Thread(target=work) for _ in range(6)] + [threading.Thread(target=toggle)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
assert len(results) == 120 and not any(results), results
for _ in range(5):                                # a child goes on, whatever its parent's threads hold
    if (pid := os.fork()) == 0:
        os._exit(7 if library.churn(3000) == 0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
assert library.find_malloc() != original
dlclose(library._handle)                          # the program lets it go while we stand in it
again = load()
assert again.churn(3000) == 0
dlclose(again._handle)
switch_source("heap", False)
assert sys.argv[1] not in open("/proc/self/maps").read()    # we held it, and let it go
last = load()
assert last.churn(3000) == 0 and last.find_malloc() == original
sonde.stop()
print("unharmed")
"""
)


LOADER = """
import ctypes, faulthandler, os, signal, sys, threading, time
import sonde
from sonde.job.source_switch import switch_source
faulthandler.dump_traceback_later(60, exit=True)
LOOK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
show = ctypes.CDLL(None).dl_iterate_phdr
sonde.start(collector="off", source_stack="off", heap_every="4KiB")
switch_source("heap", True); switch_source("heap", False)   # what Python loads for that is loaded now
"""
SHOWN = (
    LOADER
    + """
begun = threading.Event()
@LOOK
def look(*_):
    begun.set()
    time.sleep(0.5)                                # without the GIL, which it then waits for
    return 1
def try_meanwhile(call):
    begun.clear()
    thread = threading.Thread(target=show, args=(look, None))
    thread.start()
    begun.wait()
    call()
    thread.join()
def fork():
    end = time.monotonic() + 0.2
    while time.monotonic() < end:
        bytearray(100_000)                         # so that the native thread looks for libraries
        time.sleep(0.001)
    if (pid := os.fork()) == 0:
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
from sonde.job.recorder import recorder
try_meanwhile(lambda: switch_source("heap", True))
try_meanwhile(recorder.publish)
try_meanwhile(fork)
try_meanwhile(lambda: switch_source("heap", False))
print("unharmed")
"""
)
FORKS = (
    LOADER
    + """
ends = []
def toggle():
    while not ends:
        switch_source("heap", True); switch_source("heap", False)
look = LOOK(lambda *_: 1)
thread = threading.Thread(target=toggle)
thread.start()
for _ in range(100):
    if (pid := os.fork()) == 0:
        signal.alarm(30)
        show(look, None)
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
ends.append(1)
thread.join()
print("unharmed")
"""
)


@pytest.mark.parametrize("program", [SHOWN, FORKS])
def test_nobody_waits_for_the_loader_in_vain(run, root, program: str) -> None:
    """Neither a function of Python to which libraries are shown, nor a child that was forked meanwhile."""
    assert run(program).stdout == "unharmed\n"


def test_libraries_are_left_as_they_were(run, root, tmp_path) -> None:
    done = run(LIBRARY_HARM, str(make_library_that_allocates(tmp_path)))
    assert done.stdout == "unharmed\n"


TENSORS = """
import os, threading, time
def keep(n):
    return [torch.empty(250_000) for _ in range(n)]
def churn():
    for _ in range(200):
        torch.empty(250_000).add_(1)
def keep_graph():
    weight = torch.ones(250_000, requires_grad=True)
    return [(weight * 2).exp().sum() for _ in range(30)]
kept = keep(60)
churn()
losses = keep_graph()
threads = [threading.Thread(target=churn) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
try:
    torch.empty(2**60, dtype=torch.uint8)
except RuntimeError as error:  # thrown in C++, through our function
    assert "allocate" in str(error), error
else:
    raise AssertionError("so much memory is not there")
sonde.stop()
kept.clear()  # allocated while we looked, freed when we do not
keep(20)
assert float(sum(losses)) > 0
print("unharmed")
"""


def test_tensors_on_the_cpu_are_known_by_line(run_torch, root) -> None:
    need("torch")
    assert run_torch("import torch\n" + START + TENSORS).stdout == "unharmed\n"
    found = add_up_functions(root)
    assert found["keep"]["alive"] == pytest.approx(60_000_000, rel=0.1)
    # Each loss keeps what exp() gave, and nothing else.
    assert found["keep_graph"]["alive"] == pytest.approx(31_000_000, rel=0.1)
    assert found["churn"]["allocated"] == pytest.approx(800_000_000, rel=0.1)
    assert found["churn"]["alive"] < 10_000_000
