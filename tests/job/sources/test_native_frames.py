"""Native frames in samples: known chains of NumPy, nothing that the program does not have, no harm."""

from __future__ import annotations

import ctypes
import os
from itertools import pairwise
from pathlib import Path

import pytest

import sonde
from conftest import wait_for
from sonde.attach import libdw
from sonde.attach.elf import Elf, ElfSegment
from sonde.attach.machine_code import CodeReader
from sonde.attach.native_names import is_call
from sonde.attach.procfs import ProcessFiles
from sonde.attach.unwinder import NativeFrame
from sonde.session import list_sessions

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


def find_chains(root: Path) -> list[dict[str, list[str]]]:
    (session,) = list_sessions(str(root))
    rows = sonde.open(session.folder).query(CHAINS).to_pylist()
    return [row for row in rows if "array_sort" in row["funcs"]]


@pytest.mark.usefixtures("_library")
def test_samples_of_numpy_go_on_below_python_and_the_signal_is_given_back(
    start, root, tmp_path
) -> None:
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
