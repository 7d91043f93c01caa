"""sonde compare: what changed is told, noise is not."""

from __future__ import annotations

import cProfile
import json
import os
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa
import pytest

from sonde.advice.compare import (
    Change,
    Comparison,
    Side,
    _doubt_gains,
    compare,
    match_keys,
    order_code,
    read_changes,
    split_target,
    weigh,
)  # fmt: skip
from sonde.advice.compare_awaits import AWAITS, compare_awaits
from sonde.advice.compare_measures import A_RUN, LESS, MORE, RUN, Measure
from sonde.advice.compare_waits import WAITING, Owners, _name_wait, find_alone, read_waits
from sonde.advice.period import Period
from sonde.analysis.awaits import Await
from sonde.cli.compare import _describe_comparison, _show_change
from sonde.errors import Error
from support.handmade_machine import GB, NOTHING, record

PARTS = {"input_wait": 0.0, "host_to_device": 0.0, "forward": 0.03, "backward": 0.05,
         "optimizer": 0.01, "other": 0.01}  # fmt: skip


def steps(noise: float = 0.01, seed: int = 0, **parts: float):
    """Ten steps a look, whose parts vary by so much."""
    chance = random.Random(seed)

    def look(passed_s: float) -> list[dict[str, object]]:
        rows = []
        for at in range(10):
            one = {name: value * chance.gauss(1, noise) for name, value in (PARTS | parts).items()}
            number = round(passed_s) * 10 + at
            times_ns = {f"{name}_ns": round(1e9 * value) for name, value in one.items()}
            rows.append({"step": number, "dur_ns": sum(times_ns.values()), "ended_by": "user",
                         "unrecorded": False, "training": True, **times_ns})  # fmt: skip
        return rows

    return look


def find(found, name: str):
    (row,) = [row for row in (*found.changes, *found.code) if row.name == name]
    return row


def test_a_slower_part_is_told_with_its_size(root) -> None:
    before = record(60, torch_step=steps(), **NOTHING)
    after = record(60, torch_step=steps(seed=1, input_wait=0.02), **NOTHING)
    found = compare(before, after)
    step, wait = find(found, "step"), find(found, "input wait")
    assert found.verdict == step.verdict == wait.verdict == "worse"
    assert step.change_pct == pytest.approx(20, abs=1) and step.much
    assert wait.change == pytest.approx(20, abs=0.5) and wait.low < 20 < wait.high
    assert find(found, "backward").verdict == "same"
    assert compare(after, before).verdict == "better"


def test_two_copies_of_one_recording_are_told_as_such(root, sonde_cli) -> None:
    folder = record(40, torch_step=steps(0.02))
    copy = f"{folder}-copy"
    shutil.copytree(folder, copy)
    for target in (folder, copy):
        done = sonde_cli("compare", folder, target)
        assert done.stdout.startswith("nothing changed: both are the same recording\n")


def test_the_same_job_twice_is_the_same(root) -> None:
    before = record(60, torch_step=steps())
    after = record(60, torch_step=steps(seed=1))
    found = compare(before, after)
    assert found.verdict == "same"
    assert {row.verdict for row in found.changes} <= {"same"}
    assert not found.appeared and not found.vanished


def test_noise_larger_than_the_change_is_unclear(root) -> None:
    before = record(30, torch_step=steps(noise=0.6), **NOTHING)
    after = record(30, torch_step=steps(noise=0.6, seed=3), **NOTHING)
    assert find(compare(before, after), "step").verdict == "unclear"


def test_chance_alone_is_rarely_called_a_change() -> None:
    chance = random.Random(5)
    measure = Measure("step", "ms", "", LESS, change=0.0)
    wrong = 0
    for _ in range(1000):
        before, after = ([chance.gauss(100, 10) for _ in range(20)] for _ in range(2))
        wrong += weigh(measure, "", before, after).verdict in ("worse", "better")
    assert 20 <= wrong <= 80  # 50 are to be expected


def test_a_change_that_is_there_is_seen() -> None:
    chance = random.Random(6)
    measure = Measure("GPU use", "%", "", MORE)
    before = [chance.gauss(90, 2) for _ in range(20)]
    after = [chance.gauss(80, 2) for _ in range(20)]
    found = weigh(measure, "", before, after)
    assert (found.verdict, found.much) == ("worse", True)
    assert found.low < -10 < found.high < 0


def test_memory_and_gpu_have_their_own_measures(root) -> None:
    before = record(40)
    after = record(40, gpu={"util_pct": 70.0}, process={"rss_bytes": 6 * GB})
    found = compare(before, after)
    assert find(found, "GPU use").verdict == "worse"
    memory = find(found, "memory of the job")
    assert (memory.change, memory.verdict, memory.much) == (2000.0, "worse", True)
    assert find(found, "CPU of the job").verdict == "same"


def test_advice_that_appears_and_goes_is_told(root) -> None:
    healthy = record(40)
    swapping = record(40, memory={"swap_in_bytes": 60_000_000})
    assert [finding.rule for finding in compare(healthy, swapping).appeared] == ["swap"]
    assert [finding.rule for finding in compare(swapping, healthy).vanished] == ["swap"]


def answers(ms: float):
    """Two requests a look; those of one route take so long."""
    row = {"framework": "django", "method": "GET", "status": 200, "thread": 1, "others": 0}
    routes = ("/order/{id}", ms), ("/", 2)
    return lambda _t: [{**row, "route": route, "dur_ns": round(1e6 * of)} for route, of in routes]


def test_a_route_that_answers_later_is_told(root) -> None:
    found = compare(*(record(40, request=answers(ms)) for ms in (20, 45)))
    slow = find(found, "GET /order/{id}")
    assert (slow.verdict, slow.unit, slow.much) == ("worse", "ms a request", True)
    assert (slow.before, slow.after) == (20, 45)
    assert find(found, "GET /").verdict == "same"


def test_a_server_is_judged_by_its_requests_and_not_by_how_long_it_ran(root, sonde_cli) -> None:
    before, after = record(60, request=answers(20)), record(20, request=answers(45))
    found = compare(before, after)
    assert found.verdict == "worse" and not [row for row in found.changes if row.name == "run"]
    told = sonde_cli("compare", before, after).stdout
    assert told.startswith("much slower: GET /order/{id}, 20 → 45 ms a request\n")


def orders(ms: float):
    row = {"kind": "span", "id": 1, "thread": 1, "end_thread": 1, "paused_ns": 0, "interpreter": 0}
    return lambda _t: {**row, "name": "order", "dur_ns": round(1e6 * ms)}


def test_a_span_that_takes_longer_is_told(root) -> None:
    found = compare(*(record(40, span=orders(ms)) for ms in (20, 45)))
    slow = find(found, "span order")
    assert (slow.verdict, slow.unit, slow.much) == ("worse", "ms a span", True)
    assert (slow.before, slow.after) == (20, 45)


def test_a_run_that_did_more_and_each_piece_faster_is_not_slower(root, sonde_cli) -> None:
    """A program that runs for a given time may take a little longer to end; its work tells."""
    before = record(20, span=lambda t: [orders(95)(t) for _ in range(10)])
    after = record(26, span=lambda t: [orders(1)(t) for _ in range(800)])
    found = compare(before, after)
    assert (found.verdict, find(found, "run").verdict) == ("better", "different")
    told = sonde_cli("compare", before, after).stdout
    assert told.startswith("much faster: span order, 95 → 1 ms a span; the run took 1")


def test_a_run_that_did_the_same_work_is_judged_by_its_length(root) -> None:
    before = record(20, span=lambda t: [orders(95)(t) for _ in range(10)])
    after = record(30, span=lambda t: [orders(95)(t) for _ in range(10)])
    assert find(compare(before, after), "run").verdict == "worse"


def test_two_stretches_of_one_recording(root) -> None:
    fast, slow = steps(), steps(input_wait=0.05)
    folder = record(60, torch_step=lambda s: fast(s) if s < 30 else slow(s), **NOTHING)
    found = compare(f"{folder}@..+28s", f"{folder}@+31s..")
    assert find(found, "input wait").change == pytest.approx(50, abs=1)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("4711", ("4711", None, None)),
        ("4711@+2s..+8s", ("4711", "+2s", "+8s")),
        ("a@b@..5m", ("a@b", None, "5m")),
        ("user@host", ("user@host", None, None)),
    ],
)
def test_a_target_may_name_a_stretch(words: str, parts: tuple[str, str | None, str | None]) -> None:
    assert split_target(words) == parts


def test_what_is_too_short_is_refused(root) -> None:
    folder = record(3)
    with pytest.raises(Error, match="too short"):
        compare(folder, folder)


def test_the_command_says_the_verdict_first_and_fails_if_asked(root, sonde_cli) -> None:
    before = record(40, torch_step=steps())
    after = record(40, torch_step=steps(seed=1, input_wait=0.02))
    done = sonde_cli("compare", before, after, "--fail-on", "much-worse")
    assert done.returncode == 8, done.stderr
    assert done.stdout.startswith("much slower: a step takes +20")
    assert "input wait" in done.stdout and "much worse" in done.stdout
    assert "backward" not in done.stdout
    whole = sonde_cli("compare", before, after, "--all")
    assert whole.returncode == 0 and "backward" in whole.stdout
    same = sonde_cli("compare", before, before, "--fail-on", "worse", "--format", "json")
    read = json.loads(same.stdout)
    assert same.returncode == 0 and read["verdict"] == "same"
    assert read["changes"][0]["name"] == "step"


def say(*code: Change, machine: tuple[Change, ...] = ()) -> str:
    run = Change("run", "s", 28.0, 29.0, 1.0, 1.0, "same", False)
    sides = [Side(name, 0, 1, 20) for name in ("a", "b")]
    return _describe_comparison(Comparison(*sides, [run, *machine], code, [], [], []))


def test_a_run_of_a_given_length_is_judged_by_pieces_of_its_work() -> None:
    sell = Change("sell", "s of the run", 6.7, 0.03, -7.0, -6.0, "better", True)
    sign = Change("sign", "s of the run", 0.28, 5.9, 5.0, 6.0, "worse", True)
    order = Change("span order", "ms a span", 44.0, 1.0, -44.0, -42.0, "better", True)
    late = Change("GET /", "ms a request", 5.0, 9.0, 3.0, 5.0, "worse", True)
    assert say(sell, sign, order).startswith("much faster: span order, 44 → 1 ms a span; the run")
    assert say(sell, order, late).startswith("the same: ") and "but: span order" in say(order, late)
    both = say(sell, sign)
    assert both.startswith("the same: ") and both.index("less of it in sell") < both.index("sign")
    assert say().endswith("+4 %") and say(sign).endswith("but: sign, 0.28 → 5.9 s of the run")
    queue = Change("waiting for a processor", "% of a core", 5.0, 90.0, 80.0, 88.0, "worse", True)
    assert "but: waiting for a processor, 5 → 90" in say(sell, sign, machine=(queue,))
    assert say(order, machine=(queue,)).startswith("much faster: span order")


# ---- waiting ------------------------------------------------------------------------------------

FETCH, SERVER, REST, LOCKED = 1, 2, 3, 4
KINDS = {FETCH: "sleep", LOCKED: "lock"}
STACKS = {
    FETCH: [("fetch", "/job/app/load.py"), ("main", "/job/app/load.py")],
    REST: [("EpollSelector.select", "/usr/lib/python3.11/selectors.py"), ("main", "/job/app/load.py")],
    SERVER: [("SyncWorker.wait", "/v/lib/python3.11/site-packages/gunicorn/workers/sync.py")],
    LOCKED: [("Queue.get", "/usr/lib/python3.11/queue.py"), ("main", "/job/app/load.py")],
}  # fmt: skip


class Waiting:
    """A recording whose main thread waited for so much of each second, by stack."""

    def __init__(self, **shares: float) -> None:
        self.shares = {globals()[name.upper()]: share for name, share in shares.items()}
        self.sessions = [SimpleNamespace(meta=SimpleNamespace(cwd="/job/app"))]

    def find_empty(self, _tables: object) -> set[str]:
        return set()

    def query(self, sql: str) -> pa.Table:
        rows: list[dict[str, object]]
        if "DISTINCT file FROM" in sql:
            rows = [{"file": file} for frames in STACKS.values() for _func, file in frames]
        elif "FROM python.frame\n" in sql:
            rows = [
                {"stack": stack, "depth": depth, "func": func, "file": file}
                for stack in self.shares
                for depth, (func, file) in enumerate(STACKS[stack])
            ]
        elif "idle GROUP BY" in sql:
            rows = [
                {"piece": piece, "pid": 7, "thread": 7, "stack": stack, "wait": KINDS.get(stack), "ns": share * (0.99e9 + 1e7 * (piece % 3))}
                for piece in range(20)
                for stack, share in self.shares.items()
            ]  # fmt: skip
        else:
            rows = []
        return pa.Table.from_pylist(rows)


def test_waiting_is_told_by_function_and_by_kind_and_rest_is_none() -> None:
    cut = Period(0, 1.0, 20, 0.0, "FALSE", 20.0)
    sides = [Waiting(fetch=0.2, rest=0.7), Waiting(fetch=0.6, locked=0.1, rest=0.3)]
    rows = {row.name: row for row, _ in read_changes([(side, cut) for side in sides])[0]}
    assert "main (load.py), waiting" in rows  # of the queue
    fetch, kind = rows["fetch (load.py), waiting"], rows["waiting for an item from a queue"]
    assert (fetch.verdict, fetch.much, fetch.unit) == ("worse", True, "% of the time")
    assert fetch.before == pytest.approx(20, abs=0.2) and fetch.after == pytest.approx(60, abs=0.6)
    assert kind.before == 0 and kind.verdict == "worse"
    assert rows["waiting for the end of a sleep"].verdict == "worse"
    assert rows["waiting"].after == pytest.approx(70, abs=0.7)


def test_the_function_that_waits_stands_before_the_kind_of_wait_that_it_is_part_of() -> None:
    cut = Period(0, 1.0, 20, 0.0, "FALSE", 20.0)
    sides = [Waiting(fetch=0.1, rest=0.7), Waiting(fetch=0.5, rest=0.3)]
    rows = [row for row in read_changes([(side, cut) for side in sides])[0] if row[1].is_keyed]
    names = [row.name for row in order_code(rows)]
    assert names == ["fetch (load.py), waiting", "waiting for the end of a sleep"]
    (fetch, measure), (kind, sums) = (
        next(row for row in rows if row[0].name == name) for name in names
    )
    other = replace(fetch, name="other", before=10.0, after=40.0)
    apart = replace(kind, name="many small ones", before=0.0, after=90.0)
    ranked = order_code([(other, measure), (kind, sums), (apart, sums), (fetch, measure)])
    assert [row.name for row in ranked] == ["many small ones", *names, "other"]


def test_a_wait_that_is_new_is_told_with_its_function() -> None:
    cut = Period(0, 1.0, 20, 0.0, "FALSE", 20.0)
    changes = read_changes([(Waiting(rest=0.9), cut), (Waiting(fetch=0.3, rest=0.6), cut)])[0]
    rows = {row.name: row for row, _ in changes}
    assert rows["fetch (load.py), waiting"].verdict == "worse"


def test_the_one_process_of_several_that_waits_somewhere_is_named() -> None:
    owners: Owners = {}
    read_waits(Waiting(fetch=0.2), Period(0, 1.0, 20, 0.0, "FALSE", 20.0), owners)
    (key,) = owners
    assert key == "fetch (load.py), waiting" and list(owners[key]) == [7]
    owners[key][8] = owners[key][7] / 9
    assert find_alone(owners, 3) == {key: 7} and find_alone(owners, 2) == {}
    owners[key][8] = owners[key][7]
    assert find_alone(owners, 3) == {}


def test_a_worker_that_waits_in_its_server_alone_has_nothing_to_do() -> None:
    cut = Period(0, 1.0, 20, 0.0, "FALSE", 20.0)
    changes = read_changes([(Waiting(fetch=0.2), cut), (Waiting(server=0.9), cut)])[0]
    assert not [row.name for row, _ in changes if "SyncWorker" in row.name]


def test_whole_runs_are_compared_by_their_seconds() -> None:
    sides = [(Waiting(fetch=0.8), Period(0, 1.0, 20, 0.0, "FALSE", 20.0)),
             (Waiting(fetch=0.4), Period(0, 2.0, 20, 0.0, "FALSE", 40.0))]  # fmt: skip
    rows = {row.name: row for row, _ in read_changes(sides, [20.0, 40.0])[0]}
    assert (rows["run"].verdict, rows["run"].change, rows["run"].much) == ("worse", 20.0, True)
    fetch = rows["fetch (load.py), waiting"]
    assert (fetch.unit, fetch.verdict) == ("s of the run", "better")  # 16 s, then 8 of them
    assert fetch.before == pytest.approx(16, abs=0.2) and fetch.after == pytest.approx(8, abs=0.2)


def test_functions_in_functions_are_named_as_everywhere() -> None:
    frames = [("fetch.<locals>.wait", "/job/app/load.py")]
    found = _name_wait(frames, "lock", "/job/app", is_main=True, has_mine=True)
    assert found == ("fetch.wait (load.py), waiting", "waiting for a lock")


def test_a_file_in_two_checkouts_is_one_file() -> None:
    before = {"f (main/a.py)": [1.0], "g (main/a.py), waiting": [1.0], "h (x/b.py)": [1.0]}
    after = {"f (fix/a.py)": [2.0], "g (fix/a.py), waiting": [2.0], "h (y/b.py)": [2.0],
             "h (z/b.py)": [3.0], "i (fix/a.py)": [4.0]}  # fmt: skip
    assert match_keys(before, after) == {
        "f (main/a.py)": [2.0], "g (main/a.py), waiting": [2.0], "h (y/b.py)": [2.0],
        "h (z/b.py)": [3.0], "i (fix/a.py)": [4.0],
    }  # fmt: skip


def test_a_lack_of_processors_is_told_before_its_victims(root, sonde_cli) -> None:
    before = record(30, process={"run_wait_pct": 5.0})
    after = record(30, process={"run_wait_pct": 90.0})
    found = compare(before, after)
    assert find(found, "waiting for a processor").verdict == "worse"
    shown = sonde_cli("compare", before, after).stdout
    assert "the processors were short: it waited for one 5 → 90 % of a core" in shown


def test_a_program_in_the_working_folder_names_its_recordings(
    root, tmp_path, monkeypatch, sonde_cli
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text("")
    assert "no recording called shop.py" in sonde_cli("compare", "shop.py", "shop.py").stderr


def test_two_snapshots_are_compared_as_well(tmp_path, sonde_cli) -> None:
    paths = []
    for name, work in (("a", "sum(range(10**5))"), ("b", "sorted(range(10**5))")):
        cProfile.run(work, str(tmp_path / name))
        paths.append(str(tmp_path / name))
    assert "sorted" in sonde_cli("compare", *paths).stdout


def test_what_was_next_to_nothing_before_is_not_told_in_thousands_of_percent() -> None:
    def show(before: float, after: float, low: float, high: float) -> str:
        return _show_change(Change("waiting", "s", before, after, low, high, "worse", True))

    assert show(2.0, 3.0, 0.5, 1.5) == "+50.0 % (+25.0 … +75.0)"
    assert show(0.01, 16.4, 14.0, 18.0) == "+16.4 (+14 … +18)"
    assert show(0.0, 16.4, 16.4, 16.4) == "+16.4"


ASYNCIO = """
import asyncio, sys
async def fetch(delay): await asyncio.sleep(delay)
async def work(number, end):
    await fetch(number * 0.004)  # not all at once
    while asyncio.get_running_loop().time() < end: await fetch(float(sys.argv[1]))
async def main():
    end = asyncio.get_running_loop().time() + 18  # until enough of the longer ones were seen to end
    await asyncio.gather(*(work(n, end) for n in range(40)))
asyncio.run(main())
"""


def test_tasks_that_await_longer_are_named_with_what_they_await(tmp_path, root, sonde_cli) -> None:
    (tmp_path / "program.py").write_text(ASYNCIO)
    recorded = {**os.environ, "SONDE": "1", "SONDE_COLLECTOR": "off"}
    programs = [
        subprocess.Popen([sys.executable, "program.py", delay], env=recorded, cwd=tmp_path)
        for delay in ("0.03", "0.15")
    ]
    assert [one.wait(120) for one in programs] == [0, 0]
    shown = sonde_cli("compare", *(str(one.pid) for one in programs)).stdout
    assert "but: fetch (program" in shown.splitlines()[0], shown
    assert "), awaiting asyncio.sleep, " in shown.splitlines()[0]
    row = next(line for line in shown.splitlines() if line.startswith("fetch (program"))
    assert "ms an await" in row and row.endswith("much worse")


def waits_of(ended: int, ms: float = 100.0) -> Await:
    return Await("f", "a.py", 1, "x", 1e9, ended, ended * ms * 1e6)


def test_a_longer_await_counts_if_enough_of_them_ended() -> None:
    ((name, old, new, low, high),) = compare_awaits(
        [{"f": waits_of(100)}, {"f": waits_of(100, 300)}], 4.0
    )
    assert (name, round(old), round(new)) == ("f", 100, 300) and 0 < low < 200 < high
    ((*_, low, high),) = compare_awaits([{"f": waits_of(12)}, {"f": waits_of(12, 150)}], 4.0)
    assert low < 0 < high  # of few, some end early by chance
    assert not list(compare_awaits([{"f": waits_of(9)}, {"f": waits_of(50)}], 4.0))


def test_a_program_that_does_less_because_it_waits_longer_has_gained_nothing() -> None:
    def change(name: str, unit: str, verdict: str) -> Change:
        return Change(name, unit, 1, 2, 1, 1, verdict, True)

    function = Measure("function", A_RUN, "")
    rows = [(change("run", "s", "same"), RUN), (change("f", A_RUN, "better"), function)]
    late = (change("f awaits", AWAITS.unit, "worse"), AWAITS)
    assert [row.verdict for row, _ in _doubt_gains([*rows, late])] == ["same", "different", "worse"]
    assert [row.verdict for row, _ in _doubt_gains(rows)] == ["same", "better"]
    for much, told in ((True, "different"), (False, "better")):
        waits = replace(change("waiting", A_RUN, "worse"), much=much), WAITING.count_by_run(20)
        assert [row.verdict for row, _ in _doubt_gains([*rows, waits])] == ["same", told, "worse"]
