"""SQL over recordings: right answers, locked down, errors a person can act on."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

import sonde
from conftest import wait_for
from sonde.collector.drain import Drain, seal
from sonde.errors import NoSession, QueryError
from sonde.session import Session
from sonde.store.recording import Recording
from sonde.store.statement import qualify
from support.places import GOLDEN


class Thing:
    """All kinds at once."""

    small: sonde.i8
    big: sonde.u64
    real: sonde.f64 | None
    name: sonde.text | None
    flag: bool


ROWS = [
    (-128, 2**64 - 1, -0.0, "plain", True),
    (127, 0, None, None, False),
    (0, 2**53 + 1, math.inf, "quote ' and \" and \\ and \n", True),
    (1, 1, 5e-324, "emoji 🦀 and NUL \x00", False),
    (2, 2, 0.1 + 0.2, "", True),
]


@pytest.fixture
def recorded() -> Recording:
    emit = sonde.table(Thing, "job.thing")
    sonde.start(collector="off")
    for row in ROWS:
        emit(*row)
    return sonde.open(os.getpid())


def test_values_come_back_exactly(recorded: Recording) -> None:
    table = recorded.query("SELECT small, big, real, name, flag FROM job.thing ORDER BY t_ns")
    assert [tuple(row.values()) for row in table.to_pylist()] == ROWS
    assert math.copysign(1, table.to_pylist()[0]["real"]) == -1


def test_a_table_is_found_though_the_text_does_not_spell_its_name(recorded: Recording) -> None:
    sql = "SELECT count(*) AS n FROM query_table('job.' || 'th' || 'ing')"
    assert recorded.query(sql)["n"].to_pylist() == [len(ROWS)]
    with recorded.freeze() as still:
        assert still.query(sql)["n"].to_pylist() == [len(ROWS)]
        assert [piece["n"].to_pylist() for piece in still.stream(sql)] == [[len(ROWS)]]
    assert [piece["n"].to_pylist() for piece in recorded.stream(sql)] == [[len(ROWS)]]


def test_tables_are_listed_where_sql_users_look(recorded: Recording) -> None:
    sql = "SELECT table_schema || '.' || table_name AS t FROM information_schema.tables ORDER BY t"
    names = recorded.query(sql)["t"].to_pylist()
    assert names == sorted(schema.table for schema in recorded.tables())
    assert {"job.thing", "python.gc_pause", "sonde.loss", "sonde.source", "sonde.session"} <= set(
        names
    )
    columns = recorded.query("DESCRIBE job.thing")["column_name"].to_pylist()
    assert columns == ["t_ns", "small", "big", "real", "name", "flag", "ts", "host", "pid", "rank"]


def test_every_row_says_when_and_where(recorded: Recording) -> None:
    row = recorded.query("SELECT * FROM job.thing LIMIT 1").to_pylist()[0]
    assert row["pid"] == os.getpid() and row["host"] == os.uname().nodename and row["rank"] is None
    assert abs(row["ts"].timestamp() - time.time()) < 60


def test_only_the_tables_a_query_names_are_read(recorded: Recording, monkeypatch) -> None:
    from sonde.store.rows import SessionTable

    read: list[str] = []
    original = SessionTable.read_live

    def spy(self: SessionTable) -> pa.Table:
        read.append(self.schema.table)
        return original(self)

    monkeypatch.setattr(SessionTable, "read_live", spy)
    recorded.query("SELECT 1")
    recorded.query("SELECT * FROM information_schema.columns")
    assert read == []
    recorded.query("SELECT a.name FROM job.thing a JOIN job.thing b USING (name)")
    assert read == ["job.thing"]  # once: both sides of a join see the same rows


FORBIDDEN = [
    "UPDATE EXTENSIONS",
    "CREATE TABLE x (a INT)", "INSERT INTO job.thing VALUES (1)", "DROP VIEW job.thing",
    "COPY (SELECT 1) TO 'out.csv'", "COPY job.thing TO 'out.parquet'", "ATTACH 'x.db'",
    "INSTALL httpfs", "LOAD httpfs", "SET threads = 1", "RESET threads",
    "CALL pragma_version()", "EXPORT DATABASE 'x'", "IMPORT DATABASE 'x'", "VACUUM", "CHECKPOINT",
    "SELECT 1; SELECT 2", "SELECT * FROM read_csv('/etc/passwd')", "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM read_text('/etc/passwd')", "SELECT * FROM read_parquet('/tmp/*.parquet')",
    "SELECT * FROM glob('/*')", "SELECT * FROM read_blob('/etc/hostname')",
    "SELECT * FROM 'https://example.com/x.csv'", "SELECT getenv('HOME')",
    "SELECT * FROM recorded", "SELECT * FROM read_json('/etc/os-release')",
    "SELECT * FROM sniff_csv('/etc/passwd')", "PREPARE p AS SELECT 1", "BEGIN",
    "SELECT * FROM parquet_metadata('/tmp/x')", "EXPLAIN ANALYZE COPY (SELECT 1) TO 'x'",
]  # fmt: skip


@pytest.mark.parametrize("sql", FORBIDDEN)
def test_nothing_but_the_recording_can_be_read_and_nothing_written(
    recorded: Recording, sql: str, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(QueryError):
        recorded.query(sql)
    assert sorted(os.listdir(tmp_path)) == before


def test_the_engine_may_read_an_archive_but_nothing_that_it_leads_to(recorded: Recording) -> None:
    folder = Path(recorded.sessions[0].folder)
    archive = folder / "archive"
    archive.mkdir(exist_ok=True)
    (archive / "link").symlink_to("/etc/passwd")
    (archive / "folder").symlink_to("/etc")
    up = "/.." * len(archive.parts)
    for path in (
        f"{archive}/link", f"{archive}/folder/passwd", f"{archive}/../meta.json",
        f"{archive}{up}/etc/passwd", f"file://{archive}{up}/etc/passwd", f"{archive}x/y",
    ):  # fmt: skip
        with pytest.raises(QueryError, match="no files"):
            recorded.query(f"FROM read_text('{path}')")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1", "WITH x AS (SELECT 1 AS a) SELECT * FROM x", "FROM job.thing", "VALUES (1)",
        "DESCRIBE job.thing", "SHOW TABLES", "SUMMARIZE python.gc_pause", "EXPLAIN SELECT 1",
        "SELECT 'system.cpu' AS s -- system.cpu", "SELECT 1;",
    ],
)  # fmt: skip
def test_everything_that_only_reads_is_allowed(recorded: Recording, sql: str) -> None:
    assert recorded.query(sql).num_columns >= 1


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT * FROM job.thign", "job.thing"),
        ("SELECT * FROM thing", "job.thing"),
        ("SELECT nme FROM job.thing", "name"),
        ("SELECT generation FROM job.thing", "generation is a column of python.gc_pause"),
        ("SELEC 1", "syntax error"),
        ("SELECT name, COUNT(*) FROM job.thing", "GROUP BY"),
        ("SELECT CAST(name AS INT) FROM job.thing", "Conversion Error"),
        ("", "statements"),
    ],
)
def test_errors_name_what_is_nearest(recorded: Recording, sql: str, said: str) -> None:
    with pytest.raises(QueryError, match=said):
        recorded.query(sql)


def test_a_query_that_takes_too_long_is_stopped(recorded: Recording) -> None:
    begin = time.monotonic()
    with pytest.raises(QueryError, match=r"stopped after 0\.3 s"):
        recorded.query(
            "SELECT COUNT(*) FROM range(100000000) a, range(100000) b WHERE a.range % 7 = b.range % 3",
            timeout_s=0.3,
        )
    assert time.monotonic() - begin < 30


def test_a_query_that_needs_too_much_memory_is_stopped(recorded: Recording) -> None:
    with pytest.raises(QueryError, match="needs more than"):
        recorded.query("SELECT list(range) FROM range(200000000)", memory="100MB")


def _read_cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_ctrl_c_stops_a_query_at_once(recorded: Recording) -> None:
    sql = "SELECT COUNT(*) FROM range(100000000) a, range(100000) b WHERE a.range % 7 = b.range % 3"
    process = subprocess.Popen(
        [sys.executable, "-m", "sonde", "query", str(os.getpid()), sql],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_for(lambda: _read_cpu_s(process.pid) > 3)  # far more than it takes to begin
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 130 and out == "" and "Traceback" not in err


def test_several_sessions_are_one_recording(run) -> None:
    code = """
import sonde, sys
class Row:
    n: int
emit = sonde.table(Row)
print(sonde.start(collector="off"))
for i in range(int(sys.argv[1])): emit(i)
"""
    folders = [
        run(
            code, str(10 * (i + 1)), RANK=str(i), WORLD_SIZE="3", TORCHELASTIC_RUN_ID="exp"
        ).stdout.strip()
        for i in range(3)
    ]
    sql = "SELECT rank, COUNT(*) AS n, COUNT(DISTINCT pid) AS p FROM job.row GROUP BY rank ORDER BY rank"
    expected = [{"rank": i, "n": 10 * (i + 1), "p": 1} for i in range(3)]
    assert sonde.open("exp").query(sql).to_pylist() == expected
    assert sonde.open(folders).query(sql).to_pylist() == expected
    assert sonde.open("all").query(sql).to_pylist() == expected
    assert sonde.open(folders[1]).query(sql).to_pylist() == expected[1:2]
    assert sonde.open(os.path.dirname(folders[0])).query(sql).to_pylist() == expected


def test_a_table_that_grew_a_column_reads_as_one(run) -> None:
    code = """
import sonde, sys
row = type("Row", (), {"__annotations__": dict(n="int", **({"more": "str"} if sys.argv[1:] else {}))})
emit = sonde.table(row)
print(sonde.start(collector="off"))
emit(1, *sys.argv[1:])
"""
    old, new = run(code).stdout.strip(), run(code, "x").stdout.strip()
    rows = sonde.open([old, new]).query("SELECT n, more FROM job.row ORDER BY more NULLS FIRST")
    assert rows.to_pylist() == [{"n": 1, "more": None}, {"n": 1, "more": "x"}]


def test_unknown_targets_say_what_to_do(root) -> None:
    for target, said in (
        (2**22 + 1, "no process"), (os.getpid(), "not being recorded"), ("nonsense", "sonde ps"),
        ("/no/such/folder", "not a folder"), ("", "no target"), ("all", "nothing has been recorded"),
    ):  # fmt: skip
        with pytest.raises(NoSession, match=said):
            sonde.open(target)


def test_the_newest_session_of_a_pid_is_meant(root) -> None:
    emit = sonde.table(Thing, "job.newest")
    for number in range(2):
        sonde.start(collector="off")
        emit(number, 0, None, None, True)
        sonde.stop()
    rows = sonde.open(os.getpid()).query("SELECT small FROM job.newest")
    assert rows.to_pylist() == [{"small": 1}]


def test_short_names_of_system_tables_are_made_whole() -> None:
    for sql, whole in (
        ("SELECT * FROM system.cpu", "SELECT * FROM memory.system.cpu"),
        (
            'SELECT "system".cpu.t_ns FROM SYSTEM . cpu',
            'SELECT memory."system".cpu.t_ns FROM memory.SYSTEM . cpu',
        ),
        ("SELECT 'system.cpu' -- system.cpu", "SELECT 'system.cpu' -- system.cpu"),
        (
            r"SELECT e'\' system.cpu' FROM system.cpu",
            r"SELECT e'\' system.cpu' FROM memory.system.cpu",
        ),
        ("SELECT $$system.cpu$$", "SELECT $$system.cpu$$"),
        (
            "SELECT 'a''s system.cpu' FROM system.cpu",
            "SELECT 'a''s system.cpu' FROM memory.system.cpu",
        ),
        ("FROM memory . system.cpu, subsystem.cpu", "FROM memory . system.cpu, subsystem.cpu"),
        ("SELECT /* system.cpu */ 1", "SELECT /* system.cpu */ 1"),
        ("SELECT * FROM memory.system.cpu", "SELECT * FROM memory.system.cpu"),
        ("SELECT system.a FROM x AS system", "SELECT system.a FROM x AS system"),
        ("SELECT 'éééé🦀' FROM system.cpu", "SELECT 'éééé🦀' FROM memory.system.cpu"),
        ("", ""),
    ):
        assert qualify(sql, {"cpu", "memory"}) == whole


def test_a_session_is_itself_while_it_runs() -> None:
    folder = sonde.start(collector="off")
    assert Session(folder).is_alive()
    sonde.open(os.getpid()).query("SELECT * FROM sonde.session")
    assert Session(folder).is_alive(), "looking at it must not let its lock go"
    probe = (
        "import sys; from sonde.session import Session; print(Session(sys.argv[1]).find_state())"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe, folder], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "running"


def test_a_column_that_a_table_did_not_have_yet_is_null(run) -> None:
    # In a process of its own: in ours the table may be known with all its columns.
    done = run(
        '''
import sonde
from sonde.job.recorder import recorder

class TorchStep:
    """As an older version would have written it."""

    step: sonde.i64 = sonde.column("number of the step, from 0")

folder = sonde.start(collector="off", source_torch="off")
recorder.open_table(TorchStep, "python.torch_step")(7)
print(folder)
'''
    )
    folder = done.stdout.strip()
    asked, right = "SELECT step, training FROM python.torch_step", [{"step": 7, "training": None}]
    assert sonde.open(folder).query(asked).to_pylist() == right
    session = Session(folder)
    for path in session.find_rings():
        Drain(session, path).run(0.0, 0.0, ended=True)
    seal(session)
    assert sonde.open(folder).query(asked).to_pylist() == right  # from the archive, and once


def test_tables_and_columns_can_be_listed_as_in_any_database(recorded: Recording) -> None:
    listed = {row["table"]: row for row in recorded.query("SHOW TABLES;").to_pylist()}
    assert listed["python.gc_pause"]["meaning"] and listed["sonde.session"]["columns"] > 5
    for name in ("python.gc_pause", "gc_pause"):
        rows = recorded.query(f"describe {name}").to_pylist()
        assert {"table": "python.gc_pause", "column_name": "dur_ns", "column_type": "i64", "unit": "ns",
                "meaning": "duration"} in rows  # fmt: skip
    with pytest.raises(QueryError, match=r"no table gc_puse; did you mean python\.gc_pause"):
        recorded.query("DESCRIBE gc_puse")


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT])
def test_a_crash_for_want_of_memory_is_an_error_of_the_query(run, number: int) -> None:
    code = f"""
import os, threading, warnings
from sonde.store.engine import limited
warnings.simplefilter("ignore")  # of forks beside the threads of packages
with limited("300MiB"):
    pass
if os.fork() == 0:
    os.kill(os.getpid(), {int(number)})  # not limited: a crash
assert os.WTERMSIG(os.wait()[1]) == {int(number)}
with limited("300MiB"):
    thread = threading.Thread(target=os.kill, args=(os.getpid(), {int(number)}))
    thread.start()
    thread.join()
"""
    done = run(code, check=False)
    assert done.returncode == 5
    assert done.stderr.startswith("sonde: the query or its result needs more than 300MiB; ask for")


def test_times_are_read_where_the_system_has_no_time_zones() -> None:
    asked = "SELECT source FROM sonde.source"
    done = subprocess.run(
        [sys.executable, "-m", "sonde", "query", GOLDEN / "ended", asked],
        env={**os.environ, "PYTHONTZPATH": ""}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and "stack" in done.stdout, done.stderr
