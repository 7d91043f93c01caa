"""Races between threads in the core, where Python has no GIL: `python tests/stress/races.py`.

The core is compiled once more, with ThreadSanitizer, for the Python that this runs on, and the
program of test_parallel_threads.py is run with it. A race is ours if both of its accesses are in our
code: this Python was built without the sanitizer, which therefore does not see how Python orders
its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve()
REPOSITORY = HERE.parents[2]
sys.path.insert(0, str(HERE.parents[1] / "integration"))
FLAGS = {"SONDE_CFLAGS": "-fsanitize=thread -g -Wno-tsan", "SONDE_LDFLAGS": "-fsanitize=thread"}


def build(folder: Path) -> None:
    """Put the package into the folder, with a core that is watched."""
    shutil.copytree(REPOSITORY / "src", folder / "src", ignore=shutil.ignore_patterns("*.so"))
    for name in ("setup.py", "pyproject.toml", "README.md", "sonde.pth"):
        shutil.copy(REPOSITORY / name, folder)
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(command, cwd=folder, env={**os.environ, **FLAGS}, check=True)


def find_sanitizer() -> str:
    """Return the library that has to be loaded before all others."""
    compiler = os.environ.get("CC", "cc").split()
    command = [*compiler, "-print-file-name=libtsan.so"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if not os.path.isabs(found):
        raise SystemExit("there is no ThreadSanitizer here")
    return os.path.realpath(found)


def find_access(part: str) -> str:
    """Return the innermost frame of an access that is not in the sanitizer."""
    frames = re.findall(r"^ +#\d+ (.*)$", part, re.MULTILINE)
    return next((frame for frame in frames if "libtsan" not in frame), "")


def list_races(report: str) -> list[str]:
    """Return the races whose two accesses are both in the core."""
    found = []
    for race in report.split("=" * 18):
        accesses = [find_access(part) for part in race.split("\n\n")[:2]]
        if "data race" in race and all("/_core" in access for access in accesses):
            found.append(" and ".join(accesses))
    return found


def main() -> int:
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        print("this Python has a GIL: its threads do not run side by side")
        return 0
    from test_parallel_threads import PROGRAM

    with tempfile.TemporaryDirectory() as name:
        build(Path(name))
        done = subprocess.run(
            [sys.executable, "-S", "-c", PROGRAM], capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHONPATH": f"{name}/src", "LD_PRELOAD": find_sanitizer(),
                 "SONDE_DIR": f"{name}/sessions", "TSAN_OPTIONS": "exitcode=0"},
        )  # fmt: skip
    races = list_races(done.stderr)
    if done.returncode:
        print(done.stderr[-2000:])
    seen = done.stderr.count("WARNING: ThreadSanitizer")
    print(f"races in the core: {len(races)} of {seen} that the sanitizer saw")
    print(*races, sep="\n")
    return 1 if races or done.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
