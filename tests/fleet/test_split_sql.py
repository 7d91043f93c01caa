"""A statement that is split between hosts has the answer that it has over all rows."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sonde.fleet import query
from sonde.fleet.cluster import Gathered
from sonde.fleet.hosts import Cluster
from sonde.fleet.split_sql import ANSWERS, plan
from sonde.session import Session
from sonde.store.recording import Recording
from support.places import GOLDEN

SPLIT = [
    "SELECT pid, COUNT(*) AS n, AVG(wall_ns), SUM(wall_ns), MIN(t_ns), MAX(t_ns) FROM "
    "python.stack_sample GROUP BY pid ORDER BY pid",
    "SELECT COUNT(*), COUNT(stack), SUM(wall_ns) / COUNT(*) AS mean FROM python.stack_sample",
    "SELECT idle, COUNT(*) FILTER (WHERE gil) AS g FROM python.stack_sample GROUP BY 1 ORDER BY 1",
    "SELECT thread % 2 AS odd, COUNT(*) n FROM python.stack_sample GROUP BY odd "
    "HAVING COUNT(*) > 1 ORDER BY n DESC, odd LIMIT 1",
    "SELECT state, COUNT(*) FROM sonde.source GROUP BY ALL ORDER BY state",
    "SELECT t_ns, wall_ns FROM python.stack_sample WHERE wall_ns > 0 "
    "ORDER BY thread DESC, t_ns, wall_ns LIMIT 7 OFFSET 3",
    "SELECT * FROM python.stack_sample ORDER BY t_ns, thread LIMIT 5",
    "SELECT DISTINCT thread FROM python.stack_sample ORDER BY 1",
    "SELECT AVG(wall_ns) FROM python.stack_sample WHERE wall_ns < 0",
]
WHOLE = [
    "SELECT MEDIAN(wall_ns), COUNT(DISTINCT thread) FROM python.stack_sample",
    "SELECT func, COUNT(*) n FROM python.stack_sample JOIN python.frame USING (stack) "
    "GROUP BY func ORDER BY n DESC, func",
    "SELECT COUNT(*) FROM python.frame",
    "SELECT SUM(n) FROM (SELECT thread, COUNT(*) AS n FROM python.stack_sample GROUP BY thread)",
    "WITH a AS (SELECT * FROM python.stack_sample) SELECT COUNT(*) FROM a",
    "SELECT rank() OVER (ORDER BY t_ns) AS r FROM python.stack_sample ORDER BY r LIMIT 3",
]


@pytest.fixture(scope="module")
def recordings() -> list[Recording]:
    folders = sorted({str(path.parent) for path in GOLDEN.rglob("meta.json")})
    found = [Session(folder) for folder in folders]
    return [Recording(found[::2]), Recording(found[1::2])]


@pytest.fixture
def asked(recordings, monkeypatch) -> list[str]:
    """Have two recordings answer as hosts do; what they were asked."""
    statements: list[str] = []

    def ask(_cluster: object, request: dict[str, str], _timeout_s: float) -> Gathered:
        statements.append(request["sql"])
        found = Gathered()
        found.tables = {str(at): one.query(request["sql"]) for at, one in enumerate(recordings)}
        return found

    monkeypatch.setattr(query, "ask_all", ask)
    return statements


def show(rows: pa.Table) -> list[dict[str, object]]:
    return [
        {
            name: round(value, 6) if isinstance(value, float) else value
            for name, value in row.items()
        }
        for row in rows.to_pylist()
    ]


@pytest.mark.parametrize("sql", SPLIT + WHOLE)
def test_the_answer_is_that_over_all_rows(sql: str, recordings, asked) -> None:
    whole = Recording([one for part in recordings for one in part.sessions]).query(sql)
    rows, _missing = query.query_cluster(Cluster("all", ["0", "1"]), sql, 60, "1GiB")
    assert [name.lower() for name in rows.column_names] == [n.lower() for n in whole.column_names]
    if "ORDER BY" in sql or whole.num_rows == 1:
        assert show(rows) == show(whole)
    found = plan(sql)
    assert found is not None and (list(found.remote) == [ANSWERS]) == (sql in SPLIT)


def test_hosts_send_only_the_columns_that_the_statement_names() -> None:
    found = plan(WHOLE[0])
    assert found.remote == {
        "python.stack_sample": 'SELECT "thread", "wall_ns" FROM python.stack_sample'
    }


def test_hosts_send_no_more_rows_than_the_answer_may_need() -> None:
    assert "LIMIT 10" in plan(SPLIT[5]).remote[ANSWERS]
    assert "OFFSET" not in plan(SPLIT[5]).remote[ANSWERS]


@pytest.mark.parametrize("sql", ["SELECT 1", "SHOW TABLES"])
def test_a_statement_about_no_table_is_answered_by_a_host(sql: str, asked) -> None:
    rows, _missing = query.query_cluster(Cluster("all", ["0", "1"]), sql, 60, "1GiB")
    assert rows.num_rows and asked == [sql]
