"""A session folder damaged at random: right rows or one clear line, never anything else.

Run as a program, this file tries cases and reports them as lines of JSON; the tests do so in
processes of their own, because a crash or a hang is one of the things that must not be."""

from __future__ import annotations

import faulthandler
import json
import math
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import sonde
from sonde import cli
from sonde.errors import QueryError
from sonde.store import archive
from sonde.store.recording import Recording
from support import damage
from support.places import TESTS

CASES = 4  # of each kind of folder; `make stress` tries more
CASE_S = (
    120.0  # far more than any case takes, on a machine that others use as well; past it, it hangs
)
PROGRAM = """
import sys
import sonde
from sonde.collector.drain import Drain, seal
from sonde.session import Session

sys.path.insert(0, sys.argv[1])
from store.test_damage import Sample, make_row

emit = sonde.table(Sample)
folder = sonde.start(collector="off", ring_bytes="16KiB", text_bytes="16KiB")
for n in range(120):
    emit(*make_row(n))
session = Session(folder)
for path in session.find_rings():
    Drain(session, path).run(0.0, 0.0, True)
for n in range(120, 240):
    emit(*make_row(n))
if sys.argv[2] == "sealed":
    sonde.stop()
    for path in session.find_rings():
        Drain(session, path).run(0.0, 0.0, True)
    seal(session)
print(folder)
"""


class Sample:
    """Every value follows from `n`."""

    t_ns: sonde.i64
    n: sonde.i64
    label: sonde.text
    value: sonde.f64
    big: sonde.u64
    maybe: sonde.i32 | None
    flag: bool


def make_row(n: int) -> tuple[object, ...]:
    big = n * 0x9E3779B97F4A7C15 % 2**64
    return n * 1000, n, f"label {n % 40}", math.sqrt(n), big, n if n % 3 else None, n % 2 == 1


# ---- the judge -----------------------------------------------------------------------------------------


class Judge:
    """Knows every row of the sound folder."""

    def __init__(self, folder: Path) -> None:
        recording = sonde.open(str(folder))
        tables = [schema.table for schema in recording.tables()]
        self.rows = {
            table: recording.query(f"SELECT * FROM {table}").to_pylist() for table in tables
        }
        samples = sorted(self.rows["job.sample"], key=lambda row: row["n"])
        own = [tuple(row[name] for name in Sample.__annotations__) for row in samples]
        assert own == [make_row(n) for n in range(240)]

    def find_trouble(self, folder: Path) -> str | None:
        """What is wrong with the answers about a damaged folder; None if nothing is."""
        try:
            recording = sonde.open(str(folder))
            here = {schema.table for schema in recording.tables()}
        except Exception as error:
            return _judge(error)
        # Those that hold rows; one whose only file is gone is not there, and says so.
        tables = [table for table, rows in self.rows.items() if rows and table in here]
        named = ", ".join(f'(SELECT list(x) FROM {table} x) AS "{table}"' for table in tables)
        try:
            (whole,) = recording.query(f"SELECT {named}", timeout_s=CASE_S).to_pylist()
            return self._find_wrong(whole)
        except Exception:
            troubles = (self._find_in_table(recording, table) for table in tables)
            return next(filter(None, troubles), None)

    def _find_in_table(self, recording: Recording, table: str) -> str | None:
        try:
            rows = recording.query(f"SELECT * FROM {table}", timeout_s=CASE_S).to_pylist()
        except Exception as error:
            trouble = _judge(error)
            return trouble and f"{table}: {trouble}"
        return self._find_wrong({table: rows})

    def _find_wrong(self, answers: dict[str, list[dict[str, object]] | None]) -> str | None:
        for table in ("job.sample", "python.gc_pause", "sonde.source_log"):
            left = list(self.rows[table])
            for row in answers.get(table) or []:
                match = next((one for one in left if _is_same(row, one)), None)
                if match is None:
                    return f"{table} has a row that was not written: {row}"
                left.remove(match)
        return None


def _judge(error: Exception) -> str | None:
    """What is wrong with an error; None for one line that a user can act on."""
    if not isinstance(error, sonde.Error):
        return f"{type(error).__name__}: {error}"
    if isinstance(error, QueryError):
        return f"the SQL is blamed: {error}"
    return None if len(str(error).splitlines()) == 1 else f"more than a line: {error}"


def _is_same(row: dict[str, object], right: dict[str, object]) -> bool:
    """A text may be NULL instead: it is left out where it cannot be read."""
    return all(
        row[name] == value or (row[name] is None and isinstance(value, str))
        for name, value in right.items()
    )


def try_cases(base: Path, scratch: Path, seed: int, first: int, count: int) -> None:
    """Report each case before it is tried, so that a crash has a name, and its trouble after."""
    judge = Judge(base)
    for number in range(first, first + count):
        faulthandler.dump_traceback_later(CASE_S, exit=True)
        folder = scratch / base.name
        shutil.copytree(base, folder)
        dice = random.Random(seed * 1_000_000 + number)
        said = "; ".join(damage.strike(dice, folder) for _ in range(dice.choice([1, 1, 1, 2])))
        print(json.dumps({"case": number, "damage": said}), flush=True)
        trouble = judge.find_trouble(folder)
        if trouble:
            print(json.dumps({"case": number, "damage": said, "trouble": trouble}), flush=True)
        shutil.rmtree(folder)
    faulthandler.cancel_dump_traceback_later()
    print(json.dumps({"done": count}), flush=True)


# ---- the tests ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Sound sessions of processes that have ended: in rings and archive, and sealed."""
    found = {}
    for kind in ("rings", "sealed"):
        root = tmp_path_factory.mktemp(f"base-{kind}")
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(TESTS), kind],
            capture_output=True, text=True, timeout=240, check=True,
            env={**os.environ, "SONDE_DIR": str(root)},
        )  # fmt: skip
        found[kind] = Path(done.stdout.strip())
    return found


def test_a_damaged_folder_gives_right_rows_or_one_clear_line(
    bases: dict[str, Path], tmp_path: Path
) -> None:
    trials = []
    for kind, base in bases.items():
        command = [
            sys.executable,
            "-m",
            "store.test_damage",
            str(base),
            str(tmp_path / kind),
            "1",
            "0",
            str(CASES),
        ]
        trials.append(
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=TESTS
            )
        )
    try:
        answers = [trial.communicate(timeout=20 * CASE_S) for trial in trials]
    finally:
        for trial in trials:
            trial.kill()
    for trial, (said, errors) in zip(trials, answers, strict=True):
        lines = [json.loads(line) for line in said.splitlines()]
        assert [line for line in lines if "trouble" in line] == []
        assert lines[-1:] == [{"done": CASES}], (lines[-1:], trial.returncode, errors)


COMMANDS = (
    ("rings", "job.sample.ring", damage.cut),
    ("rings", "job.sample.ring", damage.bump_version),
    ("rings", "job.sample.ring", damage.replace_by_garbage),
    ("rings", "job.sample.ring", damage.replace_by_folder),
    ("rings", "job.sample.ring", damage.replace_by_link),
    ("rings", "job.sample.ring", damage.replace_by_fifo),
    ("rings", "text.intern", damage.remove),
    ("rings", "text.intern", damage.replace_by_link),
    ("rings", "text.intern", damage.replace_by_fifo),
    ("rings", "text.intern", damage.bump_version),
    ("rings", "meta.json", damage.remove),
    ("rings", "meta.json", damage.swap),
    ("rings", "meta.json", damage.replace_by_fifo),
    ("rings", "meta.json", damage.bump_version),
    ("sealed", "sealed.json", damage.replace_by_garbage),
    ("sealed", "sealed.json", damage.replace_by_fifo),
)


@pytest.mark.parametrize(("kind", "name", "way"), COMMANDS)
def test_the_command_says_in_one_line_that_a_file_is_damaged(
    kind: str, name: str, way: Callable[..., str | None], bases: dict[str, Path], tmp_path: Path,
    sonde_cli: Callable[..., subprocess.CompletedProcess[str]],
) -> None:  # fmt: skip
    folder = tmp_path / bases[kind].name
    shutil.copytree(bases[kind], folder)
    said = way(random.Random(7), next(folder.glob(name)), folder)
    done = sonde_cli("query", folder, "SELECT * FROM job.sample")
    assert done.returncode == 4, (said, done.stdout, done.stderr)
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("sonde: "), done.stderr


@pytest.mark.parametrize(
    "way",
    [damage.cut, damage.flip, damage.blank, damage.replace_by_garbage, damage.replace_by_fifo],
)
def test_the_rows_of_a_damaged_segment_are_left_out_and_counted(
    way: Callable[..., str | None], bases: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / bases["sealed"].name
    shutil.copytree(bases["sealed"], folder)
    way(random.Random(7), sorted(folder.glob("archive/job.sample/*/*"))[1], folder)
    recording = sonde.open(str(folder))
    rows = recording.query("SELECT n FROM job.sample ORDER BY n").to_pylist()
    assert [row["n"] for row in rows] == list(range(120))
    query = "SELECT kept, corrupt, written FROM sonde.loss WHERE table_name = 'job.sample'"
    assert recording.query(query).to_pylist() == [{"kept": 120, "corrupt": 120, "written": 240}]


def test_the_command_says_once_which_archived_files_it_leaves_out(
    bases: dict[str, Path], tmp_path: Path,
    sonde_cli: Callable[..., subprocess.CompletedProcess[str]],
) -> None:  # fmt: skip
    folder = tmp_path / bases["sealed"].name
    shutil.copytree(bases["sealed"], folder)
    first, second = sorted(folder.glob("archive/job.sample/*/*"))[:2]
    second.rename(second.with_name("copy of it.parquet"))
    damage.flip(random.Random(7), first, folder)
    done = sonde_cli("query", folder, "SELECT COUNT(*) AS n FROM job.sample", "--format", "csv")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"sonde: {first} and 1 more: not what was archived"), line
    assert (done.returncode, done.stdout) == (0, "n\n0\n")


def test_a_command_is_silent_about_what_its_caller_left_out_before(
    capsys: pytest.CaptureFixture[str],
) -> None:
    archive.left_out.add("elsewhere.parquet")
    assert cli.main(("tables",)) == 0
    assert capsys.readouterr().err == ""


def test_the_command_says_in_one_line_that_a_folder_is_gone(
    tmp_path: Path, sonde_cli: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    done = sonde_cli("query", tmp_path / "gone", "SELECT * FROM job.sample")
    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("sonde: "), done.stderr


if __name__ == "__main__":
    try_cases(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:6]))
