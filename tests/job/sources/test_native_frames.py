"""Native frames in samples: known chains of NumPy, nothing that the program does not have, no harm."""

from __future__ import annotations

import ctypes
import os
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

import sonde
from conftest import wait_for
from sonde.attach import libdw, machine_code
from sonde.attach.elf import Elf, ElfSegment
from sonde.attach.machine_code import CodeReader
from sonde.attach.native_names import NativeFrame, is_call
from sonde.attach.procfs import ProcessFiles
from sonde.session import Session, list_sessions
from support import native_tools
from support.needs import need
from support.places import GOLDEN

SORTS = """
import os, signal, sys, threading
import numpy
import sonde
assert sonde.start(stack_native="on", stack_every="2ms")
numbers = numpy.random.default_rng(1).random(200_000)
def sort_numbers():
    return numpy.sort(numbers)
print("ready", flush=True)
while not os.path.exists(sys.argv[1]):
    sort_numbers()
os.kill(os.getpid(), signal.SIGURG)      # somebody else's: still ignored
sonde.stop()
assert signal.getsignal(signal.SIGURG) is signal.SIG_DFL
with open("/proc/self/status") as file:
    caught = next(int(line.split()[1], 16) for line in file if line.startswith("SigCgt"))
print(caught >> (signal.SIGURG - 1) & 1)
"""
ALIGNS = """
import ctypes, os, sys
import sonde
library = ctypes.CDLL(sys.argv[2])
assert sonde.start(stack_native="on", stack_every="2ms")
print("ready", flush=True)
while not os.path.exists(sys.argv[1]):
    library.sonde_test_outer(1_000_000, 900)
sonde.stop()
"""
WAITS = """
import time
import sonde
assert sonde.start(stack_native="on")
print("ready", flush=True)
time.sleep(300)
"""
HANDLES = """
import os, signal, sonde
caught = []
signal.signal(signal.SIGURG, lambda *_arguments: caught.append(1))
sonde.start(stack_native="on")
os.kill(os.getpid(), signal.SIGURG)
sonde.stop()
print(caught)
"""
CHAINS = """
SELECT s.stack, list(f.func ORDER BY f.depth DESC) AS funcs, list(f.file ORDER BY f.depth DESC) AS files
FROM python.stack s JOIN python.frame f USING (stack) WHERE s.samples > 0 GROUP BY s.stack
"""


@pytest.fixture
def _library() -> None:
    try:
        libdw.load()
    except libdw.NoUnwinder:
        pytest.skip("libdw is not installed")


def find_chains(root: Path, name: str = "array_sort") -> list[dict[str, list[str]]]:
    (session,) = list_sessions(str(root))
    rows = sonde.open(session.folder).query(CHAINS).to_pylist()
    return [row for row in rows if name in row["funcs"]]


def find_details(root: Path, source: str) -> list[str]:
    (session,) = list_sessions(str(root))
    rows = sonde.open(session.folder).query(
        f"SELECT detail FROM sonde.source_log WHERE source = '{source}' AND detail IS NOT NULL"
    )
    return [row["detail"] for row in rows.to_pylist()]


@pytest.mark.usefixtures("_library")
def test_samples_of_numpy_go_on_below_python_and_the_signal_is_given_back(
    start, root, tmp_path
) -> None:
    need("numpy")
    process = start(SORTS, str(tmp_path / "end"))
    chains = wait_for(lambda: find_chains(root))
    for chain in chains:
        at = chain["funcs"].index("sort_numbers")
        assert chain["funcs"][at + 1] == "sort"
        # Between Python's function and NumPy's there is none of Python's own calls.
        assert chain["funcs"][at + 2] == "array_sort"
        assert chain["funcs"][at + 3] in ("PyArray_Sort", "_new_sortlike")  # NumPy 2.2, on 3.10
        assert all("_multiarray_umath" in file for file in chain["files"][at + 2 : at + 4])
    (tmp_path / "end").touch()
    out, errors = process.communicate(timeout=60)
    assert out == "0\n", errors
    (totals,) = (
        sonde.open(next(iter(list_sessions(str(root)))).folder)
        .query("SELECT MAX(native) AS known, MAX(native_lost) AS lost FROM python.sampling")
        .to_pylist()
    )
    assert totals["known"] > 0 and totals["lost"] > 0  # the first ones are never known


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="nobody aligns stacks like that there")
@pytest.mark.usefixtures("_library")
def test_functions_that_align_their_stack_are_followed(start, root, tmp_path) -> None:
    library = native_tools.make_aligned_stack(tmp_path)
    process = start(ALIGNS, str(tmp_path / "end"), str(library))
    chain = wait_for(lambda: find_chains(root, "sonde_test_inner"))[0]["funcs"]
    at = chain.index("sonde_test_inner")
    assert chain[at - 1] == "sonde_test_outer" and "<module>" in chain[:at]
    (tmp_path / "end").touch()
    assert process.wait(60) == 0


@pytest.mark.usefixtures("_library")
def test_files_whose_functions_have_no_names_are_told(start, root, tmp_path) -> None:
    library = native_tools.make_aligned_stack(tmp_path)
    subprocess.run(["strip", "--strip-all", str(library)], check=True)
    process = start(ALIGNS, str(tmp_path / "end"), str(library))
    *_, told = wait_for(lambda: find_details(root, "stack.native"))
    assert told.startswith("functions without a name (their files have no symbols for them): ")
    assert "libaligned_stack.so" in told
    (tmp_path / "end").touch()
    assert process.wait(60) == 0


def test_where_libdw_is_missing_the_recording_says_so(start, root, tmp_path) -> None:
    # The collector's Python finds this file before any library that is called so.
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "libdw.so.1").touch()
    (hidden / "pystack.py").touch()  # nor is there a copy in the wheel of pystack
    process = start(WAITS, LD_LIBRARY_PATH=str(hidden), PYTHONPATH=str(hidden))
    (told,) = wait_for(lambda: find_details(root, "stack.native"))
    assert told == str(libdw.NoUnwinder())
    process.kill()


def test_a_process_of_which_nothing_may_be_read_is_told_in_one_line() -> None:
    def refuse(_session: Session) -> None:
        raise PermissionError(13, "Permission denied", "/proc/1/maps")

    with pytest.raises(SystemExit, match="the process may not be read: ") as told:
        machine_code.run(refuse, Session(str(GOLDEN / "ended")))
    assert "Errno" not in str(told.value)


def test_code_is_also_read_where_the_memory_may_not_be(_library) -> None:
    """On many systems only a debugger's children may be read (kernel.yama.ptrace_scope is 1)."""
    with CodeReader(ProcessFiles(os.getpid()), None) as found:
        rules = found.read_rules(find_address("PyObject_Repr"))
        assert rules and found.name(rules[0].begin).name == "PyObject_Repr"


def test_what_found_no_room_is_told() -> None:
    assert machine_code.describe_gaps([], is_full=False) == ""
    assert "no room" in machine_code.describe_gaps([], is_full=True)
    told = machine_code.describe_gaps([f"lib{number}.so" for number in range(9)], is_full=True)
    assert "lib4.so and 4 more; there is no room" in told


@pytest.fixture
def reader(_library):
    memory = os.open("/proc/self/mem", os.O_RDONLY)
    with CodeReader(ProcessFiles(os.getpid()), memory) as found:
        yield found
    os.close(memory)


def find_address(name: str) -> int:
    return ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value


# A function without stack, one that saves registers, one that ends in several places, a long one.
FUNCTIONS = ("Py_GetVersion", "PyObject_Repr", "PyLong_FromString", "PyUnicode_Format")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_question_is_answered_with_the_rules_of_the_whole_function(reader, name) -> None:
    begin = find_address(name)
    rules = reader.read_rules(begin)
    assert rules[0].begin == begin
    assert all(one.end == after.begin for one, after in pairwise(rules))
    assert reader.read_rules(rules[-1].end - 1) == rules
    assert reader.name(rules[-1].end - 1) == reader.name(begin)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_place_of_a_function_has_the_rule_of_the_tables(reader, name) -> None:
    rules = reader.read_rules(find_address(name))
    for rule in rules:
        for place in {rule.begin, (rule.begin + rule.end) // 2, rule.end - 1}:
            module = reader._dw.dwfl_addrmodule(reader._dwfl, place)
            direct = reader._read_rule(module, place)
            assert direct[2:] == rule[2:]


def test_a_program_that_handles_the_signal_keeps_it_and_is_told(run, root) -> None:
    assert run(HANDLES).stdout == "[1]\n"
    (session,) = list_sessions(str(root))
    rows = sonde.open(session.folder).query(
        "SELECT detail FROM sonde.source_log WHERE source = 'stack' AND detail IS NOT NULL"
    )
    assert rows.to_pylist() == [
        {"detail": "without native frames: the program handles SIGURG itself"}
    ]


def test_functions_of_a_stripped_python_that_have_no_name_are_its_machinery() -> None:
    assert is_call(NativeFrame("python3.12+0x1f2a", "/usr/bin/python3.12"))
    assert not is_call(NativeFrame("libblas.so+0x1f2a", "/usr/lib/libblas.so"))


def test_a_page_that_two_segments_share_is_mapped_for_the_second() -> None:
    elf = object.__new__(Elf)
    elf.segments = [
        ElfSegment(4, 0, 0, 0x23BAF4),
        ElfSegment(5, 0x23BB00, 0x24BB00, 0x14B7110),
    ]
    assert elf.find_bias(0x23B000, 0x7000024B000) == 0x70000000000


@pytest.mark.parametrize(
    "name", ["_Py_VectorCall_StackRefSteal", "_Py_BuiltinCallFast_StackRef",
             "_Py_CallBuiltinClass_StackRef", "_PyCallMethodDescriptorFast_StackRef"],
)  # fmt: skip
def test_what_the_interpreter_of_3_15_calls_through_is_not_shown(name: str) -> None:
    assert is_call(NativeFrame(name, "/usr/lib/libpython3.15.so.1.0"))
    assert not is_call(NativeFrame(name, "/usr/lib/libother.so"))
