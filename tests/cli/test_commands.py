"""The command line as a user meets it: formats, exit codes, one line for what went wrong."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sonde
from sonde import cli, plugins
from sonde.cli import _table

SQL = "SELECT n, real, name FROM job.cli ORDER BY n"
ROWS = [
    {"n": -(2**63), "real": 0.1, "name": 'a "quoted", one'},
    {"n": 0, "real": None, "name": None},
    {"n": 2**63 - 1, "real": float("inf"), "name": "line\nbreak"},
]


class Row:
    n: int
    real: float | None
    name: str | None


@pytest.fixture
def pid() -> int:
    emit = sonde.table(Row, "job.cli")
    sonde.start(collector="off")
    for row in ROWS:
        emit(*row.values())
    return os.getpid()


def test_json_is_exact(pid: int, sonde_cli) -> None:
    done = sonde_cli("query", pid, SQL, "--format", "json")
    assert done.returncode == 0
    assert json.loads(done.stdout) == [*ROWS[:2], {**ROWS[2], "real": None}]


def test_csv_is_exact(pid: int, sonde_cli) -> None:
    done = sonde_cli("query", pid, SQL, "--format", "csv")
    rows = list(csv.reader(io.StringIO(done.stdout, newline="")))
    assert rows == [
        ["n", "real", "name"], ["-9223372036854775808", "0.1", 'a "quoted", one'],
        ["0", "", ""], ["9223372036854775807", "inf", "line\nbreak"],
    ]  # fmt: skip


TIMES = """SELECT 'infinity'::TIMESTAMP AS a, '-infinity'::DATE AS b, '0044-03-15 (BC)'::DATE AS c,
'2020-01-01 00:00:00.123456789'::TIMESTAMP_NS AS d, ['infinity'::TIMESTAMP] AS e,
{'k': 'infinity'::TIMESTAMPTZ} AS f, NULL AS g"""


def test_times_that_python_does_not_have_are_shown(pid: int, sonde_cli) -> None:
    done = sonde_cli("query", pid, TIMES, "--format", "json")
    assert json.loads(done.stdout) == [{
        "a": "infinity", "b": "-infinity", "c": "-0043-03-15", "d": "2020-01-01 00:00:00.123456789",
        "e": ["infinity"], "f": {"k": "infinity"}, "g": None,
    }]  # fmt: skip
    for form in ("table", "csv"):
        assert "infinity" in sonde_cli("query", pid, TIMES, "--format", form).stdout


@pytest.mark.parametrize("to_file", [True, False])
def test_arrow_and_parquet_open_in_their_readers(pid: int, tmp_path: Path, to_file: bool) -> None:
    for form, read in (
        ("arrow", lambda f: pa.ipc.open_stream(f).read_all()),
        ("parquet", pq.read_table),
    ):
        path = tmp_path / f"out.{form}"
        command = [sys.executable, "-m", "sonde", "query", str(pid), SQL, "--format", form]
        if to_file:
            subprocess.run([*command, "-o", str(path)], check=True)
        else:
            path.write_bytes(subprocess.run(command, check=True, capture_output=True).stdout)
        with open(path, "rb") as file:
            assert read(file).to_pylist() == ROWS


def test_a_table_in_a_pipe_is_plain_and_whole(pid: int, sonde_cli) -> None:
    done = sonde_cli("query", pid, "SELECT repeat('x', 300) AS wide, NULL AS nothing")
    assert "\x1b" not in done.stdout and "x" * 300 in done.stdout and "\N{EN DASH}" in done.stdout


def run_in_terminal(columns: int, *args: str) -> str:
    """What the command draws on a terminal of this width."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "COLUMNS": str(columns), "LINES": "24", "TERM": "xterm"}
    process = subprocess.Popen([sys.executable, "-m", "sonde", *args], stdout=theirs, env=env)
    os.close(theirs)
    drawn = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:
            break
        if not piece:
            break
        drawn += piece
    os.close(ours)
    assert process.wait() == 0
    return drawn.decode()


def test_a_table_on_a_terminal_fits_its_width(pid: int) -> None:
    drawn = run_in_terminal(
        60, "query", str(pid), "SELECT repeat('x', 300) AS wide, 7 AS n, NULL AS z"
    )
    plain = drawn.replace("\x1b[1m", "").replace("\x1b[2m", "").replace("\x1b[0m", "")
    assert "\x1b[1m" in drawn and "…" in plain
    assert max(len(line) for line in plain.splitlines()) <= 60
    assert "\N{EN DASH}" in plain


def test_control_characters_in_a_name_do_not_reach_the_terminal(pid: int) -> None:
    drawn = run_in_terminal(80, "query", str(pid), "SELECT chr(27) || '[31mred' AS name")
    assert "\x1b[31m" not in drawn and "\\x1b[31mred" in drawn


def test_fit_narrows_the_widest_only() -> None:
    assert _table.fit([5, 50, 10], 40) == [5, 21, 10]
    assert _table.fit([5, 5], 80) == [5, 5]
    assert _table.fit([50] * 10, 34) == [10] * 3  # the rest find no room


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("query", "999999999", "SELECT 1"), 3, "there is no process 999999999"),
        (("query", "/nowhere/at/all", "SELECT 1"), 3, "not a folder"),
        (("query", "PID", "SELECT * FROM nothing"), 5, "does not exist"),
        (("query", "PID", "SELECT 1", "--format", "csv", "-o", "/nowhere/x"), 1, "No such file"),
        (("config", "PID", "nonsense"), 2, "not KEY=VALUE"),
        (("frobnicate",), 2, "there is no command frobnicate; `sonde --help` lists them"),
        (("stak", "PID"), 2, "did you mean stacks?"),
        (("hlep",), 2, "did you mean help?"),
        (("tree", "PID", "-n", "-3"), 2, "--limit -3 is no count: write a whole number from 0"),
        (
            ("capture", "PID", "--steps", "0"),
            2,
            "--steps 0 is no count: write a whole number from 1",
        ),
        (("config", "stack.every=5ms"), 2, "`sonde config TARGET stack.every=5ms` changes"),
        (("stacks", "PID", "--timeout", "soon"), 2, "--timeout 'soon' is not a time"),
        (("stacks", "PID", "--time", "1"), 2, "unknown arguments --time 1"),
        (("export", "PID", "--to", "chrme"), 2, "did you mean chrome?"),
        (("top", "PID", "--wndow", "5s"), 2, "did you mean --window?"),
        ((), 2, "usage: sonde"),
    ],
)
def test_errors_are_short_and_have_their_exit_code(pid, sonde_cli, args, code, said) -> None:
    done = sonde_cli(*(str(pid) if word == "PID" else word for word in args))
    assert done.returncode == code and said in done.stderr
    assert "Traceback" not in done.stderr and done.stdout == ""


def list_commands() -> list[tuple[str, ...]]:
    """Every command and sub-command, as the words that call it."""
    found: list[tuple[str, ...]] = []
    for name in plugins.list_names("cli"):
        found.append((name,))
        folder = Path(cli.__file__).parent / f"{name}_commands"
        if folder.is_dir():
            found += [(name, one) for one in plugins.list_names(f"cli.{folder.name}")]
    return found


def load(words: tuple[str, ...]) -> ModuleType:
    return plugins.load("cli" if len(words) == 1 else f"cli.{words[0]}_commands", words[-1])


@pytest.mark.parametrize("words", list_commands(), ids=" ".join)
def test_the_examples_of_a_command_can_be_parsed(words: tuple[str, ...]) -> None:
    module = load(words)
    assert 2 <= len(module.EXAMPLES) <= 3
    for line in module.EXAMPLES:
        command = re.split("  |; | < | && ", line)[0]
        first, *rest = shlex.split(command)
        assert first == "sonde" and rest[0] == words[0]
        ours = rest[: rest.index("--")] if "--" in rest and words != ("run",) else rest
        assert cli.make_parser(ours).parse_args(ours).run


def test_every_command_is_in_a_group_of_the_help(sonde_cli) -> None:
    said = " ".join(sonde_cli("--help").stdout.split())
    for (name,) in (words for words in list_commands() if len(words) == 1):
        assert load((name,)).GROUP in cli.GROUPS
        assert f" {name} {plugins.read_help('cli', name)} " in said


@pytest.mark.parametrize("words", list_commands(), ids=" ".join)
def test_help_fits_a_terminal_and_says_what_a_target_is_where_one_is_taken(
    words: tuple[str, ...], monkeypatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit), redirect_stdout(io.StringIO()) as said:
        cli.make_parser(words).parse_args([*words, "--help"])
    assert max(map(len, said.getvalue().splitlines())) <= 80
    usage, _, rest = said.getvalue().partition("\n\n")
    takes = "TARGET" in usage
    assert ("TARGET is a pid" in rest) == takes, usage


def test_a_reader_that_leaves_early_is_no_error(pid: int) -> None:
    command = f"{sys.executable} -m sonde query {pid} 'SELECT * FROM range(200000)' | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "range" and done.stderr == ""


def test_sql_can_come_from_stdin(pid: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sonde", "query", str(pid), "-"], input="SELECT 41 + 1 AS a",
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["a", "42"]


def test_ps_lists_what_runs_and_what_ended(pid: int, run, sonde_cli) -> None:
    run("import sonde; sonde.start(collector='off')")
    rows = json.loads(sonde_cli("ps", "--format", "json").stdout)
    assert [row["state"] for row in rows] == ["running", "ended"]
    assert rows[0]["pid"] == pid
    assert rows[0]["dur_ns"] > 0 and rows[0]["size_bytes"] > 0
    running = sonde_cli("ps", "--running").stdout
    assert str(pid) in running and "ended" not in running


def test_ps_of_nothing_says_how_to_begin(sonde_cli) -> None:
    done = sonde_cli("ps")
    assert done.returncode == 0 and "sonde run" in done.stdout
    assert json.loads(sonde_cli("ps", "--format", "json").stdout) == []


def test_ps_names_what_it_cannot_read(pid: int, root: Path, sonde_cli) -> None:
    (root / "foreign").mkdir()
    done = sonde_cli("ps")
    assert done.returncode == 0 and str(pid) in done.stdout
    assert done.stderr.startswith("sonde: ") and "foreign is not a session folder" in done.stderr


def test_tables_are_described(pid: int, sonde_cli) -> None:
    done = sonde_cli("tables", pid)
    assert "job.cli" in done.stdout and "duration" in done.stdout
    one = json.loads(sonde_cli("tables", pid, "--table", "gc_pause", "--format", "json").stdout)
    assert {row["table"] for row in one} == {"python.gc_pause"} and one[0]["unit"] == "ns"
    everything = sonde_cli("tables")
    assert "system.cpu" in everything.stdout and "sonde.loss" in everything.stdout


def test_the_demo_finds_the_line_and_shows_that_its_fix_helped(sonde_cli) -> None:
    done = sonde_cli("demo", "--plain", "--duration", "6", SONDE_COLLECTOR="on")
    assert done.returncode == 0 and not done.stderr, done.stderr
    found, changed = done.stdout.split("The fix")
    words = " ".join(found.split())  # a long path has the line wrapped
    assert "[gc_pauses]" in words and re.search(r"orders.py:\d+ in \S*sell", words)
    assert re.search(r"garbage collection .* much better", changed)
    before, after = map(float, re.findall(r"an order takes ([\d.]+) ms", done.stdout))
    assert after < before
    last = done.stdout.splitlines()[-1]
    assert "<title>" in Path(last.rpartition(" ")[2]).read_text(encoding="utf-8")


def test_version() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sonde", "--version"], capture_output=True, text=True
    )
    assert done.stdout.strip() == f"sonde {sonde.__version__}"


WIDE = ", ".join(f"repeat('{letter}', 15000) AS {letter}" for letter in "abcdef")


@pytest.mark.parametrize("sql", (
    f"SELECT {WIDE} FROM range(100000)", "SELECT repeat('a', 100000000) FROM range(1000)",
    "SELECT string_agg(repeat('a', 1000000)) FROM range(100000)",
))  # fmt: skip
def test_a_query_and_its_result_stay_within_the_memory_they_may_use(pid: int, sql: str) -> None:
    code = """
import resource, subprocess, sys
done = subprocess.run([sys.executable, "-m", "sonde", *sys.argv[1:]])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
raise SystemExit(done.returncode)
"""
    words = ("query", str(pid), sql, "--memory", "300MiB", "--format", "csv")
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 5 and done.stderr.startswith("sonde: the query or its result needs")
    assert done.stderr.count("\n") == 1
    # In KiB: 300 MiB, what Python and its packages take, and stacks for as many threads.
    assert int(done.stdout) < 1_000_000 + 16_000 * (os.cpu_count() or 1)
