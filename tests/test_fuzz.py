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
from sonde.errors import QueryError
from sonde.query import Recording

CASES = 150  # of each kind of folder
CASE_S = 20.0  # far more than any case takes; past it, it hangs
FROM_META = ("ts", "host", "pid", "rank")  # what meta.json says, which nothing can vouch for
PROGRAM = """
import sys
import sonde
from sonde.drain import Drain, seal
from sonde.session import Session

sys.path.insert(0, sys.argv[1])
from test_fuzz import Sample, make_row

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


# ---- damage: what it was, in words, or None if it does not apply ------------------------------------


def _list_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def cut(dice: random.Random, path: Path, folder: Path) -> str | None:
    size = path.stat().st_size
    left = dice.choice(
        [0, 1, 8, 63, 64, 255, 256, 4096, size - 1, size // 2, dice.randint(0, size)]
    )
    if not 0 <= left < size:
        return None
    os.truncate(path, left)
    return f"cut to {left} of {size} bytes"


def lengthen(dice: random.Random, path: Path, folder: Path) -> str | None:
    with path.open("ab") as file:
        file.write(dice.randbytes(dice.choice([1, 7, 64, 5000])))
    return "garbage behind its end"


def flip(dice: random.Random, path: Path, folder: Path) -> str | None:
    data = bytearray(path.read_bytes())
    if not data:
        return None
    within = dice.choice([len(data), min(len(data), 256)])
    places = [dice.randrange(within * 8) for _ in range(dice.choice([1, 1, 2, 8]))]
    for place in places:
        data[place // 8] ^= 1 << place % 8
    path.write_bytes(data)
    return f"bits flipped: {places}"


def overwrite(dice: random.Random, path: Path, folder: Path) -> str | None:
    data = bytearray(path.read_bytes())
    if len(data) < 8:
        return None
    at = dice.randrange(dice.choice([len(data), min(len(data), 256)]) // 8) * 8
    value = dice.choice([0, 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1, len(data)])
    data[at : at + 8] = value.to_bytes(8, "little")
    path.write_bytes(data)
    return f"{value} at {at}"


def blank(dice: random.Random, path: Path, folder: Path) -> str | None:
    data = bytearray(path.read_bytes())
    first = dice.randrange(len(data) + 1)
    length = min(dice.choice([8, 512, 4096]), len(data) - first)
    data[first : first + length] = bytes(length)
    path.write_bytes(data)
    return f"zeros at {first}, {length} of them"


def remove(dice: random.Random, path: Path, folder: Path) -> str:
    path.unlink()
    return "removed"


def replace_by_garbage(dice: random.Random, path: Path, folder: Path) -> str | None:
    path.write_bytes(dice.randbytes(dice.choice([1, 63, 64, 4096, 20_000])))
    return "garbage"


def replace_by_folder(dice: random.Random, path: Path, folder: Path) -> str | None:
    path.unlink()
    path.mkdir()
    return "a folder"


def replace_by_link(dice: random.Random, path: Path, folder: Path) -> str | None:
    target = dice.choice([path, folder / "nowhere", Path("/dev/zero"), Path("/dev/null"), folder])
    path.unlink()
    path.symlink_to(target)
    return f"a link to {'itself' if target == path else target.name}"


def replace_by_fifo(dice: random.Random, path: Path, folder: Path) -> str | None:
    path.unlink()
    os.mkfifo(path)
    return "a fifo"


def swap(dice: random.Random, path: Path, folder: Path) -> str | None:
    other = dice.choice(_list_files(folder))
    hidden = folder / "hidden"
    path.rename(hidden)
    other.rename(path) if other != path else None
    hidden.rename(other)
    return f"swapped with {other.relative_to(folder)}"


def renumber(dice: random.Random, path: Path, folder: Path) -> str | None:
    if path.suffix != ".parquet":
        return None
    first, last, *rest = path.stem.split("-")
    last = str(dice.choice([int(last) + 7, 2**63, 2**64, 2**64 + 60, 10**25]))
    name = "-".join([first, last.zfill(20), *rest])
    path.rename(path.with_name(f"{name}.parquet"))
    return f"renamed to {name}"


def bump_version(dice: random.Random, path: Path, folder: Path) -> str | None:
    data = bytearray(path.read_bytes())
    if data[:5] == b"SONDE":
        data[8:12] = dice.choice([2, 2**32 - 1]).to_bytes(4, "little")
        path.write_bytes(data)
        return "a newer version"
    if b'"format": 1' in data:
        path.write_bytes(
            data.replace(b'"format": 1', dice.choice([b'"format": 2', b'"format": 1e9']))
        )
        return "a newer format"
    return None


def edit_json(dice: random.Random, path: Path, folder: Path) -> str | None:
    try:
        whole = json.loads(path.read_text()) if path.suffix == ".json" else None
    except ValueError:
        return None  # damaged before
    if not whole:
        return None
    place, words = whole, [path.name]
    while True:
        key = dice.choice(list(place))
        words.append(key)
        if not isinstance(place[key], dict) or not place[key] or dice.random() < 0.2:
            break
        place = place[key]
    odd = [None, True, -1, 2**63, 2**64, 10**30, 1.5, float("nan"), "", "x", "\ud800", "\0", [], {}]
    value = dice.choice([*odd, [[]], ["\udc80"], {"a": 1}])
    place[key] = value
    path.write_text(json.dumps(whole))
    return f"{'.'.join(words)} = {value!r}"


DAMAGES = (
    cut, lengthen, flip, flip, overwrite, blank, remove, replace_by_garbage, replace_by_folder,
    replace_by_link, replace_by_fifo, swap, renumber, bump_version, edit_json, edit_json,
)  # fmt: skip


def damage(dice: random.Random, folder: Path) -> str:
    """Damage a file of the folder; which and how."""
    while True:
        path, way = dice.choice(_list_files(folder)), dice.choice(DAMAGES)
        said = way(dice, path, folder)
        if said:
            return f"{path.relative_to(folder)}: {said}"


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

    def find_trouble(self, folder: Path, said: str) -> str | None:
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
            return self._find_wrong(whole, said)
        except Exception:
            troubles = (self._find_in_table(recording, table, said) for table in tables)
            return next(filter(None, troubles), None)

    def _find_in_table(self, recording: Recording, table: str, said: str) -> str | None:
        try:
            rows = recording.query(f"SELECT * FROM {table}", timeout_s=CASE_S).to_pylist()
        except Exception as error:
            trouble = _judge(error)
            return trouble and f"{table}: {trouble}"
        return self._find_wrong({table: rows}, said)

    def _find_wrong(
        self, answers: dict[str, list[dict[str, object]] | None], said: str
    ) -> str | None:
        for table in ("job.sample", "python.gc_pause", "sonde.source_log"):
            left = list(self.rows[table])
            for row in answers.get(table) or []:
                match = next((one for one in left if _is_same(row, one, "meta.json" in said)), None)
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


def _is_same(row: dict[str, object], right: dict[str, object], meta_damaged: bool) -> bool:
    """A text may be NULL instead: it is left out where it cannot be read."""
    return all(
        row[name] == value
        or (row[name] is None and isinstance(value, str))
        or (meta_damaged and name in FROM_META)
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
        said = "; ".join(damage(dice, folder) for _ in range(dice.choice([1, 1, 1, 2])))
        print(json.dumps({"case": number, "damage": said}), flush=True)
        trouble = judge.find_trouble(folder, said)
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
            [sys.executable, "-c", PROGRAM, str(Path(__file__).parent), kind],
            capture_output=True, text=True, timeout=60, check=True,
            env={**os.environ, "SONDE_DIR": str(root)},
        )  # fmt: skip
        found[kind] = Path(done.stdout.strip())
    return found


def test_a_damaged_folder_gives_right_rows_or_one_clear_line(
    bases: dict[str, Path], tmp_path: Path
) -> None:
    trials = []
    for kind, base in bases.items():
        command = [sys.executable, __file__, str(base), str(tmp_path / kind), "1", "0", str(CASES)]
        trials.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    try:
        answers = [trial.communicate(timeout=300) for trial in trials]
    finally:
        for trial in trials:
            trial.kill()
    for trial, (said, errors) in zip(trials, answers, strict=True):
        lines = [json.loads(line) for line in said.splitlines()]
        assert [line for line in lines if "trouble" in line] == []
        assert lines[-1:] == [{"done": CASES}], (lines[-1:], trial.returncode, errors)


COMMANDS = (
    ("rings", "job.sample.ring", cut),
    ("rings", "job.sample.ring", bump_version),
    ("rings", "job.sample.ring", replace_by_garbage),
    ("rings", "job.sample.ring", replace_by_folder),
    ("rings", "job.sample.ring", replace_by_link),
    ("rings", "job.sample.ring", replace_by_fifo),
    ("rings", "text.intern", remove),
    ("rings", "text.intern", replace_by_link),
    ("rings", "text.intern", replace_by_fifo),
    ("rings", "text.intern", bump_version),
    ("rings", "meta.json", remove),
    ("rings", "meta.json", swap),
    ("rings", "meta.json", replace_by_fifo),
    ("rings", "meta.json", bump_version),
    ("sealed", "sealed.json", replace_by_garbage),
    ("sealed", "sealed.json", replace_by_fifo),
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
    "way", [cut, flip, blank, replace_by_garbage, replace_by_folder, replace_by_link, replace_by_fifo]
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


def test_the_command_says_in_one_line_that_a_folder_is_gone(
    tmp_path: Path, sonde_cli: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    done = sonde_cli("query", tmp_path / "gone", "SELECT * FROM job.sample")
    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("sonde: "), done.stderr


if __name__ == "__main__":
    try_cases(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:6]))
