"""Attach from the built wheel, in a virtual environment of its own (`make test-all`: on every Python)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import TIMEOUT_S
from support.places import TOP

BUILT = ("pyproject.toml", "setup.py", "sonde.pth", "README.md", "LICENSE", "src")
PROGRAM = "import time\nprint('ready', flush=True)\nwhile True: time.sleep(0.01)\n"
READ = """
import sys
from sonde.session import steering as control, stack_table as stacks
from sonde.session import Session
recording = Session(sys.argv[1])
control.sample_now(recording, 1)
print(recording.pid, *{f.func for one in stacks.read_newest(recording) for f in one.frames})
"""


def call(*words: object, **options: object) -> str:
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, timeout=10 * TIMEOUT_S,
        check=False, **options,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def find_python(version: str) -> str:
    script = TOP / "tests" / "support" / "find_python.py"
    found = subprocess.run(
        [sys.executable, script, version], capture_output=True, text=True, check=False
    )
    if found.returncode:
        pytest.skip(f"no Python {version} is installed here")
    return found.stdout.strip()


@pytest.fixture(scope="module")
def clean_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a wheel is built from, without what an earlier build left there."""
    folder = tmp_path_factory.mktemp("tree")
    call("cp", "-r", *(TOP / name for name in BUILT), folder)
    return folder


@pytest.fixture
def plain(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    """A program run by a Python that has no sonde."""
    python = find_python(request.param)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SONDE")}
    process = subprocess.Popen(
        [python, "-I", "-c", PROGRAM], stdout=subprocess.PIPE, text=True, env=kept
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.communicate()


VERSIONS = [f"{sys.version_info[0]}.{sys.version_info[1]}"]


@pytest.mark.parametrize("version, plain", [(v, v) for v in VERSIONS], indirect=["plain"])
def test_the_wheel_attaches_from_an_environment_of_its_own(
    version: str, plain: subprocess.Popen[str], clean_tree: Path, tmp_path: Path
) -> None:
    base, venv = find_python(version), tmp_path / "venv"
    # How fast the code is does not matter here, and the compiler takes long to make it so.
    quick = {**os.environ, "SONDE_CFLAGS": "-O0"}
    call(base, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, clean_tree, env=quick)
    (wheel,) = tmp_path.glob("sonde-*.whl")
    assert f"cp{version.replace('.', '')}" in wheel.name
    call(base, "-m", "venv", "--without-pip", venv)
    # What the reports need is left out: to attach, sonde alone is enough.
    into = venv / "bin" / "python"
    call(base, "-m", "pip", "--python", into, "install", "-q", "--no-deps", wheel)
    sonde, outside = venv / "bin" / "sonde", {"cwd": tmp_path}
    folder = call(sonde, "attach", plain.pid, "--set", "collector=off", **outside).strip()
    read = call(venv / "bin" / "python", "-c", READ, folder, **outside).split()
    assert read[0] == str(plain.pid) and "<module>" in read[1:]
    call(sonde, "stop", plain.pid, **outside)
    assert plain.poll() is None
