"""Run the core alone, under sanitizers: stress, damage, and one line of output for each part.

Each job is a part of one program in one build; a crash, a report of a sanitizer, a hang or a
failed requirement makes the exit status 1. `--seconds` is divided among the jobs; the first time,
building takes additional time."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
CORE = HERE.parents[1] / "src" / "sonde" / "_core"
COMPILER = os.environ.get("CC", "cc")
FLAGS = (
    "-std=gnu11", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{CORE}", f"-I{HERE}",
)  # fmt: skip
BUILDS = {
    "plain": ("-O2",),
    "memory": ("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    # ThreadSanitizer does not know fences. That causes no false reports: all that they order is
    # atomic.
    "race": ("-O1", "-fsanitize=thread", "-Wno-tsan"),
}
PROGRAMS = {
    "stress": ("stress.c", "arena.c"),
    "texts": ("texts.c",),
    "fuzz": ("fuzz.c",),
}
JOBS = (
    ("threads", "stress", "plain"), ("threads", "stress", "memory"), ("threads", "stress", "race"),
    ("processes", "stress", "plain"), ("processes", "stress", "memory"),
    ("killed", "stress", "plain"), ("killed", "stress", "memory"),
    ("signals", "stress", "plain"), ("signals", "stress", "memory"),
    ("shared", "texts", "plain"), ("shared", "texts", "memory"), ("shared", "texts", "race"),
    ("full", "texts", "plain"), ("full", "texts", "memory"), ("full", "texts", "race"),
    ("ring", "fuzz", "memory"), ("intern", "fuzz", "memory"), ("control", "fuzz", "memory"),
    ("nodes", "fuzz", "memory"), ("lines", "fuzz", "memory"),
)  # fmt: skip
HANG_S = 60.0
# The core never allocates, and a leak check would need rights that containers do not give.
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1",
}


def compile_c(sources: list[Path], build: str, target: Path) -> str:
    """Compile and link; return what the compiler says when it fails, otherwise nothing."""
    command = [COMPILER, *FLAGS, *BUILDS[build], *map(str, sources), "-o", str(target)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return f"{COMPILER}: {error.strerror}"
    return done.stderr if done.returncode else ""


def make_program(name: str, build: str, folder: Path) -> Path:
    """Return the program, built if its sources are newer."""
    target = folder / f"{name}-{build}"
    core = [
        CORE / "format" / f"{part}.c"
        for part in ("ring", "intern", "checksum", "clock", "control", "stack_nodes", "line_table")
    ]
    sources = [*(HERE / source for source in PROGRAMS[name]), *core]
    newest = max(path.stat().st_mtime for path in (*HERE.iterdir(), *CORE.rglob("*.[ch]")))
    if not target.exists() or target.stat().st_mtime < newest:
        said = compile_c(sources, build, target)
        if said:
            raise SystemExit(f"{name} ({build}) does not build:\n{said}")
    return target


def find_trouble(build: str, folder: Path) -> str:
    """Return why programs of this build cannot run here, or nothing if they can."""
    source, target = folder / "probe.c", folder / f"probe-{build}"
    if target.exists():
        return ""
    source.write_text("int main(void) { return 0; }\n")
    said = compile_c([source], build, target)
    done = None if said else subprocess.run([target], capture_output=True, text=True, check=False)
    if done is not None and done.returncode == 0:
        return ""
    target.unlink(missing_ok=True)
    return (said or done.stderr).strip().partition("\n")[0] or "it does not start"


def run_job(program: Path, part: str, seconds: float, seed: int) -> tuple[bool, str]:
    """Run one part; return whether it passed, and what it said."""
    command = [str(program), part, str(seconds), str(seed)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds + HANG_S, check=False,
            env={**os.environ, **OPTIONS},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False, f"hangs: {' '.join(command)}"
    if done.returncode == 0:
        return True, done.stdout.strip()
    return False, f"exit status {done.returncode}: {' '.join(command)}\n{done.stderr.strip()}"


def run_jobs(jobs: list[tuple[str, str, str]], folder: Path, seconds: float, seed: int) -> bool:
    """Run jobs one after the other, with a line for each; return whether all passed."""
    well = True
    for part, name, build in jobs:
        trouble = find_trouble(build, folder)
        if trouble and build == "race":
            print(f"{name} {part} ({build}): left out, {trouble}", flush=True)
            continue
        if trouble:
            raise SystemExit(f"no {build} build here: {trouble}")
        program = make_program(name, build, folder)
        passed, said = run_job(program, part, seconds / len(jobs), seed)
        print(f"{name} {part} ({build}): {'' if passed else 'FAILED, '}{said}", flush=True)
        well = well and passed
    return well


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=40.0, help="default: %(default)g")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)d")
    parser.add_argument("--only", choices=sorted({job[0] for job in JOBS}), help="one part")
    parser.add_argument("--build", type=Path, help="keep the programs in this folder")
    args = parser.parse_args()
    jobs = [job for job in JOBS if args.only in (None, job[0])]
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.build or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        return 0 if run_jobs(jobs, folder, args.seconds, args.seed) else 1


if __name__ == "__main__":
    sys.exit(main())
