"""Attach from the built wheel, in a virtual environment of its own (`make test-all`: on every Python)."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.places import TOP
from support.shared import build_wheel, call

PROGRAM = "import time\nprint('ready', flush=True)\nwhile True: time.sleep(0.01)\n"
READ = """
import sys
from sonde.session import steering as control, stack_table as stacks
from sonde.session import Session
recording = Session(sys.argv[1])
control.sample_now(recording, 1)
print(recording.pid, *{f.func for one in stacks.read_newest(recording) for f in one.frames})
"""


def find_python(version: str) -> str:
    script = TOP / "tests" / "support" / "find_python.py"
    found = subprocess.run(
        [sys.executable, script, version], capture_output=True, text=True, check=False
    )
    if found.returncode:
        pytest.skip(f"no Python {version} is installed here")
    return found.stdout.strip()


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
    version: str,
    plain: subprocess.Popen[str],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    base, venv = find_python(version), tmp_path / "venv"
    (wheel,) = build_wheel(tmp_path_factory).glob("sonde-*.whl")
    assert f"cp{version.replace('.', '')}" in wheel.name
    call(base, "-m", "venv", "--without-pip", venv)
    # What the reports need is left out: to attach, sonde alone is enough.
    into = venv / "bin" / "python"
    call(sys.executable, "-m", "pip", "--python", into, "install", "-q", "--no-deps", wheel)
    sonde, outside = venv / "bin" / "sonde", {"cwd": tmp_path}
    folder = call(sonde, "attach", plain.pid, "--set", "collector=off", **outside).strip()
    read = call(venv / "bin" / "python", "-c", READ, folder, **outside).split()
    assert read[0] == str(plain.pid) and "<module>" in read[1:]
    call(sonde, "stop", plain.pid, **outside)
    assert plain.poll() is None


def test_the_joined_wheel_has_every_library_of_every_python(tmp_path: Path) -> None:
    parts, libraries = [], set()
    for tag in ("cp310", "cp315"):
        parts.append(tmp_path / f"sonde-1-{tag}-{tag}-linux_aarch64.whl")
        names = [f"sonde/{name}.{tag}.so" for name in ("_core", "_delay")]
        libraries.update(names)
        with zipfile.ZipFile(parts[-1], "w") as wheel:
            for name in (*names, "sonde/__init__.py", "sonde-1.dist-info/RECORD"):
                wheel.writestr(name, name)
            wheel.writestr("sonde-1.dist-info/WHEEL", f"Wheel-Version: 1.0\nTag: {tag}\n")
    wheels = runpy.run_path(str(TOP / "release" / "wheels.py"))
    joined = wheels["join"](parts, tmp_path)
    with zipfile.ZipFile(joined) as wheel:
        assert {name for name in wheel.namelist() if name.endswith(".so")} == libraries
        record = wheel.read("sonde-1.dist-info/RECORD").decode()
    assert all(f"{name}," in record for name in libraries)
