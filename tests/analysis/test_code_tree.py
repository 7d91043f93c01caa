"""The call tree of one's own code: what is folded, what waits, what is left out."""

from __future__ import annotations

import pytest

from sonde.analysis.code_tree import CodeTree, read_tree
from sonde.analysis.profile import Profile, Selection
from sonde.analysis.window import find_window
from sonde.errors import Error
from support.handmade_stacks import MS, FakeRecording, FakeSession

SITE, STANDARD = "/v/lib/python3.12/site-packages", "/opt/py/lib/python3.12"
MAIN = ("main", "/job/app.py", 5, 1)
LOADS = ("loads", f"{STANDARD}/json/__init__.py", 300, 290)
DECODE = ("JSONDecoder.decode", f"{STANDARD}/json/decoder.py", 337, 330)
BOOT = ("Thread._bootstrap", f"{STANDARD}/threading.py", 1000, 990)
GET = ("Queue.get", f"{STANDARD}/queue.py", 170, 150)
TAKE = ("take", "/job/app.py", 30, 29)
PARSE = ("parse", "/job/app.py", 40, 39)
SELECT = ("EpollSelector.select", f"{STANDARD}/selectors.py", 468, 440)
FROZEN = ("_call_with_frames_removed", "<frozen importlib._bootstrap>", 241, 233)


def read(recording: FakeRecording, **options) -> CodeTree:
    return read_tree(Profile(recording, Selection(find_window(recording, None, None))), **options)


def draw(tree: CodeTree, **options) -> list[str]:
    return [
        f"{'  ' * depth}{node.step.name} {node.working_ns // MS}+{node.waiting_ns // MS} :{node.line}"
        for depth, node in tree.list_nodes(**options)
    ]


def test_a_library_call_is_one_line_with_the_line_that_makes_it() -> None:
    recording = FakeRecording().see([MAIN, LOADS, DECODE], 10).see([MAIN, LOADS], 20)
    assert draw(read(recording)) == ["main 20+0 :5", "  json.loads 20+0 :5"]


def test_calls_from_two_lines_are_two() -> None:
    other = (*MAIN[:2], 9, 1)
    recording = FakeRecording().see([MAIN, LOADS], 10).see([other, LOADS], 50, wall=30)
    assert draw(read(recording)) == [
        "main 40+0 :9",
        "  json.loads 30+0 :9",
        "  json.loads 10+0 :5",
    ]


def test_what_a_decorator_made_is_named_by_what_it_calls() -> None:
    wrapper = ("no_grad.<locals>.decorate_context", f"{SITE}/torch/utils/_contextlib.py", 9, 1)
    step = ("Adam.step", f"{SITE}/torch/optim/adam.py", 40, 30)
    recording = FakeRecording().see([MAIN, wrapper, step], 10)
    assert draw(read(recording)) == ["main 10+0 :5", "  torch.Adam.step 10+0 :5"]


def test_what_takes_most_of_the_time_of_a_library_call_is_named_below_it() -> None:
    render = ("Template.render", f"{SITE}/django/template/base.py", 172, 160)
    get = ("QuerySet.get", f"{SITE}/django/db/models/query.py", 631, 600)
    clone = ("QuerySet._clone", f"{SITE}/django/db/models/query.py", 900, 890)
    recording = (
        FakeRecording()
        .see([MAIN, render], 10)
        .see([MAIN, render, get], 50, wall=40)
        .see([MAIN, render, get, clone], 70, wall=20)
        .see([MAIN, render, clone], 80)
    )
    assert draw(read(recording, hot_calls=True)) == [
        "main 80+0 :5",
        "  django.Template.render 80+0 :5",
        "    … QuerySet.get 60+0 :631",
        "    (in django) 20+0 :5",
    ]
    recording.see([MAIN, render, ("tag", "/job/tags.py", 3, 1)], 85, wall=5)
    assert draw(read(recording, hot_calls=True))[2:] == [
        "    … QuerySet.get 60+0 :631",
        "    (in django) 20+0 :5",
        "    tag 5+0 :3",
    ]
    recording.see([MAIN, render, get, ("tag", "/job/tags.py", 3, 1)], 90, wall=5)
    assert draw(read(recording, hot_calls=True))[2:] == [  # get() calls the user's: look inside it
        "    (in django) 50+0 :5",
        "    … django.QuerySet._clone 30+0 :900",  # below two callers
        "    tag 10+0 :3",
    ]
    recording = FakeRecording().see([MAIN, render], 10).see([MAIN, render, get], 50, wall=40)
    recording.see([MAIN, render, clone], 180, wall=130)
    assert draw(read(recording, hot_calls=True))[2:] == [
        "    … django.QuerySet._clone 130+0 :900",
        "    … QuerySet.get 40+0 :631",
        "    (in django) 10+0 :5",
    ]


def test_where_the_time_of_a_library_call_parts_each_heavy_part_is_named() -> None:
    serve = ("Arbiter.run", f"{SITE}/gunicorn/arbiter.py", 200, 190)
    parse = ("Request.parse", f"{SITE}/gunicorn/http/message.py", 70, 60)
    read_line = ("Request.read_line", f"{SITE}/gunicorn/http/message.py", 90, 85)
    send = ("Response.send", f"{SITE}/gunicorn/http/wsgi.py", 340, 330)
    recording = (
        FakeRecording()
        .see([MAIN, serve, parse, read_line], 50, wall=50)
        .see([MAIN, serve, send], 80, wall=30)
        .see([MAIN, serve, send, parse], 81, wall=1)
        .see([MAIN, serve], 90, wall=9)
    )
    assert draw(read(recording, hot_calls=True))[2:] == [
        "    … Request.read_line 50+0 :90",
        "    … Response.send 31+0 :340",
        "    (in gunicorn) 9+0 :5",
    ]


def test_the_time_in_a_library_itself_has_the_name_of_the_c_function_that_it_calls() -> None:
    entry = ("console_entry", f"{SITE}/mypy/__main__.py", 16, 14)
    start = ("<module>", f"{SITE}/mypy/__main__.py", 52, 1)
    recording = FakeRecording().see([start, entry], 50, wall=50, call="mypy.main.main")
    assert draw(read(recording, hot_calls=True)) == [
        "mypy 50+0 :0",
        "  … mypy.main.main 50+0 :16",
    ]


def test_own_code_that_a_library_calls_is_told_in_full() -> None:
    inner = ("hook", "/job/app.py", 30, 28)
    recording = FakeRecording().see([MAIN, LOADS, DECODE, inner], 10)
    assert draw(read(recording)) == ["main 10+0 :5", "  json.loads 10+0 :5", "    hook 10+0 :30"]


def test_an_import_is_one_line_and_own_modules_are_told_in_full() -> None:
    mine = ("<module>", "/job/shop.py", 2, 1)
    numpy = ("<module>", f"{SITE}/numpy/__init__.py", 7, 1)
    deep = ("<module>", f"{SITE}/numpy/core/__init__.py", 7, 1)
    recording = FakeRecording().see([MAIN, FROZEN, mine, FROZEN, numpy, FROZEN, deep], 10)
    assert draw(read(recording)) == [
        "main 10+0 :5",
        "  import shop 10+0 :2",
        "    import numpy 10+0 :2",
    ]


def test_working_and_waiting_are_apart_and_the_own_line_has_a_line() -> None:
    recording = FakeRecording().see([MAIN, LOADS], 10).see([MAIN], 40, wall=30, cpu=0)
    assert draw(read(recording)) == [
        "main 10+30 :5",
        "  (this line itself) 0+30 :5",
        "  json.loads 10+0 :5",
    ]
    assert draw(read(recording), sort="working", limit=1) == ["main 10+30 :5"]


def test_a_sleeper_that_waits_for_a_busy_processor_still_sleeps() -> None:
    recording = FakeRecording().see([MAIN], 10, call="time.sleep").see([MAIN], 20, call="len")
    assert draw(read(recording)) == [
        "main 10+10 :5",
        "  time.sleep 0+10 :5",
        "  len 10+0 :5",
    ]


def test_threads_and_event_loops_without_work_are_left_out_and_counted() -> None:
    run = ("run", f"{STANDARD}/asyncio/runners.py", 190, 150)
    recording = (
        FakeRecording()
        .see([MAIN, GET], 10, cpu=0)  # one's own code waits for the queue
        .see([MAIN, run, SELECT], 30, wall=20, cpu=0)  # the event loop has nothing to do
        .see([BOOT, GET], 30, cpu=0, wall=30, thread=101)  # a worker of a pool
        .see([BOOT, TAKE, GET], 10, cpu=0, wall=10, thread=102)  # one of the program's own
    )
    tree = read(recording)
    assert draw(tree) == ["main 0+10 :5", "  queue.Queue.get 0+10 :5"]
    assert tree.rest_ns == 60 * MS
    busy = [BOOT, TAKE, ("handle", "/job/app.py", 8, 1), ("acquire", "/job/pool.py", 3, 1), GET]
    tree = read(recording.see(busy, 20, cpu=0, thread=103))  # it needs a connection for its work
    assert (tree.rest_ns, tree.root.waiting_ns) == (60 * MS, 20 * MS)
    assert read(recording, idle=True).root.waiting_ns == 80 * MS


def test_what_watches_over_a_server_has_no_work() -> None:
    script = ("<module>", "/job/manage.py", 16, 1)
    reload = ("restart_with_reloader", f"{SITE}/django/utils/autoreload.py", 273, 260)
    wait = ("Popen._wait", f"{STANDARD}/subprocess.py", 2046, 2020)
    view = ("orders", "/job/views.py", 5, 1)
    recording = (
        FakeRecording()
        .see([script, reload, wait], 10, cpu=0)  # the parent of `manage.py runserver`
        .see([script, reload], 20, cpu=0)  # its child sleeps between two looks at the files
        .see([BOOT, reload, view, GET], 30, cpu=0, thread=101)  # the server itself runs in there
    )
    tree = read(recording)
    assert tree.rest_ns == 20 * MS and tree.root.waiting_ns == 10 * MS


def test_the_line_that_starts_a_spawned_process_is_nobodys_own() -> None:
    start = ("<module>", "<string>", 1, 1)
    spawn = ("spawn_main", f"{STANDARD}/multiprocessing/spawn.py", 122, 100)
    recording = FakeRecording().see([start, spawn, MAIN], 10)
    receive = ("Connection.recv", f"{STANDARD}/multiprocessing/connection.py", 9, 1)
    recording.see([start, spawn, receive], 60, wall=50, cpu=0)
    tree = read(recording)
    assert draw(tree) == ["main 10+0 :5"] and tree.rest_ns == 50 * MS
    recording.see([start, MAIN], 70)  # python -c
    assert draw(read(recording)) == ["main 10+0 :5", "<module> 10+0 :1", "  main 10+0 :5"]


def test_a_forked_worker_is_told_without_the_stack_of_its_parent() -> None:
    pool, ours = f"{STANDARD}/multiprocessing", f"{SITE}/sonde/job/recorder.py"
    child = ("BaseProcess._bootstrap", f"{pool}/process.py", 314, 270)
    work, take = (
        ("worker", f"{pool}/pool.py", 125, 97),
        ("SimpleQueue.get", f"{pool}/queues.py", 365, 1),
    )
    recording = (
        FakeRecording()
        .see([MAIN, child, work, PARSE], 10)
        .see([MAIN, child, work, take], 40, wall=30, cpu=0)  # without a task
        .see([MAIN, child, ("stop", ours, 5, 1)], 60, wall=20)
    )
    tree = read(recording, hot_calls=True)
    assert draw(tree) == ["(around the program) 20+0 :0", "parse 10+0 :40"]
    assert tree.rest_ns == 30 * MS


def test_equal_threads_and_processes_are_merged() -> None:
    work = ("work", "/job/app.py", 8, 7)
    recording = FakeRecording(FakeSession(), FakeSession(pid=200))
    for thread, session in ((100, 0), (101, 0), (200, 1)):
        recording.see([BOOT, work], 10, thread=thread, session=session)
    tree = read(recording)
    assert draw(tree) == ["work 30+0 :8"]
    assert [len(node.threads) for _, node in tree.list_nodes()] == [3]


def test_a_program_without_own_code_is_told_by_package() -> None:
    server = ("serve", f"{SITE}/server/main.py", 3, 1)
    inner = ("step", f"{SITE}/server/loop.py", 4, 1)
    tree = read(FakeRecording().see([server, inner, LOADS, DECODE], 10))
    assert draw(tree) == ["server.serve 10+0 :0", "  json.loads 10+0 :0"]


@pytest.mark.parametrize("by_setting", [False, True])
def test_what_is_mine_can_be_said(by_setting: bool) -> None:
    pattern = "*/site-packages/server/*"
    session = FakeSession(config={"code.mine": pattern} if by_setting else {})
    server = ("serve", f"{SITE}/server/main.py", 3, 1)
    inner = ("step", f"{SITE}/server/loop.py", 4, 1)
    tree = read(
        FakeRecording(session).see([server, inner, LOADS], 10), mine=() if by_setting else [pattern]
    )
    assert draw(tree) == ["serve 10+0 :3", "  step 10+0 :4", "    json.loads 10+0 :4"]


def test_the_own_time_of_a_library_call_is_told_by_the_packages_that_it_was_spent_in() -> None:
    get = ("QuerySet.get", f"{SITE}/django/db/models/query.py", 631, 600)
    tag = ("tag", "/job/tags.py", 3, 1)
    recording = (
        FakeRecording()
        .see([MAIN, get, tag], 10)
        .see([MAIN, get], 40, wall=30)
        .see([MAIN, get, LOADS, DECODE], 60, wall=20)
        .see([MAIN, get, BOOT], 61, wall=1)
    )
    assert draw(read(recording))[2] == "    (in django, json) 51+0 :5"


def test_a_wait_that_no_name_tells_is_told_and_one_that_is_little_of_it_is_not() -> None:
    recording = (
        FakeRecording()
        .see([MAIN, LOADS], 40, wall=40)
        .see([MAIN, LOADS], 60, wall=20, cpu=0, wait="gil")
        .see([MAIN, GET], 70, cpu=0, wait="lock")
        .see([MAIN, TAKE], 90, wall=20, cpu=0, wait="lock")
        .see([MAIN, TAKE], 94, wall=4, cpu=0, wait="gil")
        .see([PARSE], 200, wall=100)
        .see([PARSE], 208, wall=8, cpu=0, wait="gil")  # the waiting column tells it
    )
    tree = read(recording)
    waits = {node.step.name: node.unsaid_wait for _, node in tree.list_nodes()}
    assert waits == {"main": None, "json.loads": "gil", "queue.Queue.get": None, "take": "lock",
                     "parse": None}  # fmt: skip


def test_all_frames_are_there_if_asked_for_but_never_ours() -> None:
    ours = ("Recorder.start", f"{SITE}/sonde/job/recorder.py", 7, 1)
    recording = FakeRecording().see([BOOT, MAIN, ours, LOADS], 10)
    assert draw(read(recording, all_frames=True)) == [
        "Thread._bootstrap 10+0 :1000",
        "  main 10+0 :5",
        "    loads 10+0 :300",
    ]


def test_a_c_function_that_an_own_line_calls_is_named_but_never_one_of_ours() -> None:
    recording = FakeRecording().see([MAIN], 10, call="zlib.crc32")
    recording.see([MAIN], 20, call="sonde._core.NativeThread.start")
    assert draw(read(recording)) == [
        "main 20+0 :5",
        "  zlib.crc32 10+0 :5",
        "  (this line itself) 10+0 :5",
    ]


def test_small_nodes_are_left_out_and_their_time_is_in_their_callers() -> None:
    recording = FakeRecording().see([MAIN, LOADS], 1000, wall=995).see([MAIN, GET], 1005, wall=5)
    assert draw(read(recording)) == ["main 1000+0 :5", "  json.loads 995+0 :5"]
    assert len(read(recording).list_nodes(least=0)) == 3


def test_what_is_shown_without_being_asked_is_what_takes_much_or_the_heaviest_few() -> None:
    names = [f"part_{n}" for n in range(40)]
    alike = FakeRecording()
    for n, name in enumerate(names):
        alike.see([MAIN, (name, "/job/parts.py", n + 1, n)], 10)
    assert len(read(alike).list_main_nodes()) == 10
    unlike = FakeRecording()
    for n, name in enumerate(names):
        unlike.see([MAIN, (name, "/job/parts.py", n + 1, n)], 10, wall=60 if n < 15 else 2)
    shown = read(unlike).list_main_nodes()
    assert {node.step.name for _, node in shown} == {"main", *names[:15]}


def test_a_recording_without_samples_says_so() -> None:
    with pytest.raises(Error, match="no stack was sampled"):
        read(FakeRecording().name(100, "MainThread"))
