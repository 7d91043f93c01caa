"""The shape of the code, as law: who may import whom, and what must not stand where."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from support.places import SOURCE

GROUND = {
    "_core",
    "config_file",
    "environ",
    "errors",
    "launch",
    "markup",
    "plugins",
    "settings",
    "words",
}
READERS = {"store", "analysis", "export", "advice", "attach"}

# Room -> the rooms that it may import; every room may import itself. `sonde` is sonde/__init__.py:
# the roof, whose public names are loaded when they are used.
LAW = {
    "ground": GROUND,
    "session": GROUND,
    "tables": {"session"},
    "job": GROUND | {"session", "tables"},
    "attach": GROUND | {"session"},
    "store": GROUND | {"session", "tables"},
    "collector": GROUND | {"session", "tables", "store"},
    "analysis": GROUND | {"session", "tables", "store", "attach"},
    "export": GROUND | {"session", "store", "analysis"},
    "advice": GROUND | {"session", "store", "analysis"},
    "tui": GROUND | READERS | {"session"},
    # Measures into a session of its own: it hosts the recorder, like any program.
    "monitor": GROUND | READERS | {"session", "job", "web"},
    "fleet": GROUND | {"session", "store", "analysis"},
    "web": GROUND | READERS | {"session", "sonde"},  # the version stands in the roof
    "mcp": GROUND | {"session", "sonde"},
    "cli": GROUND
    | READERS
    | {"session", "tui", "monitor", "web", "fleet", "mcp", "collector", "demo", "sonde"},
    "profiler": {"job"},
    "integrations": {"sonde"},
    "demo": {"sonde"},  # as a program of a user
    "sonde": {"errors", "settings", "session", "job", "profiler", *READERS} - {"attach"},
    "__main__": {"background", "cli", "launch"},
    "background": set(),  # it imports what it is told to, by name
}
JOB_HALF = {"sonde", "session", "tables", "job", "profiler", *GROUND}
READ_HALF = {
    "store",
    "analysis",
    "export",
    "advice",
    "tui",
    "monitor",
    "web",
    "fleet",
    "mcp",
    "cli",
    "collector",
}

STATEMENT, FOR_TYPES, PLUGIN = "statement", "for types", "plugin"
Import = tuple[str, str, str]  # who imports, what, and which of these it is


def list_files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def name_module(path: Path) -> str:
    parts = ("sonde", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_module(path) for path in list_files()} | {"sonde._core"}


def find_room(module: str) -> str:
    """The room of a module; what stands at the top is a room of its own, or the ground."""
    room = module.split(".")[1] if "." in module else "sonde"
    return "ground" if room in GROUND else room


def find_imports(path: Path) -> Iterator[Import]:
    """Every import of a file, lazy ones and loaded plugins included."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    for_types = {
        id(inner)
        for node in nodes
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for part in node.body
        for inner in ast.walk(part)
    }
    for node in nodes:
        for name in find_imports_of(node):
            yield name_module(path), name, FOR_TYPES if id(node) in for_types else STATEMENT
        for name in find_plugins_of(node):
            yield name_module(path), name, PLUGIN


def name_last(node: ast.expr) -> str:
    """The last word of a name with dots: unparse() takes longer."""
    return getattr(node, "attr", None) or getattr(node, "id", "")


def find_imports_of(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        inner = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from (name if name in MODULES else node.module for name in inner)
    elif isinstance(node, ast.Call) and name_last(node.func).endswith("import_module"):
        yield from (arg.value for arg in node.args if isinstance(arg, ast.Constant))


def find_plugins_of(node: ast.AST) -> Iterator[str]:
    if not isinstance(node, ast.Call) or name_last(node.func) != "load":
        return
    if ast.unparse(node.func) == "plugins.load":
        folder = node.args[0]  # it is, or begins with, a literal, so that this test can see it
        begin = folder.values[0] if isinstance(folder, ast.JoinedStr) else folder
        prefix = f"sonde.{ast.literal_eval(begin)}".rstrip(".")
        yield from (name for name in MODULES if name.startswith(f"{prefix}."))


@cache
def list_imports() -> list[Import]:
    """Every import of every file; only who runs these tests pays for reading all of them."""
    return [found for path in list_files() for found in find_imports(path)]


def test_every_room_has_its_row() -> None:
    assert {find_room(module) for module in MODULES} == set(LAW)


@pytest.mark.parametrize("room", LAW)
def test_imports_point_down(room: str) -> None:
    allowed = {find_room(f"sonde.{name}") if name != "sonde" else name for name in LAW[room]}
    ours = [found for found in list_imports() if found[1].split(".")[0] == "sonde"]
    wrong = [
        f"{who} imports {what}"
        for who, what, _how in ours
        if find_room(who) == room and find_room(what) not in allowed | {room}
    ]
    assert not wrong


def test_no_module_imports_itself_in_a_circle() -> None:
    edges: dict[str, set[str]] = {module: set() for module in MODULES}
    for who, what, how in list_imports():
        # Imports for types count: names that need each other belong together. A plugin may import whoever
        # loads it by its name: that one is complete by then.
        if what in MODULES and what != who and how != PLUGIN:
            edges[who].add(what)
    # Whatever only leads out of the circles is taken away, until nothing is left to take.
    while True:
        done = {who for who, whats in edges.items() if not whats}
        if not done:
            break
        edges = {who: whats - done for who, whats in edges.items() if who not in done}
    assert not edges, f"in a circle, or above one: {sorted(edges)}"


def test_the_halves_meet_in_the_session_folder_only() -> None:
    """Said again, of all rows at once: this is what the rows are for."""
    for half, other in (("job", READ_HALF), *((room, {"job"}) for room in READ_HALF - {"monitor"})):
        assert not LAW[half] & other, half


@pytest.mark.parametrize("room", ["ground", "session", "tables", "job", "profiler", "sonde"])
def test_nothing_below_store_imports_anything_but_the_standard_library(room: str) -> None:
    for who, what, how in list_imports():
        # A mirror imports its tool when it is made, if there is one: see below.
        is_mirror = who.startswith("sonde.job.mirrors.")
        if find_room(who) == room and how != FOR_TYPES and not is_mirror:
            first = what.split(".")[0]
            assert first in {"sonde", *sys.stdlib_module_names}, f"{who} imports {what}"


LOADED = "import sys; print(*sorted(name for name in sys.modules if name.startswith('sonde')))"


def list_rooms(printed: str) -> set[str]:
    return {find_room(name) for name in printed.split()}


def test_importing_sonde_loads_nothing_else(run) -> None:
    assert run("import sonde; " + LOADED).stdout.split() == ["sonde"]


def test_a_recorded_job_loads_nothing_of_the_read_half(run) -> None:
    show = "import sys; print(*sorted(sys.modules))"
    bare = set(run(show).stdout.split())  # other packages have start-up hooks, too
    loaded = set(run("import sonde; sonde.start(collector='off'); " + show).stdout.split()) - bare
    heavy = {"pyarrow", "duckdb", "numpy", "threading", "subprocess", "socket", "typing", "inspect"}
    assert not loaded & heavy
    outside = {name.split(".")[0] for name in loaded} - set(sys.stdlib_module_names)
    assert outside == {"sonde"}
    ours = " ".join(name for name in loaded if name.split(".")[0] == "sonde")
    assert list_rooms(ours) <= {"sonde", "ground", "session", "tables", "job"}


def test_a_job_that_uses_everything_of_its_half_loads_nothing_of_the_other(run) -> None:
    done = run(
        "import sonde\n"
        "sonde.start(collector='off', source_call='on')\n"
        "with sonde.span('work'), sonde.profile(): sum(range(10**6))\n"
        "sonde.mark('here'); sonde.counter('queue', 3); sonde.step(); sonde.pause(); sonde.resume()\n"
        "emit = sonde.table(type('Batch', (), {'__annotations__': {'loss': float}})); emit(1.0)\n"
        "sonde.snapshot(); sonde.profiler.set_config(filename='/dev/null')\n"
        "sonde.profiler.set_state('run'); sonde.profiler.dumps()\n"
        "assert sonde.session().folder\n"
        "sonde.stop()\n" + LOADED
    )
    assert not list_rooms(done.stdout) & READ_HALF


def test_a_query_loads_nothing_of_the_write_half(run) -> None:
    folder = run("import sonde; print(sonde.start(collector='off')); sonde.stop()").stdout.strip()
    done = run(
        f"import sonde\nrecording = sonde.open({folder!r})\n"
        "assert recording.query('SELECT count(*) FROM sonde.source_log').to_pylist()\n"
        "assert recording.query('SELECT count(*) FROM python.frame').to_pylist()\n" + LOADED
    )
    assert "job" not in list_rooms(done.stdout)


def test_the_catalog_of_all_tables_loads_nothing_of_the_write_half(run) -> None:
    done = run("from sonde.store.catalog import list_tables; assert list_tables()\n" + LOADED)
    assert "job" not in list_rooms(done.stdout) and "collector" not in list_rooms(done.stdout)


def test_every_public_name_is_listed_and_loads(run) -> None:
    done = run(
        "import sonde\n"
        "assert set(sonde.__all__) <= set(dir(sonde))\n"
        "print(*[name for name in sonde.__all__ if getattr(sonde, name) is None])\n"
        "try: sonde.nothing\nexcept AttributeError as error: print(error)\n"
    )
    assert done.stdout == "\nmodule 'sonde' has no attribute 'nothing'\n"


def test_a_mirror_imports_its_tool_only_when_it_is_made() -> None:
    for path in (SOURCE / "job" / "mirrors").glob("*.py"):
        at_once = {
            name.split(".")[0]
            for node in ast.parse(path.read_text()).body
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for name in find_imports_of(node)
        }
        assert at_once <= set(sys.stdlib_module_names) | {"sonde", "__future__"}, path


def test_the_environment_is_read_in_one_place() -> None:
    for path in list_files():
        # autostart.py asks before that is loaded: its settings are slow to import.
        if path not in (SOURCE / "environ.py", SOURCE / "job/autostart.py"):
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
    assert files == ["judge.py", "loop.py", "source_context.py"], broad


def test_functions_fit_a_screen_and_files_a_sitting() -> None:
    for path in list_files():
        assert len(path.read_text().splitlines()) <= 400, path
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                length = (node.end_lineno or 0) - node.lineno + 1
                assert length <= 40, f"{path.name}: {node.name} has {length} lines"


# Contracts that several files fulfil, and objects of `sonde.profiler` beside the tables of that name.
SHARED_NAMES = {"Mirror", "Sensor", "SondeCallback", "Source", "TraceWriter"}
PUBLIC_OBJECTS = {"Counter", "Marker", "Task"}


def test_a_class_has_a_name_of_its_own() -> None:
    places: dict[str, list[str]] = {}
    for path in list_files():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(name_module(path))
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert set(twice) - SHARED_NAMES - PUBLIC_OBJECTS == set(), twice
