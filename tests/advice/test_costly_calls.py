"""Which costly calls are worth a warning: on rows as the rule's query returns them."""

from __future__ import annotations

from collections import namedtuple
from types import SimpleNamespace

import duckdb
import pytest

from sonde.advice.finding import Tally, doubt_in_crowd
from sonde.advice.rules import costly_calls, cpu_starved
from sonde.advice.verdict import Limits, Verdict

LIMITS = Limits({name: limit.default for name, limit in costly_calls.LIMITS.items()})
USUAL = {
    "piece": 0, "host": "alpha", "pid": 7, "readings": 1000, "rest_pct": 5.0, "thread": 7, "name": "list_search",
    "file": "/job/app.py", "lineno": 8, "func": "add", "call": "list.__contains__", "is_request": False,
    "time_pct": 60.0, "waiting_pct": 0.0, "asleep_pct": 0.0, "queue_pct": 0.0, "cpu_pct": 60.0,
    "given_pct": 100.0, "method": None, "depth": 2, "stretch_s": 0.05, "able_s": 0.05,
    "others_pct": 0.0, "is_serving": False, "alive_s": 10.0, "shared": "",
}  # fmt: skip
Row = namedtuple("Row", USUAL)


def judge_all(*changes: dict[str, object]) -> list[Verdict]:
    return list(costly_calls.judge([Row(**USUAL | one) for one in changes], LIMITS))


def judge(*changes: dict[str, object]) -> Verdict:
    (verdict,) = judge_all(*changes)
    return verdict


def test_a_costly_call_is_named_with_its_line_and_what_to_do_instead() -> None:
    found = judge({})
    assert found.fired
    assert found.line == "/job/app.py:8 in add"
    assert found.evidence["time_pct"] == 60
    assert found.lost_pct == 60
    assert "set" in found.todo


@pytest.mark.parametrize(
    "change",
    [
        {"time_pct": 5.0},
        {"name": None, "time_pct": None, "waiting_pct": None, "queue_pct": None},
        {"thread": 8},  # the main thread works: this one does not hold it up
        {"name": "sql_per_row", "stretch_s": 2.0},  # one long statement
        {"name": "backtracking", "able_s": 0.03},  # many short matches
        {"name": "imports", "func": "<module>"},  # at the top of a file
        {"name": "classes_built", "func": "<module>"},
        {"name": "polling", "waiting_pct": 58.0},  # it waits, and burns nothing
        {"name": "tiny_sleeps", "queue_pct": 56.0},  # it waits for a processor, and burns none
        {"name": "tiny_sleeps", "queue_pct": 50.0, "cpu_pct": 8.0, "given_pct": 16.0},  # in a crowd
        {
            "name": "tiny_sleeps",
            "time_pct": 85.0,
            "waiting_pct": 30.0,
            "queue_pct": 34.0,
            "cpu_pct": 12.0,
            "given_pct": 60.0,
        },  # it sleeps for a millisecond, and then queues
        # A share of the little that a crowd leaves it, but hardly anything of a processor.
        {
            "name": "tiny_sleeps",
            "waiting_pct": 10.0,
            "queue_pct": 20.0,
            "cpu_pct": 4.0,
            "given_pct": 20.0,
        },
        {"name": "tiny_sleeps", "cpu_pct": 1.0},  # its queue is not known, but that it used none is
    ],
)
def test_what_is_not_costly_is_no_finding(change: dict[str, object]) -> None:
    assert not judge(change).fired


def test_a_loop_that_polls_is_found_though_it_mostly_waits_for_a_processor() -> None:
    starved = {"name": "polling", "time_pct": 70.0, "queue_pct": 63.0, "cpu_pct": 8.0}
    assert judge({**starved, "given_pct": 14.0}).fired
    assert not judge({**starved, "given_pct": 90.0}).fired  # it has rested the most of the time


def test_a_method_of_the_programs_own_is_named_beside_the_line_that_needs_it() -> None:
    found = judge({"name": "own_equality", "call": "builtins.hash", "method": "State.__hash__"})
    assert found.evidence["call"] == "State.__hash__"
    assert found.lost_pct == 60


def test_of_calls_inside_of_each_other_the_innermost_is_named() -> None:
    log = {"name": "logging", "depth": 5, "time_pct": 90.0}
    sync = {"name": "fsync", "depth": 0, "lineno": 3, "call": "posix.fsync"}
    assert "fsync" in judge(log, {**sync, "time_pct": 85.0}).title
    # It explains little, and is a cause of its own.
    logged, synced = judge_all(log, {**sync, "time_pct": 30.0})
    assert "Logging" in logged.title and "fsync" in synced.title
    json = {"name": "json", "depth": 0, "time_pct": 89.0}  # may be what the program is for
    assert "Logging" in judge_all(log, json)[0].title


def test_of_two_kinds_that_tell_of_the_same_time_the_special_one_is_named() -> None:
    derive = {"call": "_hashlib.pbkdf2_hmac", "depth": -1}
    for names in (("hashing", "passwords"), ("passwords", "hashing")):
        assert "passwords" in judge(*({**derive, "name": name} for name in names)).title


def test_causes_that_take_time_of_their_own_are_all_told() -> None:
    search, dates = {"time_pct": 50.0}, {"name": "date_parsing", "lineno": 20, "time_pct": 30.0}
    told = judge_all(search, dates)
    assert [one.line for one in told] == ["/job/app.py:8 in add", "/job/app.py:20 in add"]
    assert [one.lost_pct for one in told] == [50, 30]
    # Two names of the same time are one cause, and so are two kinds at one line.
    assert len(judge_all(search, {**dates, "shared": "list_search 2900000000"})) == 1
    assert len(judge_all(search, {**dates, "lineno": 8})) == 1
    # Single ones that are worth no word are not told beside others.
    assert len(judge_all(search, {**dates, "time_pct": 10.0})) == 1


def test_what_says_more_of_much_of_the_same_time_is_told_in_its_place() -> None:
    stacks = {"name": "stack_inspection", "time_pct": 77.0, "shared": "asyncio_debug 5200000000"}
    debug = {"name": "asyncio_debug", "time_pct": 52.0, "shared": "stack_inspection 5200000000"}
    assert "debug mode" in judge(stacks, {**debug, "depth": 13, "lineno": 2}).title
    little = {**debug, "time_pct": 20.0, "shared": "stack_inspection 2000000000"}
    assert "stack" in judge({**stacks, "shared": "asyncio_debug 2000000000"}, little).title


def test_another_thread_counts_where_the_main_thread_only_waits() -> None:
    assert judge({"thread": 8, "rest_pct": 95.0}).fired


@pytest.mark.parametrize(
    "change",
    [
        {"name": "json"},
        {"name": "sql_per_row", "is_request": True},
        {"name": "compression"},
        {"name": "backtracking", "able_s": 0.8},  # or a list of matches of short texts
    ],
)
def test_what_a_program_may_be_for_is_only_mentioned(change: dict[str, object]) -> None:
    found = judge(change)
    assert found.fired
    assert (found.lost_pct, found.severity) == (None, "info")


@pytest.mark.parametrize(
    ("call", "time_pct", "lost_pct"),
    [
        ("numpy.ndarray.__getitem__", 60.0, 60),
        ("numpy.ndarray.__getitem__", 40.0, None),
        ("numpy.ndarray.__setitem__", 60.0, None),  # each may be an image
    ],
)
def test_what_takes_most_of_the_time_and_is_known_to_be_avoidable_is_more_than_mentioned(
    call: str, time_pct: float, lost_pct: float | None
) -> None:
    found = judge({"name": "elements", "call": call, "time_pct": time_pct, "cpu_pct": time_pct})
    assert (found.fired, found.lost_pct) == (True, lost_pct)


def test_a_line_that_waits_for_a_processor_makes_no_long_calls_and_no_short_ones() -> None:
    crowded = {"stretch_s": 2.0, "able_s": 0.1}
    assert not judge({"name": "backtracking", **crowded}).fired
    assert not judge({"name": "sql_per_row", **crowded}).fired


def test_a_single_match_that_takes_long_backtracks() -> None:
    long = {"name": "backtracking", "able_s": 0.8}
    assert judge({**long, "call": "re.Pattern.match"}).lost_pct == 60
    assert judge({**long, "call": "re.Pattern.findall"}).lost_pct is None  # the text may be long


@pytest.mark.parametrize(
    ("change", "severity"),
    [
        ({"name": "requests_in_turn", "waiting_pct": 97.0, "time_pct": 98.0}, "info"),
        ({"name": "requests_in_turn", "waiting_pct": 60.0, "time_pct": 61.0}, "warning"),
        ({"name": "subprocess_per_item", "time_pct": 97.0}, "info"),
        ({"name": "subprocess_per_item", "time_pct": 60.0}, "warning"),
        ({"name": "fsync", "time_pct": 97.0}, "warning"),
    ],
)
def test_a_driver_that_does_nothing_else_may_be_meant_to_go_one_by_one(
    change: dict[str, object], severity: str
) -> None:
    found = judge(change)
    assert found.fired and found.lost_pct >= 60  # what it would gain is told in any case
    assert Tally([found._replace(readings=99)], danger=False, most="warning").severity == severity


def test_lines_with_the_same_kind_of_call_are_added_up() -> None:
    found = judge({"time_pct": 30.0}, {"time_pct": 25.0, "lineno": 20})
    assert found.evidence["time_pct"] == 55
    assert found.line == "/job/app.py:8 in add"


def test_requests_that_several_threads_wait_for_are_not_sent_in_turn() -> None:
    one = {"name": "requests_in_turn", "waiting_pct": 60.0}
    assert judge(one).fired
    assert not judge({**one, "rest_pct": 99.0}, {**one, "rest_pct": 99.0, "thread": 8}).fired


def test_requests_that_threads_of_the_same_process_answer_are_no_reason_to_send_more_at_once() -> (
    None
):
    one = {"name": "requests_in_turn", "waiting_pct": 60.0}
    assert not judge({**one, "others_pct": 45.0}).fired
    assert judge({**one, "others_pct": 30.0}).fired  # another thread works, but not all that time


@pytest.mark.parametrize("name", ["requests_in_turn", "unanswered"])
def test_requests_to_a_server_of_the_same_job_are_only_mentioned(name: str) -> None:
    one = {"name": name, "waiting_pct": 60.0, "able_s": 1.0}
    assert judge(one).lost_pct == 60
    found = judge({**one, "is_serving": True})
    assert found.fired and (found.lost_pct, found.most) == (None, "info")
    assert judge({"is_serving": True}).lost_pct == 60  # whatever else it does


@pytest.mark.parametrize(
    ("file", "is_told"), [("/usr/lib/python3.11/socketserver.py", True), ("/job/socketserver.py", False)]
)  # fmt: skip
def test_a_server_of_the_job_is_known_by_what_answers(file: str, is_told: bool) -> None:
    with duckdb.connect() as connection:
        record_requests(connection, 80)
        connection.execute(
            "INSERT INTO python.frame VALUES (1, 1, 'serve_forever', ?, 230)", [file]
        )
        rows = connection.execute(costly_calls.SQL.format(piece="0", inside="TRUE", **LIMITS))
        names = [column[0] for column in rows.description]
        assert {row[names.index("is_serving")] for row in rows.fetchall()} == {is_told}


@pytest.mark.parametrize(("time_pct", "lost_pct"), [(68.0, None), (90.0, 90)])
def test_many_statements_of_a_database_in_the_same_process_may_be_well(
    time_pct: float, lost_pct: float | None
) -> None:
    found = judge({"name": "sqlite_per_row", "time_pct": time_pct, "cpu_pct": time_pct})
    assert found.fired and found.lost_pct == lost_pct


@pytest.mark.parametrize(
    ("file", "is_told"),
    [("/usr/lib/python3.11/random.py", True), ("/usr/lib/python3.11/queue.py", False)],
)
def test_what_some_functions_of_python_do_for_a_line_is_that_lines_doing(
    file: str, is_told: bool
) -> None:
    with duckdb.connect() as connection:
        record_requests(connection, 0)
        connection.execute(
            "DELETE FROM python.frame;"
            "INSERT INTO python.frame VALUES (1, 1, 'draw', '/job/memory.py', 17);"
            "UPDATE python.stack_sample SET call = 'collections.deque.__getitem__', idle = FALSE, "
            "cpu_ns = wall_ns"
        )
        connection.execute(
            "INSERT INTO python.frame VALUES (1, 0, 'Random.sample', ?, 477)", [file]
        )
        (verdict,) = ask(connection)
    assert verdict.fired == is_told
    assert not is_told or ("deque" in verdict.title and verdict.line == "/job/memory.py:17 in draw")


def test_each_cause_has_a_finding_of_its_own_with_its_own_line() -> None:
    def make(piece: int, title: str, line: str, lost_pct: float | None) -> Verdict:
        return Verdict(
            piece, True, lost_pct=lost_pct, severity="info", readings=99, title=title, line=line
        )

    verdicts = [
        make(at, *cause)
        for at in range(3)
        for cause in (("Compressing", "web.py:5", 50.0), ("Requests", "client.py:9", None))
    ]
    verdicts.append(make(0, "Sorting", "web.py:8", 40.0))  # in a few pieces
    parts = Tally([*verdicts, *(Verdict(at, False) for at in range(3, 5))], danger=False).split()
    assert [(one.pick("title"), one.pick("line"), one.severity) for one in parts] == [
        ("Compressing", "web.py:5", "critical"),
        ("Requests", "client.py:9", "info"),
    ]
    assert [one.votes for one in parts] == ["several", "several"]


def test_what_can_only_be_mentioned_comes_behind_other_causes() -> None:
    verdicts = [
        Verdict(at, True, severity="info", title=title, most=most)
        for at in range(3)
        for title, most in (("Requests", "info"), ("Compressing", "critical"))
    ]
    parts = Tally(verdicts, danger=False).split()
    assert [one.pick("title") for one in parts] == ["Compressing", "Requests"]


def test_causes_of_which_none_is_worth_a_word_alone_stay_together() -> None:
    verdicts = [Verdict(at, at < 2, severity="info", title=str(at)) for at in range(5)]
    (one,) = Tally(verdicts, danger=False).split()
    assert len(one.fired) == 2


def test_what_a_line_does_without_a_call_is_seen_too() -> None:
    with duckdb.connect() as connection:
        record_requests(connection, 0)
        connection.execute(
            "UPDATE python.stack_sample SET call = '{**}', idle = FALSE, cpu_ns = wall_ns"
        )
        (verdict,) = ask(connection)
    assert verdict.fired and "{**a, …}" in verdict.title
    assert verdict.line == "/job/app.py:3 in serve"


def test_each_kind_of_call_has_a_name_of_its_own_and_is_seen_by_something() -> None:
    known = costly_calls.CALLS
    assert len({one.name for one in known}) == len(known)
    assert all(one.frames or one.calls for one in known)


def test_a_method_of_numpy_that_is_named_is_there() -> None:
    numpy = pytest.importorskip("numpy")
    (kind,) = (one for one in costly_calls.CALLS if one.name == "vectorize")
    code = numpy.vectorize.__call__.__code__
    assert any(
        code.co_filename.endswith(path) and code.co_name == func.rpartition(".")[2]
        and numpy.vectorize.__call__.__qualname__.endswith(func)
        for path, _, func in (frame.partition(":") for frame in kind.frames)
    )  # fmt: skip


def record_requests(connection: duckdb.DuckDBPyConnection, requests: int) -> None:
    """A main thread that rests for 10 s, and so many threads, each of which parses JSON for 0.1 s:
    stack 1 and stack 2."""
    connection.execute(
        "CREATE SCHEMA python;"
        "CREATE TABLE python.frame(stack INT, depth INT, func TEXT, file TEXT, lineno INT);"
        "CREATE TABLE python.stack_sample(ts TIMESTAMPTZ, host TEXT, pid INT, thread INT, "
        "t_ns BIGINT, stack INT, call TEXT, idle BOOL, samples INT, wall_ns BIGINT, "
        "queue_ns BIGINT, cpu_ns BIGINT, gil BOOL, wait TEXT);"
        "INSERT INTO python.frame VALUES (1, 0, 'serve', '/job/app.py', 3), "
        "(2, 0, 'loads', '/lib/python3/json/__init__.py', 9), (2, 1, 'read', '/job/app.py', 8)"
    )
    second = 10**9
    rows = [(7, at * second, 1, True, second, 0) for at in range(10)]
    rows += [(100 + at, at * second // 10, 2, False, second // 10, second // 10)
             for at in range(requests)]  # fmt: skip
    connection.executemany(
        "INSERT INTO python.stack_sample VALUES (make_timestamptz(0), 'alpha', 7, ?, ?, ?, NULL, "
        "?, 10, ?, 0, ?, FALSE, NULL)", rows,
    )  # fmt: skip


def ask(connection: duckdb.DuckDBPyConnection) -> list[Verdict]:
    found = connection.execute(costly_calls.SQL.format(piece="0", inside="TRUE", **LIMITS))
    make = namedtuple("Found", [column[0] for column in found.description])
    return list(costly_calls.judge([make(*row) for row in found.fetchall()], LIMITS))


@pytest.mark.parametrize(("requests", "is_told"), [(80, True), (20, False)])
def test_threads_that_live_for_a_moment_are_taken_together(requests: int, is_told: bool) -> None:
    with duckdb.connect() as connection:
        record_requests(connection, requests)
        (verdict,) = ask(connection)
    assert verdict.fired == is_told
    if is_told:
        assert "JSON" in verdict.title
        assert verdict.line == "/job/app.py:8 in read"
        assert verdict.evidence["time_pct"] == pytest.approx(80)


def test_requests_that_threads_of_a_moment_send_are_not_sent_in_turn() -> None:
    one = {"name": "requests_in_turn", "waiting_pct": 60.0, "rest_pct": 99.0}
    assert judge({**one, "thread": 8}).fired
    assert not judge({**one, "thread": costly_calls.BRIEF}).fired


@pytest.mark.parametrize(
    "file",
    [
        "/home/me/shop.py", "/home/me/sonde/bench/run.py", "/home/me/src/sonde/job/recorder.py",
        "/home/me/src/sonde/environ.py", "/v/lib/python3.12/site-packages/flask/app.py",
        "/usr/lib/python3.11/json/decoder.py", "/v/bin/torchrun", "<frozen runpy>",
    ],
)  # fmt: skip
def test_rules_and_the_tree_agree_about_whose_code_a_file_is(file: str) -> None:
    from sonde.advice.rules._code import OWN
    from sonde.analysis.code_names import MINE, find_owner

    (row,) = duckdb.execute(f"SELECT {OWN} FROM (SELECT ? AS file)", [file]).fetchall()
    assert row[0] == (find_owner(file) == MINE)


@pytest.mark.parametrize(("pieces", "severity"), [((1,), "info"), ((0, 2), "critical")])
def test_one_save_is_mentioned_and_saving_again_and_again_is_warned_of(
    pieces: tuple[int, ...], severity: str
) -> None:
    none = {"name": None, "time_pct": None, "waiting_pct": None}
    rows = [Row(**USUAL | {"piece": at} | ({"name": "saving"} if at in pieces else none)) for at in range(3)]  # fmt: skip
    found = Tally(list(costly_calls.judge(rows, LIMITS)), danger=False)
    assert found.is_found and found.severity == severity


def test_a_pool_that_is_made_once_is_not_told_to_be_made_again_and_again() -> None:
    none = {"name": None, "time_pct": None, "waiting_pct": None}
    for pieces, severity, title in (
        ((1,), "info", "Starting and ending processes takes"),
        ((0, 2), "critical", "Processes are started and ended again and again"),
    ):
        rows = [Row(**USUAL | {"piece": at} | ({"name": "processes_started"} if at in pieces else none)) for at in range(3)]  # fmt: skip
        found = [one for one in costly_calls.judge(rows, LIMITS) if one.fired]
        assert {one.title.startswith(title) for one in found} == {True}
        assert Tally(found, danger=False).severity == severity


ORM = "/lib/python3/site-packages/sqlalchemy/orm"


@pytest.mark.parametrize(
    ("through", "title"),
    [
        ([("_emit_lazyload", f"{ORM}/strategies.py")], "One SQL statement after the other"),
        ([("get", f"{ORM}/session.py")], "One SQL statement after the other"),
        ([], "Making objects of the rows"),
    ],
)
def test_making_objects_of_the_rows_of_one_statement_is_not_one_statement_after_the_other(
    through: list[tuple[str, str]], title: str
) -> None:
    stack = [("_instance", f"{ORM}/loading.py"), *through, ("all", f"{ORM}/query.py"),
             ("report", "/job/app.py")]  # fmt: skip
    with duckdb.connect() as connection:
        record_requests(connection, 0)
        connection.execute("DELETE FROM python.frame")
        for depth, (func, file) in enumerate(stack):
            row = [depth, func, file, depth]
            connection.execute("INSERT INTO python.frame VALUES (1, ?, ?, ?, ?)", row)
        connection.execute(
            "UPDATE python.stack_sample SET idle = FALSE, cpu_ns = wall_ns, wall_ns = 2 * 10**7, "
            "samples = 1"
        )
        (verdict,) = ask(connection)
    assert verdict.fired and title in verdict.title
    assert (verdict.lost_pct is None) == ("objects" in title)  # that may be what it is for


def test_a_statement_that_sleeps_waits_for_whoever_keeps_the_database_locked() -> None:
    sleeps = {
        "time_pct": 95.0,
        "waiting_pct": 94.0,
        "asleep_pct": 93.0,
        "call": "sqlite3.Connection.execute",
    }
    found = judge({"name": "sql_per_row", **sleeps}, {"name": "database_locked", **sleeps})
    assert found.title == "SQL statements wait for a database that another connection locks"
    assert found.lost_pct == 93
    works = {**sleeps, "asleep_pct": 4.0}
    assert (
        "One SQL statement"
        in judge({"name": "sql_per_row", **works}, {"name": "database_locked", **works}).title
    )


def test_in_a_crowd_whoever_is_waited_for_may_have_no_processor_either() -> None:
    waits = {
        "name": "unanswered",
        "waiting_pct": 60.0,
        "able_s": 1.0,
        "call": "_socket.socket.connect",
    }
    assert judge(waits).crowd == "info"
    assert judge({}).crowd == "critical"
    tally = Tally([judge(waits)], danger=False)
    rule = SimpleNamespace(name="costly_calls", module=costly_calls)
    crowd = SimpleNamespace(name="cpu_starved", module=cpu_starved)
    others = Tally([Verdict(0, True, severity="info", is_own=False)], danger=False)
    assert tally.severity != "info"
    ((_rule, doubted), _) = doubt_in_crowd([(rule, tally), (crowd, others)])
    assert doubted.severity == "info"
