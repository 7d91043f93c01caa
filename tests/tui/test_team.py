"""Several processes as one: their sum, and the one that differs."""

from __future__ import annotations

from types import SimpleNamespace

from sonde.tui.page import Choice
from sonde.tui.shares import weigh
from sonde.tui.team import find_members, sum_shares
from sonde.tui.team_page import (
    describe_team,
    describe_team_losses,
    find_most,
    make_team_page,
)
from sonde.tui.tree import StackTree, Unit

SECOND = 10**9
WAITS = Unit("SyncWorker.wait", "/opt/lib/python3.11/site-packages/gunicorn/sync.py", 32)
SELECT = Unit("select", "/usr/lib/python3.11/selectors.py", 415)
APP = Unit("app", "/job/wsgi.py", 9)
SLOW = Unit("slow", "/job/wsgi.py", 4)


class Process:
    """A worker that has spent these seconds: in a stack, idle or not."""

    def __init__(
        self, pid: int, *spent: tuple[tuple[Unit, ...], bool, float], ppid: int = 9
    ) -> None:
        meta = SimpleNamespace(ppid=ppid, job="shop-9")
        self.session = SimpleNamespace(pid=pid, host="here", rank=None, meta=meta)
        self.tree, self.sums = StackTree(), {}
        self.is_live, self.folder = True, "/job"
        for number, (stack, idle, seconds) in enumerate(spent):
            parent = -1
            for depth, unit in enumerate(stack):
                self.tree.add(100 * number + depth, parent, *unit, unit.line)
                parent = len(self.tree) - 1
            key = pid, 100 * number + len(stack) - 1, False, idle
            self.sums[key] = (1, round(seconds * SECOND), 0)

    def read_usage(self) -> dict[str, float]:
        return {"user_pct": 15.0, "system_pct": 5.0, "rss_bytes": 2.0**20, "threads": 2.0}

    def count_threads(self) -> int:
        return 2

    def list_misses(self) -> list[str]:
        return ["some"] if self.session.pid == 1 else []

    def add_up(self, _window_s: float) -> dict:
        return self.sums

    def find_span(self, _window_s: float) -> int:
        return 10 * SECOND

    def weigh(self, _window_s: float, weight: str, *, idle: bool, thread: int | None):
        return weigh(self.tree, self.sums, weight, idle=idle, thread=thread)


WORKERS = [
    Process(1, ((WAITS, SELECT), True, 8), ((WAITS, APP), False, 2)),
    Process(2, ((WAITS, SELECT), True, 3), ((WAITS, APP), False, 2), ((WAITS, APP, SLOW), True, 5)),
    Process(3, ((WAITS, SELECT), True, 7.9), ((WAITS, APP), False, 2.1)),
]


def test_the_one_that_waits_in_its_own_code_differs_and_rest_does_not_count() -> None:
    first, second, third = find_members(WORKERS, 10.0)
    assert (second.unit, second.more_pct) == (SLOW, 50.0)
    assert (second.working_pct, second.waiting_pct) == (20.0, 50.0)
    assert first.unit is None and third.unit is None and first.waiting_pct == 0
    assert second.wait == SLOW and first.wait is None


def test_a_master_that_rests_and_a_slow_worker_are_nobody_to_differ_from() -> None:
    master = Process(9, ((WAITS, SELECT), True, 10))
    quick = [Process(n, ((WAITS, APP), False, 8)) for n in (1, 2)]
    slow = Process(3, ((WAITS, APP), False, 1), ((WAITS, APP, SLOW), True, 8))
    found = find_members([master, *quick, slow], 10.0)
    assert [one.unit for one in found] == [None, None, None, SLOW]


def test_who_does_a_little_more_because_another_is_slow_does_not_differ() -> None:
    quick = [Process(n, ((WAITS, APP), False, 4)) for n in (1, 2)]
    busy = Process(3, ((WAITS, APP), False, 5))
    slow = Process(4, ((WAITS, APP), False, 1), ((WAITS, APP, SLOW), True, 6))
    found = find_members([*quick, busy, slow], 10.0)
    assert [(one.unit, round(one.more_pct)) for one in found] == [
        (None, 0), (None, 0), (None, 0), (SLOW, 60),
    ]  # fmt: skip
    found = find_members([*quick, busy], 10.0)  # nobody differs by more
    assert [(one.unit, round(one.more_pct)) for one in found] == [(None, 0)] * 3
    hung = Process(3, ((WAITS, APP), False, 9))
    found = find_members([*quick, hung], 10.0)
    assert [(one.unit, round(one.more_pct)) for one in found] == [(None, 0), (None, 0), (APP, 50)]


def test_where_the_others_do_little_one_differs_by_what_it_does_and_not_by_how_much() -> None:
    quick = [Process(n, ((WAITS, APP), False, 0.4)) for n in (1, 2, 3)]
    slow = Process(4, ((WAITS, APP), False, 0.1), ((WAITS, APP, SLOW), True, 2.5))
    found = find_members([*quick, slow], 10.0)
    assert [(one.unit, round(one.more_pct)) for one in found] == [(None, 0)] * 3 + [(SLOW, 25)]
    busy = Process(4, ((WAITS, APP), False, 2.6))  # the kernel gives one most of the requests
    assert [one.unit for one in find_members([*quick, busy], 10.0)] == [None] * 4


def test_what_waits_for_the_workers_that_it_started_is_compared_with_nobody() -> None:
    main = Process(9, ((APP, SELECT), False, 4), ((APP, SLOW), True, 6), ppid=1)
    assert [one.unit for one in find_members([main, *WORKERS], 10.0)] == [None, None, SLOW, None]


def test_in_which_line_of_a_loop_each_was_seen_more_often_is_no_difference() -> None:
    first, second = (Unit("crunch", "/job/pool.py", line) for line in (4, 5))
    workers = [
        Process(n, ((first,), False, seconds), ((second,), False, 9 - seconds))
        for n, seconds in ((1, 2), (2, 5), (3, 8))
    ]
    assert [one.unit for one in find_members(workers, 10.0)] == [None] * 3
    slow = Process(4, ((first,), False, 2), ((second,), False, 1), ((SLOW,), True, 6))
    assert [one.unit for one in find_members([*workers, slow], 10.0)] == [None, None, None, SLOW]


def test_a_forked_worker_does_not_do_what_its_parent_did_when_it_started_it() -> None:
    child = Unit("BaseProcess._bootstrap", "/usr/lib/python3.11/multiprocessing/process.py", 314)
    take = Unit("SimpleQueue.get", "/usr/lib/python3.11/multiprocessing/queues.py", 365)
    workers = [
        Process(n, ((APP, child, take), True, 6), ((APP, child, SLOW), False, 4)) for n in (1, 2)
    ]
    for member in find_members(workers, 10.0):
        assert (member.waiting_pct, member.working_pct, member.wait) == (0, 40, None)


def test_the_times_of_all_processes_are_added_up() -> None:
    found, whole = sum_shares(WORKERS, Choice("lines", "wall", 10.0, True))
    times = {share.unit: (share.self_ns, share.total_ns) for share in found}
    assert whole == 30 * SECOND
    assert times[APP] == (round(6.1 * SECOND), round(11.1 * SECOND))


def test_what_happens_in_an_import_is_that_import() -> None:
    lib = "/usr/lib/python3.11/site-packages"
    begin = Unit("<module>", "/job/app.py", 1)
    machinery = Unit("_find_and_load", "<frozen importlib._bootstrap>", 1)
    numpy = Unit("<module>", f"{lib}/numpy/__init__.py", 5)
    linalg = Unit("<module>", f"{lib}/numpy/linalg/__init__.py", 5)
    own = Unit("<module>", "/job/shop.py", 3)
    process = Process(
        1,
        ((begin, machinery), False, 1),
        ((begin, machinery, numpy, machinery, linalg), False, 4),
        ((begin, machinery, own), False, 2),
    )
    found, _whole = sum_shares([process], Choice(window_s=300.0, idle=True))
    times = {share.unit.func: (share.self_ns, share.total_ns) for share in found}
    assert times["import numpy"] == (4 * SECOND, 4 * SECOND)
    assert times["(all imports)"] == (
        1 * SECOND,
        7 * SECOND,
    )  # all of them, with what they are part of
    assert (2 * SECOND, 2 * SECOND) in times.values() and "_find_and_load" not in times
    assert "import numpy.linalg" not in times


def test_the_screen_sums_up_all_processes_and_names_the_one_that_differs() -> None:
    whole, *others = describe_team(WORKERS, 10.0, 200)
    assert whole == "shop-9  3 processes  CPU 60%  RSS 3.0M  threads 6"
    assert others == ["pid 2 differs: +50 % of the time in slow (wsgi.py:4)"]
    # Where there is no room the name is cut, never its place.
    long = Unit("Inventory.fetch_from_the_remote_service", SLOW.file, SLOW.line)
    lazy = Process(4, ((WAITS, APP, long), True, 9), ((WAITS, APP), False, 1))
    (other,) = describe_team([*WORKERS[::2], lazy], 10.0, 70)[1:]
    assert len(other) <= 70 and "Inventory.f" in other and other.endswith("\u2026 (wsgi.py:4)"), (
        other
    )
    inner = Process(5, ((WAITS, APP, SLOW._replace(func="app.<locals>.slow")), True, 9))
    (other,) = describe_team([*WORKERS[::2], inner], 10.0, 70)[1:]
    assert other.endswith(" in app.slow (wsgi.py:4)"), other
    assert describe_team_losses(WORKERS) == ["lost: samples of 1 process: enter shows which"]
    page = make_team_page(Choice("lines", "wall", 10.0, idle=True), WORKERS)
    assert "the sum of 3 processes" in page.title
    rows = {row.key: row.cells for row in page.rows}
    assert rows[APP][:3] == ("20.3", "37.0", "6.1s")


def test_the_calls_of_a_function_are_those_of_the_process_that_spends_most_in_it() -> None:
    assert find_most(WORKERS, Choice("lines", "wall", 10.0, idle=True), SLOW) == 1


def test_processes_that_have_ended_do_not_count_while_others_run() -> None:
    late = Process(4, ((WAITS, APP), False, 9))
    late.is_live = False
    assert "3 processes" in describe_team([late, *WORKERS], 10.0, 200)[0]
    assert describe_team([late], 10.0, 200)[0] == "shop-9  1 process  all have ended"
