"""NewRows Python processes to measure in, and a session folder that is gone afterwards.

Every process has a memory layout of its own: see layout.py."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import layout

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 240.0
_CALL = (
    "import json, sys; sys.path.insert(0, sys.argv[1]); import layout; layout.shake(); "
    "from importlib import import_module; "
    "function = getattr(import_module(sys.argv[2]), sys.argv[3]); "
    "print(json.dumps(function(*json.loads(sys.argv[4]))), flush=True)"
)


@contextmanager
def open_root() -> Iterator[str]:
    """A SONDE_DIR of one's own; on leaving, its collector is ended and the folder removed."""
    root = tempfile.mkdtemp(prefix="sonde-bench-")
    try:
        yield root
    finally:
        end_collectors(root)
        shutil.rmtree(root, ignore_errors=True)


def find_collectors(root: str) -> list[int]:
    """The collectors of this root: the processes whose last argument it is."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                words = (folder / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
            except OSError:
                continue
            if words[-1] == os.fsencode(root):
                found.append(int(folder.name))
    return found


def end_collectors(root: str) -> None:
    """End them and see them gone, so that they do not run beside what is measured next."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + 5
        for pid in find_collectors(root):
            try:
                os.kill(pid, signal_number)
            except ProcessLookupError:
                pass
        while find_collectors(root):
            if time.monotonic() > deadline:
                break
            time.sleep(0.02)


def make_environment(root: str, **more: str) -> dict[str, str]:
    """This environment without anybody's settings of sonde, and with ours."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("SONDE")}
    return {**plain, "SONDE_DIR": root, "PYTHONHASHSEED": "0", **more}


def name_call(
    function: Callable[..., object], *args: object, python: str = sys.executable
) -> list[str]:
    """The command that calls a function of a benchmark in a fresh Python."""
    module = Path(function.__code__.co_filename).stem
    words = [str(HERE), module, function.__name__, json.dumps(args)]
    return [python, "-c", _CALL, *words]


def call(
    function: Callable[..., object], *args: object, root: str, python: str = sys.executable
) -> object:
    """Call a function in a fresh Python; what it returns comes back as JSON."""
    return json.loads(run(name_call(function, *args, python=python), root))


def run(argv: list[str], root: str, shaken: bool = True, **environment: str) -> str:
    """Run a command; its stdout. What goes wrong is shown, not hidden."""
    done = subprocess.run(
        argv,
        env=make_environment(root, **(layout.draw() if shaken else {}), **environment),
        cwd=root,
        stdout=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    return done.stdout


@contextmanager
def hold(function: Callable[..., object], *args: object, root: str) -> Iterator[subprocess.Popen]:
    """A function running in a fresh Python beside us, until it returns after its stdin closes."""
    process = subprocess.Popen(
        name_call(function, *args),
        env=make_environment(root, **layout.draw()),
        cwd=root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.stdin.close()
        try:
            process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def wait_until(holds: Callable[[], object], seconds: float, what: str) -> None:
    """Wait for a condition, not for a time."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {what} within {seconds:g} s")
        time.sleep(0.02)
