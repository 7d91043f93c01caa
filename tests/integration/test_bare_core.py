"""sonde without any other package, as `pip install sonde` leaves it: what works, and what says why
it does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import TIMEOUT_S, wait_for
from sonde import errors, plugins
from sonde.session import list_folders
from sonde.session.files import SEALED

# Python imports this when it starts, in every process that inherits the environment.
WITHOUT = """
from importlib.machinery import PathFinder

find = PathFinder.find_spec

def find_others(name, path=None, target=None):
    return None if name.partition(".")[0] in {names!r} else find(name, path, target)

PathFinder.find_spec = find_others
"""
HIDDEN = {*errors.TOOLS, "matplotlib", "numpy", "pandas", "pynvml", "torch"}
JOB = """
import sonde, sys, time
emit = sonde.table(type("Batch", (), {"__annotations__": {"loss": float}}))
for step in range(10): emit(0.5)
print("ready", flush=True)
def work():
    while True: sum(range(1000)); time.sleep(0.001)
work()
"""
# The arguments of each command that needs no other package; P is the recorded process.
ALONE = {
    "completion": [["bash"], ["bash", "--", "stacks", ""]],
    "attach": [["--check", "Q"]],
    "config": [[], ["P"], ["P", "stack.every=5ms"]],
    "ps": [[], ["--format", "json"], ["--format", "csv"]],
    "pause": [["P"]],
    "resume": [["P"]],
    "stacks": [["P"], ["P", "--locals", "--format", "json"]],
    "snapshot": [["P"], ["P", "-o", "1.prof"], ["diff", "1.prof", "1.prof"],
                 ["merge", "1.prof", "-o", "2.prof"]],
    "top": [["P", "--once"], ["P", "--once", "--format", "json"]],
    "profile": [["P", "--duration", "0.1", "--to", "flamegraph", "-o", "1.html"], ["list"],
                ["results", "--format", "json"]],
    "stop": [["P"]],
}  # fmt: skip
TOOLS = {
    "advise": ["P"], "compact": ["P"], "compare": ["P", "P"], "demo": [], "events": ["P"], "modules": ["P"],
    "export": ["P", "--to", "collapsed"], "query": ["P", "SELECT 1"], "repair": ["trace.json"],
    "monitor": ["--duration", "0.1"], "tables": [], "tree": ["P"], "memory": ["P"], "report": ["P"],
    "ui": ["P", "--no-browser"], "requests": ["P"],
    "agent": [], "mcp": [],
}  # fmt: skip
ELSEWHERE = {"run", "capture"}  # they have tests of their own below


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide all packages but sonde from every process that is started."""
    folder = tmp_path / "hidden"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(WITHOUT.format(names=HIDDEN))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.chdir(tmp_path)


def call(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sonde", *map(str, words)], capture_output=True, text=True,
        timeout=TIMEOUT_S, check=False,
    )  # fmt: skip


@pytest.fixture
def start(bare: None) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started = []

    def begin(*words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def record(start: Callable[..., subprocess.Popen[str]], tmp_path: Path, collector: str) -> int:
    (tmp_path / "job.py").write_text(JOB)
    return start("-m", "sonde", "run", "--set", f"collector={collector}", "job.py").pid


def test_every_command_is_either_alone_or_of_the_tools() -> None:
    assert set(plugins.list_names("cli")) == ALONE.keys() | TOOLS.keys() | ELSEWHERE


def test_commands_that_need_no_other_package(start, tmp_path: Path) -> None:
    pid = record(start, tmp_path, "off")
    other = start("-c", "import time; print('ready', flush=True); time.sleep(1000)").pid
    places = {"P": pid, "Q": other}
    for command, calls in ALONE.items():
        for words in calls:
            done = call(command, *(places.get(word, word) for word in words))
            if (command, words) == ("profile", ["results", "--format", "json"]):
                assert done.returncode == 2  # it wants a run or a tag
                continue
            assert (done.returncode, "Traceback" in done.stderr) == (0, False), (words, done.stderr)
    assert json.loads(call("ps", "--format", "json").stdout)[0]["pid"] == pid
    assert (tmp_path / "1.html").stat().st_size > 10_000


def test_a_capture_is_asked_for_without_other_packages(start, tmp_path: Path) -> None:
    done = call("capture", record(start, tmp_path, "off"), "--steps", 1)
    has_gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    why = "has not imported torch" if has_gil else "this Python has no GIL"
    assert done.returncode == 1 and why in done.stderr


def test_nobody_waits_for_a_capture_that_the_program_cannot_make(start, tmp_path: Path) -> None:
    free = "import sys\nsys._is_gil_enabled = lambda: False\n"  # as free-threaded Pythons say
    (tmp_path / "job.py").write_text(free + "sonde = __import__('sonde').start()" + JOB)
    pid = start("job.py").pid
    done = call("capture", pid, "--steps", 1)
    why = (
        "source.capture is unavailable there: this Python has no GIL, which keeps the numbers sound"
    )
    said = f"sonde: no capture of process {pid}: {why}\n"
    assert (done.returncode, done.stderr) == (1, said)


@pytest.mark.parametrize("command", TOOLS)
def test_a_command_names_the_extra_that_it_lacks(command: str, bare: None) -> None:
    done = call(command, *TOOLS[command])
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert f"`sonde {command}` needs " in done.stderr
    extra = "mcp" if command == "mcp" else "tools"
    assert done.stderr.endswith(f"pip install 'sonde[{extra}]'\n")


def test_a_monitored_command_runs_without_the_tools(bare: None) -> None:
    done = call("monitor", "--", sys.executable, "-c", "print('ran'); raise SystemExit(3)")
    assert (done.stdout, done.returncode) == ("ran\n", 3)
    assert "it runs unmeasured: `sonde monitor` needs duckdb" in done.stderr


def test_names_for_python_name_the_extra_that_they_lack(bare: None, run) -> None:
    done = run(
        "import sonde\n"
        "for use in (lambda: sonde.open(1), lambda: sonde.advise, lambda: sonde.Recording):\n"
        "    try: use()\n"
        "    except ImportError as error: print(isinstance(error, sonde.Error), error)\n"
    )
    lines = done.stdout.splitlines()
    assert [line.split()[1] for line in lines] == ["sonde.open", "sonde.advise", "sonde.Recording"]
    assert all(line.startswith("True ") and "pip install 'sonde[tools]'" in line for line in lines)


def test_a_result_is_exported_without_other_packages(bare: None, run, tmp_path: Path) -> None:
    run(
        "import sonde; sonde.start(collector='off')\n"
        "with sonde.profile(every='1ms') as one: sum(range(10**7))\n"
        "print(sonde.export_result(one.result(), 'x.txt', 'collapsed'))\n"
    )
    assert (tmp_path / "x.txt").stat().st_size


def test_without_arrow_the_collector_does_everything_but_archive(start, tmp_path: Path) -> None:
    root = os.environ["SONDE_DIR"]
    pid = record(start, tmp_path, "on")
    # The machine is measured, rows stay in the rings, and one row says why they are not archived.
    read = (
        "import sys; from sonde.session import Session, source_states\n"
        "from sonde.session.stack_table import read_rows\n"
        "one = Session(sys.argv[1])\n"
        "for row in source_states.read_states(one): print(row['source'], row['state'], row['detail'])\n"
        "print(len(list(read_rows(one, 'system.process'))), 'rows')\n"
    )
    (folder,) = list_folders(root)

    def look() -> str:
        return subprocess.run(
            [sys.executable, "-c", read, folder], capture_output=True, text=True, check=False
        ).stdout

    def is_measured() -> bool:
        return "archive unavailable" in look() and " 0 rows" not in look()

    wait_for(is_measured)
    assert "pip install 'sonde[tools]'" in look() and "No module named 'pyarrow'" in look()
    os.kill(pid, 9)
    wait_for(lambda: {"killed", "SIGKILL"} & set(call("ps").stdout.split()))
    assert not os.path.exists(os.path.join(folder, SEALED))


def test_a_collector_with_arrow_archives_what_one_without_left(start, tmp_path: Path) -> None:
    from sonde.collector.loop import Collector

    root = os.environ["SONDE_DIR"]
    pid = record(start, tmp_path, "off")
    (folder,) = list_folders(root)
    os.kill(pid, 9)
    collector = Collector(root)
    wait_for(
        lambda: collector.step(time.monotonic()) or os.path.exists(os.path.join(folder, SEALED))
    )
    import sonde

    assert sonde.open(folder).query("SELECT count(*) AS n FROM job.batch").to_pylist() == [
        {"n": 10}
    ]


def test_a_process_that_is_lent_our_sonde_gets_a_collector_of_our_python(tmp_path: Path) -> None:
    from sonde import launch
    from sonde.attach import visit

    program = "import time; print('ready', flush=True)\nwhile True: time.sleep(0.01)"
    base = os.path.realpath(sys.executable)
    with subprocess.Popen(
        [base, "-I", "-c", program], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    ) as job:  # fmt: skip
        try:
            assert job.stdout is not None and job.stdout.readline() == "ready\n"
            session = visit.attach(job.pid)
            root = os.path.dirname(session.folder)
            wait_for(lambda: launch.has_collector(root))
            lock = Path(launch.collector_lock(root))
            pid = int(str(wait_for(lambda: lock.read_text().partition("\n")[0])))
            assert launch.read_archive_problem(root) is None
            assert Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0] == sys.executable
            assert "\0PYTHONPATH=" not in Path(f"/proc/{pid}/environ").read_text()
        finally:
            job.kill()
