"""The same statements on DuckDB and on real engines, row by row: `make test-scale`."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from conftest import wait_for
from sonde.advice.judge import load_rules
from sonde.advice.period import find_period
from sonde.errors import QueryError
from sonde.store.compaction import compact
from sonde.store.place import FleetPlace
from sonde.store.recording import open_recording
from support.engine_clusters import RayCluster, SparkCluster, has_java
from support.handmade_fleet import make_fleet
from support.places import DOCS, SPARK_RULES, list_fleet_rules

pytestmark = pytest.mark.timeout(2400)  # the engines are slow to start on a busy machine
_BEGIN_S = 600.0
_REST_S = 600.0  # an executor that ends a task by force starts anew
STATEMENTS = re.findall(r"^```sql\n(.*?)^```$", (DOCS / "fleet.md").read_text(), re.DOTALL | re.M)
# What docs/fleet.md says of the core, in as few statements as possible.
CORE = [
    "SELECT COUNT(*), COUNT(rank), COUNT(DISTINCT state), SUM(seq), AVG(dur_ns), MIN(ts), MAX(op),"
    " STDDEV(dur_ns), MEDIAN(dur_ns), BOOL_AND(rank > 0), BOOL_OR(rank > 0),"
    " COUNT(*) FILTER (WHERE rank = 1), SUM(dur_ns) FILTER (WHERE op = 'broadcast')"
    " FROM python.collective",
    "SELECT t_ns, rank, ABS(-dur_ns), FLOOR(dur_ns / 1e3), CEIL(dur_ns / 1000), ROUND(dur_ns / 7, 2),"
    " SQRT(dur_ns), LN(dur_ns), EXP(rank), POWER(rank, 2), SIGN(rank - 1), dur_ns % 7,"
    " (rank - 2) % 2, (rank - 3) // 2, dur_ns * 0.5, GREATEST(rank, 2), LEAST(rank, 2)"
    " FROM python.collective",
    "SELECT t_ns, rank, LOWER(op), UPPER(op), LENGTH(host), SUBSTRING(op, 2, 3),"
    " REPLACE(op, 'a', 'x'), op LIKE '%cast', op NOT LIKE 'all%', op ILIKE 'ALL%',"
    " 'it''s \\ here', CONTAINS(op, 'cast'), STARTS_WITH(op, 'all'), ENDS_WITH(op, 'cast'),"
    " host || '/' || rank::VARCHAR FROM python.collective",
    "SELECT t_ns, rank, dur_ns BETWEEN 10 AND 500000, rank IN (1, 2), rank NOT IN (1), NOT idle,"
    " wait IS NULL, wait IS NOT NULL, COALESCE(wait, 'none'), NULLIF(rank, 1),"
    " CASE WHEN rank = 0 THEN 'first' WHEN rank = 1 THEN 'second' END, wait IS NOT DISTINCT FROM NULL"
    " FROM (SELECT t_ns, rank, wall_ns AS dur_ns, idle, wait FROM python.stack_sample)",
    "SELECT DATE_TRUNC('minute', ts) AS minute, DATE_TRUNC('hour', MIN(ts)), COUNT(*),"
    " EPOCH_US(MAX(ts)) FROM python.gc_pause WHERE ts >= TIMESTAMP '2023-11-14 22:13:25.5'"
    " AND ts < TIMESTAMP '2023-11-14 22:13:20' + INTERVAL 40 SECOND GROUP BY 1 ORDER BY 1",
    "SELECT rank, t_ns, ROW_NUMBER() OVER (PARTITION BY rank ORDER BY t_ns DESC) AS n,"
    " RANK() OVER (PARTITION BY rank ORDER BY generation) AS r,"
    " LAG(t_ns) OVER (PARTITION BY rank ORDER BY t_ns) AS before,"
    " LEAD(t_ns, 2) OVER (PARTITION BY rank ORDER BY t_ns) AS after,"
    " SUM(dur_ns) OVER (PARTITION BY rank) AS whole,"
    " SUM(dur_ns) OVER (PARTITION BY rank ORDER BY t_ns"
    " ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS so_far FROM python.gc_pause",
    "SELECT device_dur_ns FROM python.collective ORDER BY device_dur_ns LIMIT 400",
    "SELECT device_dur_ns, rank FROM python.collective ORDER BY 1 DESC, 2 LIMIT 790",
    "SELECT DISTINCT op, state FROM python.collective",
    "SELECT rank, op FROM python.collective WHERE step < 3"
    " UNION ALL SELECT rank, 'pause' FROM python.gc_pause WHERE generation < 3 ORDER BY 1, 2 LIMIT 9",
    "SELECT c.rank, c.op, s.wall_ns FROM python.collective AS c"
    " LEFT JOIN python.stack_sample AS s ON c.rank = s.rank AND c.t_ns = s.t_ns",
    "SELECT COUNT(*) FROM python.collective AS c JOIN python.gc_pause AS g ON c.pid = g.pid"
    " WHERE c.dur_ns > (SELECT AVG(dur_ns) FROM python.collective)"
    " AND c.rank IN (SELECT rank FROM python.torch_step WHERE step = 1)",
    "SELECT rank, SUM(dur_ns) / COUNT(*) AS mean FROM python.gc_pause GROUP BY ALL"
    " HAVING COUNT(*) > 1 ORDER BY mean DESC",
    "SELECT host, cores, COUNT(*) AS n, AVG(busy_pct) AS pct FROM system.cpu GROUP BY host, cores",
]  # fmt: skip
# These the second engine cannot say, and refuses.
MORE = {"sc": [
    "SELECT COUNT(*) FROM python.collective AS c, python.gc_pause AS g"
    " WHERE c.pid = g.pid AND g.rank = 1",
    "SELECT op, ARG_MAX(rank, dur_ns), ANY_VALUE(job), MEDIAN(device_dur_ns),"
    " PERCENTILE_CONT(0.9) WITHIN GROUP (ORDER BY dur_ns) FROM python.collective GROUP BY op",
    "SELECT * EXCLUDE (ts) FROM python.gc_pause"
    " QUALIFY ROW_NUMBER() OVER (PARTITION BY rank ORDER BY t_ns) = 1",
    "SELECT rank FROM python.torch_step EXCEPT SELECT 1 INTERSECT SELECT 1",
    "SELECT rank, MAX(dur_ns) OVER (PARTITION BY rank ORDER BY t_ns) FROM python.gc_pause"
    " SEMI JOIN python.torch_step USING (rank)",
]}  # fmt: skip
HEAVY = (
    "SELECT rank, COUNT(*) AS n, SUM(a_ns + b_ns) AS ns"
    " FROM (SELECT rank, wall_ns AS a_ns FROM python.stack_sample) AS a"
    " CROSS JOIN (SELECT wall_ns AS b_ns FROM python.stack_sample) AS b"
    " CROSS JOIN (SELECT dur_ns AS c_ns FROM python.gc_pause WHERE t_ns < 15000000000) AS c"
    " WHERE a_ns % 7 <> (b_ns + c_ns) % 5 GROUP BY rank ORDER BY rank"
)
# Nobody waits for the end of this one. Daft would fill the memory with it.
LONG = HEAVY.replace(
    " WHERE a_ns", " CROSS JOIN (SELECT dur_ns AS d_ns FROM python.gc_pause) AS d WHERE d_ns + a_ns"
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job of four ranks; half of its tables are merged."""
    folder = make_place(tmp_path_factory.mktemp("fleet"))
    for _ in zip(range(20), compact(FleetPlace(str(folder))), strict=False):
        pass
    return folder


def make_place(folder: Path, *, empty: tuple[str, ...] = ()) -> Path:
    def run(code: str, **env: str) -> None:
        settings = {**os.environ, "SONDE_DIR": str(folder / "root"), **env}
        subprocess.run([sys.executable, "-c", code], env=settings, check=True)

    make_fleet(run, folder / "root", folder / "place", empty=empty)
    return folder / "place"


@pytest.fixture(scope="module", params=["sc", "ray"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    needed, kind = {"sc": ("pyspark", SparkCluster), "ray": ("daft", RayCluster)}[request.param]
    pytest.importorskip(needed, reason="make test-scale installs it")
    if kind is SparkCluster and not has_java():
        pytest.skip("Spark needs Java")
    with kind(tmp_path_factory.mktemp(request.param)) as found:
        yield found


# The clients of engines leave threads behind: they are used in a process of their own.
ASKING = """
import json, sys
import pyarrow.parquet as pq
from sonde.store.remote import open_remote
for at, (target, sql) in enumerate(json.load(sys.stdin)):
    rows = open_remote(target, sys.argv[1]).query(sql, timeout_s=600)
    pq.write_table(rows, f"{sys.argv[2]}/{at}.parquet")
"""


def begin_asking(cluster: Any, folder: Path, questions: list[tuple[str, str]]) -> Any:
    process = subprocess.Popen(
        [sys.executable, "-c", ASKING, cluster.address, str(folder)], env=cluster.env,
        stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(json.dumps(questions))
    process.stdin.close()
    process.stdin = None  # or communicate() would close it again
    return process


def ask(cluster: Any, folder: Path, questions: list[tuple[str, str]]) -> list[Any]:
    process = begin_asking(cluster, folder, questions)
    said = process.communicate(timeout=1200)[1]
    assert process.returncode == 0, said
    return [pq.read_table(folder / f"{at}.parquet") for at in range(len(questions))]


def assert_same(cluster: Any, folder: Path, target: Any, statements: list[str]) -> None:
    answers = ask(cluster, folder, [(str(target), sql) for sql in statements])
    for sql, found in zip(statements, answers, strict=True):
        compare_rows(sql, open_recording(str(target)).query(sql), found)


def compare_rows(sql: str, expected: Any, found: Any) -> None:
    assert found.schema.equals(expected.schema), sql
    left, right = ([list(row.values()) for row in rows.to_pylist()] for rows in (expected, found))
    if "ORDER BY" not in sql.upper().rpartition(")")[2]:
        left, right = sorted(left, key=repr), sorted(right, key=repr)
    assert len(left) == len(right), sql
    for one, other in zip(left, right, strict=True):
        for a, b in zip(one, other, strict=True):
            close = (
                isinstance(a, float) and isinstance(b, float) and math.isclose(a, b, rel_tol=1e-9)
            )
            assert a == b or close, (sql, one, other)


def test_statements_of_the_docs_have_the_same_rows(
    place: Path, cluster: Any, tmp_path: Path
) -> None:
    assert len(STATEMENTS) >= 6
    assert all(open_recording(str(place)).query(sql).num_rows for sql in STATEMENTS)
    assert_same(cluster, tmp_path, place, STATEMENTS)


def test_the_core_means_the_same(place: Path, cluster: Any, tmp_path: Path) -> None:
    assert_same(cluster, tmp_path, place, CORE + MORE.get(cluster.address.partition(":")[0], []))


def test_a_part_of_the_place_has_the_rows_of_its_sessions(
    place: Path, cluster: Any, tmp_path: Path
) -> None:
    sql = "SELECT rank, COUNT(*) AS n, SUM(dur_ns) AS ns FROM python.gc_pause GROUP BY rank"
    assert open_recording(f"{place}#train/2").query(sql).num_rows == 1
    assert_same(cluster, tmp_path, f"{place}#train/2", [sql])


def test_rules_meant_for_fleets_find_the_same_rows(
    place: Path, cluster: Any, tmp_path: Path
) -> None:
    more = SPARK_RULES if is_spark(cluster) else ()
    assert_rules_agree(cluster, tmp_path, place, [*list_fleet_rules(), *more])
    if is_spark(cluster):  # which looks only where no device communicates
        hosts = make_place(tmp_path, empty=("device_dur_ns",))
        assert_rules_agree(cluster, tmp_path, hosts, ["comm_bound"])


def assert_rules_agree(cluster: Any, folder: Path, place: Path, names: list[str]) -> None:
    recording = open_recording(str(place))
    period = find_period(recording, None, None, 10.0)
    statements = {
        rule.name: rule.module.SQL.format(**period.words, **rule.limits)
        for rule in load_rules(names)
    }
    # Nothing is the same as nothing on every engine.
    assert [name for name, sql in statements.items() if not recording.query(sql).num_rows] == []
    assert_same(cluster, folder, place, list(statements.values()))


def is_spark(cluster: Any) -> bool:
    return str(cluster.address).startswith("sc:")


def test_a_query_that_is_given_up_ends_on_the_cluster(place: Path, cluster: Any) -> None:
    begun = cluster.count_begun()
    with give(cluster, place, LONG if is_spark(cluster) else HEAVY, "1h") as process:
        wait_for(lambda: cluster.count_begun() > begun and cluster.is_busy(), _BEGIN_S)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=300)[1]
    assert process.returncode == 130, said
    wait_for(cluster.is_at_rest, _REST_S)
    if is_spark(cluster):
        begun = cluster.count_begun()
        with give(cluster, place, LONG, "30s") as process:
            said = process.communicate(timeout=300)[1]
        assert process.returncode == QueryError.exit_code and "stopped after 30 s" in said, said
        assert cluster.count_begun() > begun  # it had come to the cluster
        wait_for(cluster.is_at_rest, _REST_S)


def give(cluster: Any, place: Path, sql: str, timeout: str) -> subprocess.Popen[str]:
    """Give a statement to a cluster, as a user does."""
    words = ["query", str(place), sql, "--engine", cluster.address, "--timeout", timeout]
    return subprocess.Popen([sys.executable, "-m", "sonde", *words], env=cluster.env, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip


def test_a_worker_that_is_killed_in_the_middle_costs_no_row(
    place: Path, cluster: Any, tmp_path: Path
) -> None:
    expected = open_recording(str(place)).query(HEAVY).to_pylist()
    begun = cluster.count_begun()
    process = begin_asking(cluster, tmp_path, [(str(place), HEAVY)])
    wait_for(lambda: cluster.count_begun() > begun and cluster.is_busy(), _BEGIN_S)
    cluster.kill_worker()
    assert process.poll() is None  # it was in the middle
    said = process.communicate(timeout=900)[1]
    assert process.returncode == 0, said
    assert pq.read_table(tmp_path / "0.parquet").to_pylist() == expected
    assert cluster.has_noticed()
