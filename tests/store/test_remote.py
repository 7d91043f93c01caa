"""Statements for other engines: how they are written, and what is refused. tests/scale runs them."""

from __future__ import annotations

import importlib
import socket
import sys
from pathlib import Path

import duckdb
import pytest

from sonde.advice.judge import load_rules
from sonde.advice.period import Period
from sonde.background import leave_out_pandas
from sonde.cli import main
from sonde.errors import Error, QueryError
from sonde.store import catalog
from sonde.store.engines import ray, spark
from sonde.store.engines._reach import check_listens
from sonde.store.remote import open_remote
from sonde.store.rows import widen
from sonde.store.sql_dialect import Dialect
from sonde.store.sql_tree import SqlParser, find_tables
from sonde.store.sql_writer import SqlWriter
from support.handmade_fleet import make_fleet
from support.places import SPARK_RULES, list_fleet_rules

if int(duckdb.__version__.partition(".")[0]) < 2:
    pytest.skip("engines elsewhere need DuckDB 2: see pyproject.toml", allow_module_level=True)

SCHEMAS = {one.table: widen(one) for one in catalog.list_recorded()} | {
    view.schema.table: view.schema for view in catalog.list_views()
}


def write(sql: str, dialect: Dialect = spark.DIALECT) -> str:
    parser = SqlParser()
    tree = parser.parse(sql)
    parser.close()
    assert tree is not None
    return SqlWriter(dialect, {name: SCHEMAS[name] for name in find_tables(tree)}).write(tree)


def test_what_engines_read_differently_is_written_out() -> None:
    text = write(
        "SELECT rank, COUNT(*) FILTER (dur_ns > 0.5) AS N, 'it''s \\' FROM python.gc_pause "
        "WHERE python.gc_pause.rank >= 0 AND (host, pid) IN (('a', 1), ('b', 2)) "
        "GROUP BY ALL ORDER BY 2 DESC, rank LIMIT 5"
    )
    assert text == (
        "SELECT `rank`, COUNT(*) FILTER (WHERE (`dur_ns` > 0.5e0)) AS `n`, "
        "'it\\'s \\\\' AS `column_2` FROM `sonde__python__gc_pause` AS `gc_pause` "
        "WHERE ((`gc_pause`.`rank` >= 0) AND ((`host` = 'a' AND `pid` = 1) OR "
        "(`host` = 'b' AND `pid` = 2))) GROUP BY `rank`, 'it\\'s \\\\' "
        "ORDER BY `n` DESC NULLS LAST, `rank` NULLS LAST LIMIT 5"
    )


@pytest.mark.parametrize(
    ("part", "named"),
    [
        ("LIST(rank) FROM python.gc_pause", "list()"),
        ("COUNT(*) FROM python.gc_pause a ASOF JOIN python.gc_pause b ON a.ts >= b.ts", "ASOF JOIN"),
        ("op[1] FROM python.collective", "a list element x[…]"),
        ("COLUMNS('d.*') FROM python.gc_pause", "COLUMNS(…)"),
        ("DISTINCT ON (rank) rank FROM python.gc_pause", "DISTINCT ON"),
        ("CAST(dur_ns / 2 AS BIGINT) FROM python.gc_pause", "CAST of anything but whole numbers"),
        ("host LIKE 'a\\_b' FROM python.gc_pause", "LIKE with a backslash"),
        ("* FROM python.gc_pause JOIN python.gc_pause USING (pid)", "* of a JOIN … USING"),
        ("rank FROM python.gc_pause GROUP BY ROLLUP (rank)", "ROLLUP"),
        ("* FROM range(3)", "range() in FROM"),
        ("SUM(dur_ns) OVER (ORDER BY t_ns RANGE BETWEEN 5 PRECEDING AND CURRENT ROW) FROM "
         "python.gc_pause", "RANGE and GROUPS in a window"),
        ("* FROM (WITH RECURSIVE n AS (SELECT 1 UNION ALL SELECT 2 FROM n) FROM n)", "WITH RECURSIVE"),
        ("LENGTH([1])", "a list […]"),
        ("meta ->> 'id' FROM python.gc_pause", "->>"),
        ("COUNT(*) FROM python.gc_pause POSITIONAL JOIN python.torch_step", "POSITIONAL JOIN"),
        ("rank FROM python.gc_pause LIMIT 10%", "LIMIT in percent"),
    ],
)  # fmt: skip
def test_what_is_not_in_the_core_is_refused_by_its_name(part: str, named: str) -> None:
    with pytest.raises(QueryError) as refused:
        write(f"SELECT {part}")
    assert str(refused.value).startswith(named), refused.value
    assert "without --engine" in str(refused.value)


def test_rules_meant_for_fleets_can_be_written_for_the_engines_that_are_to_run_them() -> None:
    words = Period(10**18, 10.0, 3, 0.0, "TRUE").words
    for dialect, names in ((ray.DIALECT, list_fleet_rules()), (spark.DIALECT, SPARK_RULES)):
        for rule in load_rules([*names, *list_fleet_rules()]):
            assert write(rule.module.SQL.format(**words, **rule.limits), dialect), rule.name


def test_a_name_that_daft_would_take_from_the_wrong_table_is_refused() -> None:
    tables = "FROM python.collective AS c JOIN python.gc_pause AS g ON c.pid = g.pid"
    for part in (f"SELECT g.dur_ns {tables}", f"SELECT 1 {tables} WHERE g.rank IN (1, 2)",
                 f"WITH p AS (SELECT pid FROM python.gc_pause) SELECT 1 {tables} JOIN p ON g.pid = p.pid",
                 "SELECT 1 FROM python.collective AS c, python.gc_pause AS g WHERE c.pid = g.pid"):  # fmt: skip
        with pytest.raises(QueryError, match=r"^g\.\w+, which another table of the JOIN has"):
            write(part, ray.DIALECT)
        assert write(part)
    assert write(f"SELECT c.dur_ns, g.generation {tables}", ray.DIALECT)


@pytest.fixture
def place(run, root: Path, tmp_path: Path) -> str:
    make_fleet(run, root, tmp_path / "place", ranks=1, rows=2)
    return str(tmp_path / "place")


def test_a_statement_is_checked_here_before_anything_is_sent(place: str) -> None:
    recording = open_remote(place, "sc://127.0.0.1:1")
    with pytest.raises(QueryError, match=r"python\.gc_pause"):
        recording.query("SELECT 1 FROM python.gc_pauses")
    with pytest.raises(QueryError, match="worked out by sonde"):
        recording.query("SELECT func FROM python.frame")
    with pytest.raises(QueryError, match="use SELECT"):
        recording.query("DROP VIEW python.gc_pause")
    with pytest.raises(QueryError, match=r"^mode\(\)"):
        recording.query("SELECT MODE(rank) FROM python.gc_pause")


def test_what_is_missing_is_one_line(
    place: str, root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setitem(sys.modules, "daft", None)
    sql = "SELECT rank FROM python.gc_pause"
    assert main(["query", place, sql, "--engine", "sc://127.0.0.1:1"]) == 1
    assert "pip install 'sonde[spark]'" in capsys.readouterr().err
    assert main(["query", place, sql, "--engine", "ray://127.0.0.1:1"]) == 1
    assert "pip install 'sonde[ray]'" in capsys.readouterr().err
    assert main(["query", place, sql, "--engine", "spark://here"]) == 2
    assert "is not an engine; write duckdb, sc://" in capsys.readouterr().err
    assert main(["query", "4242", sql, "--engine", "sc://127.0.0.1:1"]) == 2
    assert "reads a shared place" in capsys.readouterr().err
    assert main(["query", place, sql, "--engine", "duckdb"]) == 0


def test_an_engine_that_does_not_answer_is_named() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        with pytest.raises(QueryError, match=f"sc://127.0.0.1:{port} cannot be reached"):
            check_listens(f"sc://127.0.0.1:{port}", 0)


@pytest.mark.parametrize("open_engine", [spark.open_engine, ray.open_engine])
def test_clients_of_engines_find_pandas_which_our_commands_do_without(
    open_engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pandas.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pandas", raising=False)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    leave_out_pandas()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("pandas")
    with pytest.raises(Error):  # the client is not here, or nobody listens
        open_engine("sc://127.0.0.1:1")
    assert importlib.import_module("pandas").__file__ == str(tmp_path / "pandas.py")
    monkeypatch.delitem(sys.modules, "pandas")
