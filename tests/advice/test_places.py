"""Where the time went, with what was measured there and what people do: on samples made by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from sonde.advice.finding import Advice
from sonde.advice.period import Period
from sonde.advice.places import find_places
from sonde.analysis.hot_places import HotPlace
from support.handmade_stacks import START_NS, FakeRecording, FakeSession

STANDARD = "/opt/py/lib/python3.12"
MAIN = ("main", "/job/app.py", 5, 1)
PARSE = ("loads", f"{STANDARD}/json/__init__.py", 300, 290)
RECV = ("SocketIO.readinto", f"{STANDARD}/socket.py", 700, 690)
LOCK = ("Lock.acquire", f"{STANDARD}/asyncio/locks.py", 114, 90)
ENTER = ("_ContextManagerMixin.__aenter__", f"{STANDARD}/asyncio/locks.py", 15, 14)
READ = ("StreamReader.readline", f"{STANDARD}/asyncio/streams.py", 563, 540)


def find(recording: FakeRecording, seconds: float = 30) -> list[HotPlace]:
    return find_places(recording, Period(START_NS, seconds, 1, 0.0, "FALSE", length_s=seconds))


def see_often(recording: FakeRecording, path, every_ms: int, until_ms: int, **values) -> None:
    for at_ms in range(every_ms, until_ms, every_ms):
        recording.see(path, at_ms, wall=values.pop("wall", every_ms), **values)
        values.setdefault("wall", every_ms)


TORCH = "/opt/py/lib/python3.12/site-packages/torch"
FETCH = ("fetch", f"{TORCH}/utils/data/_utils/fetch.py", 54, 50)
CALL = ("Module._call_impl", f"{TORCH}/nn/modules/module.py", 1700, 1690)
ITEM = ("Sounds.__getitem__", "/job/app.py", 30, 28)
MASK = ("make_mask", "/job/app.py", 40, 38)
MODEL = ("Net.forward", "/job/app.py", 50, 48)
TRAIN = ("Trainer.train", f"{TORCH}/trainer.py", 900, 800)
RELU = ("relu", f"{TORCH}/nn/functional.py", 1400, 1390)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ([MAIN, FETCH, ITEM, PARSE], "for each item"),
        ([MAIN, CALL, MODEL, MASK], "in each forward pass"),
        ([MAIN, CALL, MODEL, RELU], "many small operations"),  # a model's own work
        ([MAIN, ITEM, PARSE], "keep the result"),
        ([MAIN, TRAIN, CALL, RELU], "many small operations"),  # it makes all the passes
    ],
)
def test_work_that_is_done_again_for_each_item_or_forward_pass_is_told_so(path, words) -> None:
    recording = FakeRecording()
    see_often(recording, path, 100, 30_000, cpu=100)
    (place,) = find(recording)
    assert words in place.instead
    assert ("done for each item" in place.instead) == (FETCH in path)
    assert ("in each forward pass" in place.instead) == (MASK in path)


def test_a_place_says_what_people_do_about_such_work() -> None:
    recording = FakeRecording()
    see_often(recording, [MAIN, PARSE], 100, 30_000, cpu=100)
    (place,) = find(recording)
    assert (place.func, place.line, place.call, place.state) == (
        "main", 5, "json.loads", "working",
    )  # fmt: skip
    assert "keep the result" in place.instead and not place.facts


def test_json_has_the_place_without_the_numbers_of_its_stacks() -> None:
    recording = FakeRecording()
    see_often(recording, [MAIN, PARSE], 100, 30_000, cpu=100)
    (place,) = find(recording)
    advice = Advice("", "", 10.0, 1, 0.0, (), places=[place])
    (made,) = json.loads(advice.to_json())["places"]
    assert place.stacks and "stacks" not in made and made["instead"] == place.instead


def test_what_one_of_several_workers_does_alone_is_told_with_its_process() -> None:
    workers = [FakeSession(pid=pid) for pid in (100, 200, 300)]
    recording = FakeRecording(*workers)
    for number, one in enumerate(workers):
        see_often(recording, [MAIN, PARSE], 100, 30_000, cpu=100, session=number, thread=one.pid)
    see_often(recording, [MAIN, RECV], 100, 30_000, cpu=0, wait="network", session=1, thread=200)
    facts = {place.call: place.facts for place in find(recording)}
    assert facts["json.loads"] == "in 3 processes"
    told = "only in process 200, not in 2 others that work alike"
    assert facts["socket.SocketIO.readinto"] == told
    workers[1].meta = SimpleNamespace(argv=["python", "/job/other.py"], cwd="/job")
    assert not any("only in" in place.facts for place in find(recording))


def test_work_that_takes_more_and_more_is_told() -> None:
    recording, search = FakeRecording(), [MAIN, ("find", "/job/app.py", 20, 18)]
    for at_ms in range(100, 30_000, 100):
        searching_ms = at_ms / 300
        recording.see(search, at_ms, wall=searching_ms, cpu=searching_ms)
        recording.see([MAIN], at_ms, wall=100 - searching_ms, cpu=100 - searching_ms)
    places = {one.func: one for one in find(recording)}
    assert places["find"].facts == "grows: 16 % of the first third, 83 % of the last"
    assert places["find"].instead.startswith("it takes more and more")
    assert places["find"].caller == "main (app.py:5)"
    assert "grows" not in places["main"].facts


def test_a_function_that_calls_itself_is_told_by_its_depth() -> None:
    recording, again = FakeRecording(), ("count", "/job/app.py", 20, 18)
    see_often(recording, [MAIN, *[again] * 7], 100, 30_000, cpu=100)
    (place,) = find(recording)
    assert place.facts == "calls itself, 7 deep" and "lru_cache" in place.instead


def wait_often(length_ms: int, count: int) -> HotPlace:
    """The main thread waits for a socket, so often for so long: a first sample, and the rest."""
    recording = FakeRecording()
    for at in range(count):
        end_ms = (at + 1) * length_ms
        waits = {"cpu": 0, "gil": False, "wait": "network"}
        recording.see([MAIN, RECV], end_ms - length_ms + 10, wall=10, **waits)
        recording.see([MAIN, RECV], end_ms - 1, wall=length_ms - 10, samples=3, **waits)
    (place,) = find(recording)
    return place


def test_waits_are_counted_and_short_ones_for_a_network_may_be_for_an_acknowledgement() -> None:
    ack, other = wait_often(44, 600), wait_often(60, 450)
    assert ack.facts == "600 waits of 44.0 ms" and "TCP_NODELAY" in ack.instead
    assert other.facts == "450 waits of 60.0 ms" and "TCP_NODELAY" not in other.instead
    assert "several at once" in other.instead


def wait_shortly(*kinds: str) -> HotPlace:
    """The main thread waits at one line again and again, and each sample of that is a row."""
    recording = FakeRecording()
    for start_ms in range(0, 30_000, 20 * len(kinds)):
        for number, kind in enumerate(kinds):
            at_ms = start_ms + 20 * (number + 1)
            samples = 3 if number == 1 else 1
            recording.see([MAIN, RECV], at_ms, wall=20, cpu=0, wait=kind, samples=samples)
    (place,) = find(recording)
    return place


def test_waits_that_few_samples_saw_are_not_counted() -> None:
    assert wait_shortly("network").facts == ""


def test_waiting_for_the_gil_after_a_wait_is_no_other_wait() -> None:
    assert wait_shortly("network", "network", "gil").facts == "500 waits of 60.0 ms"


def record_awaits(
    frames: list[tuple[str, str, int, int]], tasks: int, ended: int = 1, until_ms: int = 30_000
) -> FakeRecording:
    """An event loop without work, while so many tasks wait at one place; frames root first. Half of
    the waits are over after 20 ms, or none. From `until_ms` on, there are no tasks."""
    recording = FakeRecording()
    see_often(recording, [MAIN], 100, 30_000, wall=1, cpu=1)
    for depth, (func, file, lineno, first) in enumerate(reversed(frames)):
        row = dict(func=func, file=file, lineno=lineno, first_line=first)
        recording.frames[7, depth] = {"stack": 7, "depth": depth, **row}
    for at_ms in range(1000, 30_000, 1000):
        recording.row("python.event_loop", at_ms, thread=100, wall_ns=10**9, idle_ns=9 * 10**8,
                      callbacks=10, held_ns=0, longest_ns=0)  # fmt: skip
        if at_ms >= until_ms:
            continue
        recording.row("python.task_wait", at_ms, wall_ns=10**9, stack=7,
                      waits_for="Future", looks=2, tasks=2 * tasks, soon=2, soon_ended=ended,
                      soon_ns=20_000_000 * ended, later=0, later_ended=0, later_ns=0)  # fmt: skip
    return recording


def await_often(
    frames: list[tuple[str, str, int, int]], tasks: int, ended: int = 1, until_ms: int = 30_000
) -> HotPlace:
    places = find(record_awaits(frames, tasks, ended, until_ms))
    return next(one for one in places if one.state == "waiting")


def test_the_time_between_the_cells_of_a_notebook_is_nobodys() -> None:
    recording = FakeRecording()
    see_often(recording, [MAIN, PARSE], 100, 30_000, cpu=100)
    for at_ms in range(1000, 30_000, 1000):
        recording.row("python.event_loop", at_ms, thread=100, wall_ns=10**9, idle_ns=9 * 10**8,
                      callbacks=10, held_ns=0, longest_ns=0)  # fmt: skip
    assert {place.state for place in find(recording)} == {"waiting", "working"}
    recording.sessions[0].meta.argv = ["python", "-m", "ipykernel_launcher", "-f", "k.json"]
    assert [place.state for place in find(recording)] == ["working"]


def test_tasks_that_wait_one_after_the_other_are_told_to_wait_together() -> None:
    place = await_often([MAIN, ("fetch", "/job/app.py", 30, 28), READ], 1)
    assert (place.func, place.line, place.call) == ("fetch", 30, "asyncio.StreamReader.readline")
    assert place.facts == "one task at a time, 20.0 ms each" and "gather" in place.instead
    assert place.caller == "main (app.py:5)"


def test_a_loop_without_requests_is_no_waiting_of_the_tasks_before() -> None:
    place = await_often([MAIN, ("fetch", "/job/app.py", 30, 28), READ], 1, until_ms=6000)
    assert place.time_s == 5.0


def test_tasks_that_stand_in_line_for_a_lock_are_told_by_their_number() -> None:
    place = await_often([("get", "/job/app.py", 40, 38), ENTER, LOCK], 9)
    assert (place.call, place.kind) == ("asyncio.Lock.acquire", "a lock")
    assert place.facts.startswith("8.7 tasks at a time") and "stand in line" in place.instead


def test_many_tasks_that_wait_together_are_told_nothing() -> None:
    place = await_often([("fetch", "/job/app.py", 30, 28), READ], 9)
    assert place.facts.startswith("8.7 tasks at a time") and not place.instead


def test_many_tasks_that_wait_for_threads_are_told_how_many_threads_there_are() -> None:
    hand = ("to_thread", f"{STANDARD}/asyncio/threads.py", 25, 12)
    stack = [("upload", "/job/app.py", 30, 28), hand]
    assert "executor of their own" in await_often(stack, 9).instead
    assert "executor" not in await_often(stack, 2).instead


@pytest.mark.parametrize(("tasks", "file", "is_told"), [
    (9, f"{STANDARD}/concurrent/futures/thread.py", True),
    (2, f"{STANDARD}/concurrent/futures/thread.py", False),  # each has a thread
    (9, f"{STANDARD}/threading.py", False),  # no threads of a pool
])  # fmt: skip
def test_threads_of_a_pool_for_which_more_tasks_wait_are_told_so(tasks, file, is_told) -> None:
    hand = ("to_thread", f"{STANDARD}/asyncio/threads.py", 25, 12)
    recording = record_awaits([("upload", "/job/app.py", 30, 28), hand], tasks)
    for thread in (200, 300):
        see_often(recording, [("_worker", file, 90, 60), ITEM], 100, 30_000, thread=thread, cpu=0,
                  gil=False, wait="sleep")  # fmt: skip
    place = next(one for one in find(recording) if one.func == ITEM[0])
    assert ("8.7 tasks at a time wait for threads" in place.facts) == is_told
    assert ("executor of their own" in place.instead) == is_told


def test_a_task_that_waits_for_ever_is_told_nothing_and_one_before_a_full_queue_is() -> None:
    assert not await_often([("serve", "/job/app.py", 30, 28), READ], 1, ended=0).instead
    put = ("Queue.put", f"{STANDARD}/asyncio/queues.py", 125, 110)
    assert "is too slow" in await_often([("make", "/job/app.py", 30, 28), put], 9).instead


def grow(shares: list[float]) -> str:
    """What is said of a line that takes these shares of each second."""
    recording = FakeRecording()
    for second, share in enumerate(shares):
        recording.see([MAIN], 1000 * second + 500, wall=1000 * share, cpu=1000 * share)
        recording.see([MAIN, ITEM], 1000 * second + 900, wall=1000 - 1000 * share, cpu=10)
    found = find(recording, len(shares))
    return next(place.facts for place in found if place.func == "main")


def test_what_takes_more_and_more_grows_and_what_begins_late_does_not() -> None:
    assert "grows: " in grow([second / 30 for second in range(30)])
    assert "grows: " in grow([(second / 30) ** 3 for second in range(30)])
    for begins in range(2, 26):
        assert "grows" not in grow([0.9 if second >= begins else 0.001 for second in range(30)])


@pytest.mark.parametrize(("gil", "call"), [(False, "operators of arrays"), (True, "")])
def test_what_a_line_does_without_the_gil_is_no_plain_python(gil: bool, call: str) -> None:
    recording = FakeRecording()
    see_often(recording, [MAIN, ITEM], 100, 30_000, cpu=100, gil=gil)
    (place,) = find(recording)
    assert place.call == call
    assert ("sort or group" in place.instead) is not gil


def test_who_reads_only_the_first_line_knows_where_the_time_went() -> None:
    spent = HotPlace("Item.load", "/job/app.py", 30, "time.sleep", "sleeping", "waiting", 9.0, 86.0,
                     instead="wait for what it is there for")  # fmt: skip
    words = dict(since="", until="", piece_s=10.0, pieces=3, warm_up_s=0.0, processes=("7",))
    told = Advice(**words, places=(spent,), folder="/job").describe_nothing()
    assert told == (
        "no rule found anything, but 86 % of the time is spent waiting in Item.load (app.py:30)"
    )
    assert str(Advice(**words, places=(spent,))).startswith("No rule found anything, but 86 % of")
    for place in (replace(spent, share_pct=14.0), replace(spent, instead="")):
        assert Advice(**words, places=(place,)).describe_nothing() == "nothing is wrong"
    assert Advice(**words, endings=("killed",)).describe_nothing() == "nothing else is wrong"
