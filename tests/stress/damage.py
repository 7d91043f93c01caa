"""Damage session folders at random: right rows or one clear line, never anything else.

    python tests/stress/damage.py [CASES] [SEED]        default: 1000 of each kind of folder, any seed

The tests do the same for a few cases; see tests/store/test_damage.py."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from store.test_damage import PROGRAM
from support.places import TESTS


def main() -> None:
    cases = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(10**6)
    failed = 0
    for kind in ("rings", "sealed"):
        with tempfile.TemporaryDirectory() as folder:
            failed += strike(kind, Path(folder), cases, seed)
    sys.exit(1 if failed else 0)


def strike(kind: str, folder: Path, cases: int, seed: int) -> int:
    """Try so many cases on one kind of folder; how many of them had trouble."""
    made = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(TESTS), kind], capture_output=True, text=True, check=True,
        env={**os.environ, "SONDE_DIR": str(folder / "base")},
    )  # fmt: skip
    words = [made.stdout.strip(), str(folder / "scratch"), str(seed), "0", str(cases)]
    (folder / "scratch").mkdir()
    tried = subprocess.run(
        [sys.executable, "-m", "store.test_damage", *words], capture_output=True, text=True,
        check=False, cwd=TESTS,
    )  # fmt: skip
    lines = [json.loads(line) for line in tried.stdout.splitlines()]
    troubles = [line for line in lines if "trouble" in line]
    whole = lines[-1:] == [{"done": cases}]
    print(
        f"{kind}: seed {seed}, {cases} cases, {len(troubles)} with trouble", *troubles, sep="\n  "
    )
    if not whole:
        print(f"  it ended early, with {tried.returncode}: {lines[-1:]} {tried.stderr}")
    return len(troubles) + (not whole)


if __name__ == "__main__":
    main()
