"""The core in C is a tree: the symbols of its object files show who uses whom."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from support.places import CORE
from support.shared import build_wheel

COMPILER = os.environ.get("CC", "cc")
FLOOR = {"format", "kernel", "binding"}
# Each folder, and the folders that it may use. A source may use another one only if it is named here.
LAW = {
    "format": set(),
    "kernel": {"format"},
    "binding": {"format", "kernel"},
    "gc": FLOOR,
    "exceptions": FLOOR,
    "spawns": FLOOR,
    "stacks": FLOOR,
    "heap": FLOOR | {"stacks"},  # a block belongs to the stack that allocated it
    "calls": FLOOR,
    "events": FLOOR,
    "torch": FLOOR | {"stacks"},  # a call of CUDA has its line
    "variables": FLOOR,
    "collectives": FLOOR | {"torch"},  # a collective belongs to a step
    "attach": FLOOR,
    "delay": {"format"},  # a library of its own, without the rest of the core
}
LAW["module.c"] = set(LAW)  # the roof; nobody uses it
WITHOUT_PYTHON = ("format", "kernel")
Graph = dict[str, set[str]]


def list_files(pattern: str) -> list[str]:
    return sorted(str(path.relative_to(CORE)) for path in CORE.rglob(pattern))


def find_folder(name: str) -> str:
    return name.partition("/")[0]


def find_circle(graph: Mapping[str, set[str]]) -> list[str]:
    """Return files that use each other in a circle, or nothing."""
    done: set[str] = set()

    def search(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name not in done:
            for used in sorted(graph.get(name, ())):
                if circle := search(used, [*path, name]):
                    return circle
            done.add(name)
        return []

    return next((circle for name in sorted(graph) if (circle := search(name, []))), [])


def find_violations(graph: Mapping[str, set[str]]) -> list[str]:
    """Return a line for every use that the law forbids."""
    return [
        f"{name} uses {used}"
        for name in sorted(graph)
        for used in sorted(graph[name])
        if find_folder(used) not in LAW[find_folder(name)] | {find_folder(name)}
    ]


def list_symbols(target: Path) -> Iterator[tuple[str, str]]:
    """Yield each external symbol of an object file, with nm's letter."""
    found = subprocess.run(["nm", "-P", str(target)], capture_output=True, text=True, check=True)
    for line in found.stdout.splitlines():
        name, letter = line.split()[:2]
        if letter.isupper():
            yield name, letter


@pytest.fixture(scope="module")
def symbols(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    """Return every C file, and the C files whose symbols it uses."""
    if shutil.which(COMPILER) is None or shutil.which("nm") is None:
        pytest.skip("no cc or nm here")
    tree = build_wheel(tmp_path_factory) / "tree"
    (objects,) = tree.glob("build/temp.*/src/sonde/_core")
    found = {
        name: dict(list_symbols((objects / name).with_suffix(".o"))) for name in list_files("*.c")
    }
    owners = {
        symbol: name
        for name, of_file in found.items()
        for symbol, letter in of_file.items()
        if letter != "U"
    }
    return {
        name: {owners[symbol] for symbol in of_file if symbol in owners} - {name}
        for name, of_file in found.items()
    }


def read_includes() -> Graph:
    """Return every C file and header, and which of our headers it includes."""
    return {
        name: set(re.findall(r'#include "(.+)"', (CORE / name).read_text()))
        for name in list_files("*.[ch]")
    }


def test_no_files_use_each_other_in_a_circle(symbols: Graph) -> None:
    assert find_circle(symbols) == []


def test_files_use_only_the_folders_that_theirs_may_use(symbols: Graph) -> None:
    assert find_violations(symbols) == []


def test_the_graph_is_not_empty(symbols: Graph) -> None:
    # If no symbols were found, the tests above would prove nothing.
    assert "format/ring.c" in symbols["binding/writer.c"]


def test_headers_obey_the_same_law_and_form_no_circle() -> None:
    includes = read_includes()
    assert find_violations(includes) == []
    assert find_circle(includes) == []


def test_a_circle_and_a_forbidden_use_would_be_noticed() -> None:
    assert find_circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert find_violations({"format/ring.c": {"kernel/fork.c"}})


def test_the_two_lowest_floors_know_nothing_of_python() -> None:
    for name in list_files("*.[ch]"):
        if find_folder(name) in WITHOUT_PYTHON:
            assert "Python.h" not in (CORE / name).read_text(), name


def test_memory_order_is_spelled_out_in_one_header() -> None:
    raw = re.compile(r"__atomic_|__sync_|\b_Atomic\b|\batomic_\w+\(|stdatomic|memory_order_")
    found = [name for name in list_files("*.[ch]") if raw.search((CORE / name).read_text())]
    assert found == ["format/ordering.h"]


def test_one_list_says_what_happens_in_a_forked_child() -> None:
    found = [name for name in list_files("*.c") if "pthread_atfork(" in (CORE / name).read_text()]
    assert found == ["kernel/fork.c"]


DECLARATIONS = {
    "type": re.compile(r"^(?:typedef [^{;]*?|\} ?)\b(sonde_\w+);", re.MULTILINE),
    "macro": re.compile(r"^#define (sonde_\w+|SONDE_\w+)", re.MULTILINE),
    "variable": re.compile(r"^(?:extern |__thread )[^(;{]*?\b(sonde_\w+)(?:\[.*?\])?(?:;| =)", re.MULTILINE),
    "function": re.compile(r"^(?!typedef|extern|return)[a-z][\w *]*?\b(sonde_\w+)\(", re.MULTILINE),
}  # fmt: skip


def test_no_name_of_a_header_means_two_things() -> None:
    meanings: dict[str, set[str]] = {}
    for name in list_files("*.h"):
        text = (CORE / name).read_text()
        for kind, declared in DECLARATIONS.items():
            for found in declared.findall(text):
                meanings.setdefault(found, set()).add(f"{kind} in {name}")
    assert "function in format/format.h" in meanings["sonde_ring_append"]
    assert {found: of for found, of in meanings.items() if len(of) > 1} == {}
