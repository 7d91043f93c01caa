"""The shape of the code, as law: who may import whom, and what must not stand where."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.places import SOURCE

GROUND = {"errors", "config", "plugins"}
SHARED = GROUND | {"_core", "record", "ring", "intern", "session"}
JOB = SHARED | {"host", "recorder"}
READ = SHARED | {"target", "archive", "rows", "about", "catalog", "union", "query", "stacks"}

# Module (or folder) -> what it may import of ours. Imports point down only.
ALLOWED = {
    "errors": set(),
    "plugins": set(),
    "config": {"errors", "plugins"},
    "record": {"errors"},
    "ring": {"_core", "errors", "record"},
    "intern": {"_core", "errors", "ring"},
    "session": GROUND | {"_core", "intern", "record", "ring"},
    "target": {"errors", "runs", "session"},
    "trace": {"_core", "errors", "session"},
    "tracing": SHARED | {"about", "late", "rows", "trace"},
    "control": GROUND | {"_core", "session"},
    "launch": {"config"},
    "host": SHARED,
    "late": {"host", "plugins", "training"},
    "recorder": SHARED | {"host", "late", "launch"},
    "training": SHARED | {"host"},
    "mirrors": {"errors", "host"},
    "mirroring": GROUND | {"_core", "host"},
    "profiler": JOB | {"launch", "mirroring"},
    "sources": JOB | {"bracket", "mirroring", "profiler", "run", "runs", "trace", "training"},
    "autostart": {"config", "profiler", "recorder"},
    "bracket": JOB | {"result", "run", "runs"},
    "profiling": {"bracket", "errors", "run"},
    "marking": {"_core"},
    "switch": {"host", "recorder", "session"},
    "integrations": {"integrations"},
    "inside": {"plugins", "recorder"},
    "elf": set(),
    "process": set(),
    "symbols": {"_core", "elf", "process"},
    "preflight": SHARED | {"elf", "process", "symbols"},
    "attach": SHARED | {"control", "preflight", "process", "target"},
    "__init__": JOB
    | {"advising", "marking", "profiler", "profiling", "query", "snapshots", "switch", "training"},
    "archive": {"_core", "session"},
    "union": {"archive", "errors", "rows"},
    "rows": SHARED | {"archive"},
    "about": SHARED | {"archive", "rows", "run", "runs"},
    "engine": {"config", "errors"},
    "query": READ | {"engine"},
    "calls": {"query", "session"},
    "stacks": SHARED,
    "result": {"errors", "stored"},
    "run": SHARED | {"result", "stacks"},
    "runs": SHARED | {"run"},
    "stored": {"errors", "output", "plugins", "result", "selection", "window"},
    "output": {"errors", "selection"},
    "pstat": {"errors"},
    "snapshots": SHARED | {"pstat", "stacks"},
    "frames": SHARED | {"archive", "rows", "stacks"},
    "kineto": {"errors"},
    "deep": SHARED | {"archive", "kineto", "rows", "trace"},
    "events": SHARED | {"archive"},
    "catalog": SHARED | {"about", "deep", "events", "frames", "recorder"},
    "drain": SHARED | {"archive", "events", "frames", "rows", "stacks"},
    "retain": SHARED | {"archive", "drain"},
    "sensors": {"_core", "config", "errors", "record"},
    "measuring": {"_core", "errors", "plugins", "recorder", "sensors"},
    "collector": SHARED
    | {"measuring", "recorder", "launch", "drain", "retain", "run", "runs", "snapshots", "stacks"},
    "dumper": {"errors", "live", "nesting", "profiler", "query", "session", "window"},
    "window": {"config", "errors", "query"},
    "spans": {"query"},
    "selection": {"errors", "query", "spans", "window"},
    "nesting": set(),
    "layers": set(),
    "slices": {"selection"},
    "timeline": {"_core", "layers", "nesting", "query", "selection", "slices", "spans", "window"},
    "scanning": {"errors"},
    "mending": {"errors", "scanning", "timeline"},
    "fresh": READ | {"deep", "events", "layers"},
    "live": {"errors", "exporters", "fresh", "layers", "nesting", "query", "selection", "session"}
    | {"slices", "timeline", "window"},
    "tree": {"selection"},
    "exporters": {"errors", "layers", "pstat", "selection", "spans", "timeline", "tree"},
    "verdict": set(),
    "patterns": set(),
    "trend": set(),
    "advice": {"patterns", "trend", "verdict"},
    "finding": {"verdict"},
    "stretch": {"errors", "query", "window"},
    "lines": {"query", "stretch"},
    "advising": GROUND | {"finding", "lines", "query", "stretch", "target", "verdict"},
    "measures": set(),
    "comparing": {"advising", "errors", "finding", "measures", "query", "stretch"},
    "outline": set(),
    "aggregates": {"query", "window"},
    "modules": {"errors", "outline", "query", "selection", "window"},
    "monitor": READ
    | {"__init__", "advising", "exporters", "finding", "monitor", "recorder", "stretch"},
    "tui": READ | {"tui"},
    "demo": set(),  # programs that are recorded
    "cli": READ
    | {
        "__init__",
        "advising",
        "aggregates",
        "attach",
        "calls",
        "comparing",
        "control",
        "demo",
        "exporters",
        "finding",
        "launch",
        "layers",
        "live",
        "mending",
        "monitor",
        "modules",
        "nesting",
        "outline",
        "output",
        "preflight",
        "pstat",
        "result",
        "retain",
        "run",
        "runs",
        "selection",
        "snapshots",
        "timeline",
        "trace",
        "tracing",
        "verdict",
        "window",
        "cli",
        "tui",
    },
    "__main__": {"cli"},
}

# What lives in the job: standard library and our core, nothing else, ever.
IN_THE_JOB = ("__init__", "autostart", "inside", "errors", "config", "plugins", "record", "ring",
              "intern", "session", "launch", "host", "late", "mirroring", "recorder", "sources",
              "switch", "training", "profiler", "profiling", "marking", "bracket", "run", "runs",
              "result", "stacks", "trace")  # fmt: skip


def list_files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return parts[0]


def find_imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        yield from find_imports_of(node)


def find_imports_of(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield node.module
        if node.module == "sonde":
            yield from (f"sonde.{alias.name}" for alias in node.names)


def find_ours(path: Path) -> set[str]:
    found = set()
    for name in find_imports(path):
        parts = name.split(".")
        if parts[0] == "sonde" and len(parts) > 1 and not parts[1].startswith("__version"):
            found.add(parts[1])
    return found


@pytest.mark.parametrize("path", list_files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_down(path: Path) -> None:
    extra = find_ours(path) - ALLOWED[name_of(path)] - {name_of(path)}
    assert not extra, f"{path.name} may not import {extra}"


@pytest.mark.parametrize("name", IN_THE_JOB)
def test_the_job_half_uses_the_standard_library_only(name: str) -> None:
    paths = [path for path in list_files() if name_of(path) == name]
    assert paths
    for path in paths:
        outside = {n.split(".")[0] for n in find_imports(path)} - {"sonde", "__future__"}
        assert outside <= set(sys.stdlib_module_names), f"{path}: {outside}"


def test_a_mirror_imports_its_tool_only_when_it_is_made() -> None:
    for path in (SOURCE / "mirrors").glob("*.py"):
        at_once = {
            name.split(".")[0]
            for node in ast.parse(path.read_text()).body
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for name in find_imports_of(node)
        }
        assert at_once <= set(sys.stdlib_module_names) | {"sonde", "__future__"}, path


def test_importing_sonde_in_a_job_loads_nothing_of_the_read_half(run) -> None:
    show = "import sys; print(*sorted(sys.modules))"
    bare = set(run(show).stdout.split())  # other packages have start-up hooks, too
    loaded = set(run("import sonde; sonde.start(collector='off'); " + show).stdout.split()) - bare
    heavy = {"pyarrow", "duckdb", "numpy", "threading", "subprocess", "socket", "typing", "inspect"}
    assert not loaded & heavy
    outside = {name.split(".")[0] for name in loaded} - set(sys.stdlib_module_names)
    assert outside == {"sonde"}
    ours = {name for name in loaded if name.startswith("sonde.")}
    assert {name.split(".")[1] for name in ours} <= set(IN_THE_JOB) | {"_core"}


def test_the_environment_is_read_in_one_place() -> None:
    for path in list_files():
        if path != SOURCE / "environ.py":
            assert "os.environ" not in path.read_text(), path
            assert "getenv" not in path.read_text(), path


def test_there_are_three_broad_excepts_the_jobs_guard_the_collectors_and_the_one_around_a_rule() -> (
    None
):
    broad = []
    for path in list_files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ExceptHandler):
                caught = ast.unparse(node.type) if node.type else "everything"
                last = node.body[-1]
                reraises = isinstance(last, ast.Raise) and last.exc is None
                said = ast.unparse(node)
                hands_over = "failure.append" in said or "generator.athrow" in said
                if caught in ("Exception", "BaseException", "everything") and not (
                    reraises or hands_over
                ):
                    broad.append(f"{path.name}:{node.lineno}")
    files = sorted(entry.partition(":")[0] for entry in broad)
    assert files == ["advising.py", "collector.py", "host.py"], broad


def test_functions_fit_a_screen_and_files_a_sitting() -> None:
    for path in list_files():
        tree = ast.parse(path.read_text())
        assert len(path.read_text().splitlines()) <= 420, path
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                length = (node.end_lineno or 0) - node.lineno + 1
                assert length <= 50, f"{path.name}: {node.name} has {length} lines"
