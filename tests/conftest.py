"""What every test shares: a root of its own, programs to record, and nothing left behind."""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.missing_tools import MissingTools, check_output
from support.worker_watch import WorkerWatch
from support.zygote import Forked, Zygote

TIMEOUT_S = 240.0  # nothing takes as long, even on a machine that others use as well
# torch 2.4 leaves a pool of processes behind for whoever compiles, and does without for one.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
END_TIMEOUT_S = 120.0  # nor does the end of a worker
SILENCE_S = 480.0  # by then, the limits of pyproject.toml have ended every test

# A shell that starts us in the background has Ctrl-C ignored, and every process would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Started when a test first needs them; they end with the tests.
_FRAMEWORKS = (
    "torch", "torch._dynamo", "accelerate", "transformers.models.llama.modeling_llama",
    "transformers.trainer", "lightning.pytorch", "pytorch_lightning",
)  # fmt: skip
_ZYGOTES = {
    # Torch imports its compiler when the first optimizer makes a step.
    "torch": Zygote(["torch", "torch._dynamo"]),
    "frameworks": Zygote([name for name in _FRAMEWORKS if find_spec(name.partition(".")[0])]),
    "cli": Zygote(
        [
            "sonde.cli",
            "sonde.store.recording",
            "sonde.advice.judge",
            "sonde.monitor.report",
            "sonde.analysis.profile",
            "sonde.export.files",
        ]
    ),
}
# What Python reads when it starts: a fork would not notice.
_AT_START = ("PYTHON", "LD_", "SONDE_NVML", "LC_", "LANG")
# Of the files that take longest, those with few tests: begun last, they would keep one worker busy
# while the others have nothing left to do.
_FIRST = (
    "web/test_page.py", "integration/test_scenarios.py", "cli/test_commands.py",
    "_core/test_structure.py", "job/sources/test_heap.py", "integration/test_torchrun.py",
    "export/test_live_trace.py", "collector/test_shipper.py", "job/sources/test_native_frames.py",
    "web/test_server.py", "export/formats/test_flamegraph.py", "integration/test_filters.py",
    "fleet/test_agent.py", "test_examples.py",
)  # fmt: skip
_modules = 0  # were imported when garbage was last told to leave them alone


def wait_for(condition: Callable[[], object], timeout_s: float = TIMEOUT_S) -> object:
    """The first true answer of `condition`; fails the test at the deadline."""
    deadline = time.monotonic() + timeout_s
    while True:
        asked = time.monotonic()
        answer = condition()
        if answer:
            return answer
        now = time.monotonic()
        assert now < deadline, f"waited {timeout_s} s in vain"
        # What is waited for needs the processors more than a question that takes long itself.
        time.sleep(min(max(0.02, 2 * (now - asked)), 2.0))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files for several workers: those that take long come first."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    sizes = Counter(item.path for item in items)
    firsts = {Path(__file__).parent / name: at for at, name in enumerate(_FIRST)}
    items.sort(key=lambda item: (firsts.get(item.path, len(firsts)), -sizes[item.path]))


def pytest_collection_finish() -> None:
    gc.collect()
    _freeze_imported()


def _freeze_imported() -> None:
    """See to it that nothing that was imported so far is visited again when garbage is looked for,
    as after each test: torch alone would take a tenth of a second each time."""
    global _modules
    if len(sys.modules) != _modules:
        _modules = len(sys.modules)
        gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # DuckDB complains of what is not freed in the end
    if "PYTEST_XDIST_WORKER" in os.environ:
        faulthandler.dump_traceback_later(END_TIMEOUT_S, exit=True, file=sys.__stderr__)


@pytest.hookimpl(trylast=True)
def pytest_exception_interact() -> None:
    """Limit also what comes after a failure: it lifts all limits, so that people can debug."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        faulthandler.dump_traceback_later(END_TIMEOUT_S * 2, exit=True, file=sys.__stderr__)


class _NamesFailures:
    """Names each failure when it comes: a run that is cut off has named them as well."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._write(f"{report.nodeid}: {report.when} failed after {report.duration:.0f} s")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    config.option.loadscopereorder = False  # xdist's own order knows only how many tests a file has
    config.pluginmanager.register(MissingTools())
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(_NamesFailures(reporter.write_line))
        config.pluginmanager.register(WorkerWatch(SILENCE_S, reporter.write_line))


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A sessions folder for this test alone; collectors started for it end with it."""
    folder = tmp_path / "sonde"
    use_root(folder, monkeypatch)
    yield folder
    if folder.exists():  # whoever is started for it makes it
        end_processes(str(folder))


@pytest.fixture
def no_collector(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs start no collector unless they say so: it takes half a second of a processor each
    time, and most tests read what a program wrote as it lies there."""
    monkeypatch.setenv("SONDE_COLLECTOR", "off")


def use_root(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this test use a sessions folder, and no other setting from outside."""
    for name in list(os.environ):
        if name.startswith("SONDE"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("SONDE_DIR", str(folder))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder.parent / "config"))


def end_processes(marker: str) -> None:
    """Kill all processes whose command line names `marker`."""
    left = find_processes(marker)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    if left:
        wait_for(lambda: not find_processes(marker))


@pytest.fixture(autouse=True)
def _nothing_left_behind(root: Path) -> Iterator[None]:
    """No recording, thread, callback, hook or open file survives a test."""
    before = _inventory(root)
    yield
    import sonde

    sonde.stop()
    gc.collect()
    deadline = time.monotonic() + TIMEOUT_S
    while _list_left(before, _inventory(root)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _list_left(before, _inventory(root))
    _freeze_imported()


def _list_left(before: dict[str, object], after: dict[str, object]) -> dict[str, object]:
    """What differs after a test; a child that an earlier one left behind may end meanwhile."""
    if set(after["children"]) <= set(before["children"]):
        after["children"] = before["children"]
    return {name: (value, before[name]) for name, value in after.items() if value != before[name]}


def _inventory(root: Path) -> dict[str, object]:
    return {
        # Torch draws bars with tqdm where that is installed, and tqdm has a thread for ever.
        "threads": sorted(t.name for t in threading.enumerate() if t.name != "tqdm_monitor"),
        "native threads": _count_native("sonde"),
        # Ours alone: Hypothesis has one of its own from its first test on.
        "gc callbacks": sum(type(one).__module__.startswith("sonde") for one in gc.callbacks),
        "signal handlers": {s: signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGUSR1)},
        "open files": sorted(file for file in _list_open_files() if file.startswith(f"{root}/")),
        "children": sorted(set(_list_children()) - {str(one.pid) for one in _ZYGOTES.values()}),
    }


def _count_native(name: str) -> int:
    count = 0
    for task in os.listdir("/proc/self/task"):
        try:
            count += Path(f"/proc/self/task/{task}/comm").read_text().strip() == name
        except OSError:
            continue
    return count


def _list_open_files() -> Iterator[str]:
    for fd in os.listdir("/proc/self/fd"):
        try:
            yield os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue


def _list_children() -> list[str]:
    found = []
    for task in os.listdir("/proc/self/task"):
        try:
            found += Path(f"/proc/self/task/{task}/children").read_text().split()
        except OSError:
            continue
    return found


def find_processes(marker: str) -> list[int]:
    """Processes (not us) whose command line names `marker`. Every test asks: most are told apart by
    one short read."""
    wanted, found = marker.encode(), []
    for entry in os.listdir("/proc"):
        if not entry.isdecimal() or int(entry) == os.getpid():
            continue
        try:
            words = _read_bytes(f"/proc/{entry}/cmdline")
            if wanted not in words or wanted not in words.split(b"\0"):
                continue
            state = _read_bytes(f"/proc/{entry}/stat").rpartition(b")")[2].split()[0]
        except OSError:
            continue
        if state != b"Z":
            found.append(int(entry))
    return found


def _read_bytes(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 1 << 20)
    finally:
        os.close(fd)


@pytest.fixture
def run(run_anew) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run Python code to its end as a program of its own: run(code, *args, **environment)."""
    return run_anew


@pytest.fixture
def run_anew(root: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """As `run`, always in a process that has imported nothing."""

    def run(
        code: str, *args: str, check: bool = True, **env: str
    ) -> subprocess.CompletedProcess[str]:
        script = tmp_path / "program.py"
        script.write_text(code)
        done = subprocess.run(
            [sys.executable, str(script), *args], capture_output=True, text=True, timeout=TIMEOUT_S,
            env={**os.environ, **env}, check=False,
        )  # fmt: skip
        assert not check or check_output(done).returncode == 0, done.stderr
        return done

    return run


@pytest.fixture
def start(start_anew) -> Callable[..., subprocess.Popen[str]]:
    """Start Python code and go on; it is killed when the test ends. It may print `ready`."""
    return start_anew


@pytest.fixture
def start_anew(root: Path, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """As `start`, in a process of its own also where a file's `start` is another."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str, *args: str, ready: bool = True, **env: str) -> subprocess.Popen[str]:
        script = tmp_path / f"program{len(started)}.py"
        script.write_text(code)
        process = subprocess.Popen(
            [sys.executable, "-u", str(script), *args], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, env={**os.environ, **env},
        )  # fmt: skip
        started.append(process)
        if ready:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.strip() == "ready", process.communicate()
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def run_torch(
    root: Path, tmp_path: Path, torch_zygote: Zygote
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """As `run`, for programs that begin with `import torch`: it is there at once."""
    return _make_run(torch_zygote, tmp_path / "program.py")


@pytest.fixture
def run_frameworks(
    root: Path, tmp_path: Path, frameworks_zygote: Zygote
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """As `run_torch`, for programs that import transformers, Lightning or Accelerate."""
    return _make_run(frameworks_zygote, tmp_path / "program.py")


def _make_run(zygote: Zygote, script: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(
        code: str, *args: str, check: bool = True, **env: str
    ) -> subprocess.CompletedProcess[str]:
        script.write_text(code)
        done = zygote.run([str(script), *args], {**os.environ, **env}, TIMEOUT_S)
        assert not check or done.returncode == 0, done.stderr
        return done

    return run


@pytest.fixture
def start_torch(
    root: Path, tmp_path: Path, torch_zygote: Zygote
) -> Iterator[Callable[..., Forked]]:
    """As `start`, for programs that begin with `import torch`: it is there at once."""
    started: list[Forked] = []

    def start(code: str, *args: str, ready: bool = True, **env: str) -> Forked:
        script = tmp_path / f"program{len(started)}.py"
        script.write_text(code)
        environment = {**os.environ, **env}
        started.append(torch_zygote.start([str(script), *args], environment, str(tmp_path)))
        if ready:
            line = started[-1].stdout.readline()
            assert line.strip() == "ready", started[-1].communicate()
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def torch_zygote() -> Iterator[Zygote]:
    """A process that has imported torch, and forks for each program."""
    yield from _lend("torch")


@pytest.fixture(scope="session")
def frameworks_zygote() -> Iterator[Zygote]:
    """A process that has imported what people train with, and forks for each program."""
    yield from _lend("frameworks")


@pytest.fixture(scope="session")
def cli_zygote() -> Iterator[Zygote]:
    """A process that has imported what commands need, and forks for each command."""
    yield from _lend("cli")


def _lend(name: str) -> Iterator[Zygote]:
    yield _ZYGOTES[name]
    _ZYGOTES[name].stop()


@pytest.fixture
def sonde_cli(root: Path, cli_zygote: Zygote) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the `sonde` command as a user does."""

    def sonde_cli(*args: object, **env: str) -> subprocess.CompletedProcess[str]:
        # The last DuckDB for 3.10 starts a thread when it is imported: no process to fork.
        can_fork = sys.version_info >= (3, 11) and find_spec("duckdb") is not None
        if can_fork and not any(name.startswith(_AT_START) for name in env):
            words = ["-m", "sonde", *map(str, args)]
            return check_output(cli_zygote.run(words, {**os.environ, **env}, TIMEOUT_S))
        done = subprocess.run(
            [sys.executable, "-m", "sonde", *map(str, args)], capture_output=True, text=True,
            timeout=TIMEOUT_S, env={**os.environ, **env}, check=False,
        )  # fmt: skip
        return check_output(done)

    return sonde_cli


@pytest.fixture
def fake_nvml(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """GPUs as a test wants them: fake_nvml({"gpus": [{"util_pct": 90}]}); call it again to change
    them. With several steps each has "at", seconds from now, and `repeat_s` begins anew."""
    folder = tmp_path / "nvml"
    folder.mkdir()
    shutil.copy(Path(__file__).parent / "fake" / "pynvml.py", folder)
    monkeypatch.setenv("SONDE_NVML", str(folder))

    def write(*steps: dict[str, object], repeat_s: float = 0.0) -> None:
        script = {"begun_s": time.monotonic(), "repeat_s": repeat_s, "steps": steps}
        hidden = folder / "script.new"
        hidden.write_text(json.dumps(script))
        hidden.rename(folder / "script.json")

    write({"gpus": [{}]})
    return write
