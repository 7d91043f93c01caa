"""Events of subinterpreters are recorded with the process, whichever GIL they hold."""

from __future__ import annotations

import sys

import pytest

import sonde

HEAD = """
import os, sonde, sys, threading
try: import _interpreters as sub; go = sub.exec
except ImportError: import _xxsubinterpreters as sub; go = sub.run_string
def create(kind):
    if sys.version_info >= (3, 13): return sub.create(kind)
    return sub.create(isolated=kind == "isolated")
PATH = f"import sys; sys.path[:] = {sys.path}; import sonde\\n"
def run(number, code):
    failure = go(number, PATH + code)
    if failure: raise SystemExit(str(failure))
def record(): return sonde.start(collector=False, source_stack="off", ring_bytes="16MiB")
"""
KINDS = pytest.mark.parametrize("kind", ["legacy", "isolated"])


def ask(folder: str, sql: str) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in sonde.open(folder).query(sql).to_pylist()]


EVERYTHING = """
number = create(sys.argv[1])
folder = record()
run(number, '''
outer = sonde.span("outer", n=1)
with outer:
    outer.set(m="text")
    with sonde.span("inner"): sonde.mark("moment", k=2.5)
try:
    with sonde.span("fails"): 1 / 0
except ZeroDivisionError: pass
@sonde.span("decorated")
def work(): return 3
assert work() == 3 and outer.id is None and outer.name == "outer", outer
count = sonde.counter("count"); count.increment(); count += 2; count.decrement(1)
assert count.value == 2, count
with sonde.span("both"): pass
lost = sonde.span("lost"); lost.start(); del lost
kept = sonde.span("kept"); kept.start()
''')
with sonde.span("both"): sonde.counter("count", 7)
print(folder, int(number), os.getpid())
sonde.stop()
"""


@KINDS
def test_events_are_recorded_with_the_number_of_the_interpreter(run, kind: str) -> None:
    folder, number, _ = run(HEAD + EVERYTHING, kind).stdout.split()
    n = int(number)
    spans = ask(folder, "SELECT name, interpreter, error, cut FROM event.span ORDER BY id")
    assert spans == [
        ("outer", n, None, None), ("inner", n, None, None), ("fails", n, "ZeroDivisionError", None),
        ("decorated", n, None, None), ("both", n, None, None), ("lost", n, None, "lost"),
        ("both", 0, None, None),
    ]  # fmt: skip
    inside = "SELECT s.name FROM event.span s JOIN event.span p ON s.parent = p.id"
    assert ask(folder, inside) == [("inner",)]
    moment = "SELECT m.name, m.interpreter, s.name AS around FROM event.marker m JOIN event.span s ON m.parent = s.id"
    assert ask(folder, moment) == [("moment", n, "inner")]
    assert ask(folder, "SELECT key, coalesce(text, number::text) FROM event.attribute ORDER BY t_ns") == [
        ("n", "1.0"), ("m", "text"), ("k", "2.5"),
    ]  # fmt: skip
    assert ask(folder, "SELECT whole, interpreter FROM event.counter ORDER BY t_ns") == [
        (1, n), (3, n), (2, n), (7, 0),
    ]  # fmt: skip
    assert ask(folder, "SELECT count FROM event.summary WHERE name = 'both'") == [(2,)]


@KINDS
def test_regions_that_are_open_are_seen_after_the_program_was_killed(run, kind: str) -> None:
    kill = "sys.stdout.flush(); os.kill(os.getpid(), 9)\nsonde.stop()"
    done = run(HEAD + EVERYTHING.replace("sonde.stop()", kill), kind, check=False)
    folder = done.stdout.split()[0]
    assert ask(folder, "SELECT name FROM event.open_span") == [("kept",)]


PARALLEL = """
folder = record()
numbers = [create(sys.argv[1]) for _ in range(4)]
CODE = '''
count = sonde.counter("count", 0)
for i in range(1000):
    with sonde.span("outer"):
        with sonde.span("inner", i=i): pass
    count += 1
'''
threads = [threading.Thread(target=run, args=(number, CODE)) for number in numbers]
for thread in threads: thread.start()
for i in range(1000):
    with sonde.span("outer"): pass
for thread in threads: thread.join()
for at in (2, 0, 3, 1): sub.destroy(numbers[at])
pid = os.fork()  # only now: with subinterpreters, the child crashes in CPython itself
if pid == 0:
    with sonde.span("child"): pass
    os._exit(0)
status = os.waitpid(pid, 0)[1]
sonde.stop()
print(folder, status)
"""


@KINDS
def test_no_row_is_lost_or_mixed_when_interpreters_run_at_once(run, kind: str) -> None:
    folder, status = run(HEAD + PARALLEL, kind).stdout.split()
    assert status == "0"
    assert ask(folder, "SELECT count(*), count(DISTINCT id) FROM event.span") == [(9_000, 9_000)]
    assert ask(folder, "SELECT name, count FROM event.summary ORDER BY name") == [
        ("count", 4_004), ("inner", 4_000), ("outer", 5_000),
    ]  # fmt: skip
    pairs = """SELECT count(*) FROM event.span s JOIN event.span p ON s.parent = p.id
        WHERE s.name = 'inner' AND p.name = 'outer' AND s.interpreter = p.interpreter AND s.thread = p.thread
        AND s.t_ns >= p.t_ns AND s.t_ns + s.dur_ns <= p.t_ns + p.dur_ns"""
    assert ask(folder, pairs) == [(4_000,)]


STOPPED = """
sonde.stop()
number = create(sys.argv[1])
run(number, "region = sonde.span('early')\\nregion.start()")  # nothing is recorded yet
folders = []
over = __file__ + ".over"
thread = threading.Thread(target=run, args=(number, f"over = {over!r}" + '''
import os
region.stop()
while not os.path.exists(over):
    with sonde.span("busy", n=1): sonde.counter("n", 1)
'''))
thread.start()
for _ in range(6):
    folders.append(record())
    while not os.path.exists(folders[-1] + "/event.totals"): thread.join(0.01)
    thread.join(0.05)
    sonde.stop()
open(over, "w").close()
thread.join()
folders.append(record())
run(number, "with sonde.span('late'): pass")
sonde.pause()
run(number, "with sonde.span('paused'): pass")
sonde.stop()
run(number, "with sonde.span('after'): pass")
print(*folders)
"""


@KINDS
def test_recordings_may_begin_and_end_under_a_running_interpreter(run, kind: str) -> None:
    *folders, last = run(HEAD + STOPPED, kind).stdout.split()
    names = "SELECT DISTINCT name FROM event.span"
    assert ask(last, names) == [("late",)]
    assert any(ask(folder, names) == [("busy",)] for folder in folders)


ROWS = """
import sonde
class Batch:
    n: int
    loss: float
    name: str | None
    kind: sonde.u8
"""
TABLES = (
    ROWS
    + """
number = create(sys.argv[1])
run(number, ROWS + "emit = sonde.table(Batch)\\nemit(0, 0.0, None, 0)")  # nothing is recorded yet
folder = record()
run(number, '''
emit(1, 0.5, "first", 1)
emit(2, 1, None, 2)
emit(3, "no number", "x", 3)
emit(4, 0.5, 4, 4)
emit(5, 0.5, "x", 256)
emit(6)
emit(7, True, chr(0xdc80) + " alone", 7)
class Stop:
    def __float__(self): raise KeyboardInterrupt
try: emit(8, Stop(), "x", 8)
except KeyboardInterrupt: emit(8, 0.5, "first", 8)
assert sonde.table(Batch) is not emit and sonde.table(Batch)(9, 0.5, "again", 9) is None
class Other: m: int
for wrong in (lambda: sonde.table(Other, "job.batch"), lambda: sonde.table(type("Empty", (), {}))):
    try: wrong()
    except sonde.Error as error: print(error)
''')
sonde.table(Batch)(10, 0.5, "main", 10)
sonde.pause()
run(number, "emit(11, 0.5, 'paused', 11)")
sonde.resume()
run(number, "emit(12, 0.5, 'resumed', 12)")
sonde.stop()
run(number, "emit(13, 0.5, 'stopped', 13)")
second = record()
run(number, "emit(14, 0.5, 'second', 14)")
sonde.stop()
print(folder, second)
"""
)


@KINDS
def test_rows_of_a_table_are_recorded_with_those_of_the_main_interpreter(run, kind: str) -> None:
    done = run(HEAD + f"ROWS = {ROWS!r}\n" + TABLES, kind)
    other, empty, folders = done.stdout.splitlines()
    assert other == "job.batch exists with other columns; give the new table a name"
    assert empty == "Empty has no columns; add lines such as `name: i64`"
    folder, second = folders.split()
    rows = "SELECT n, loss, name, kind FROM job.batch ORDER BY t_ns"
    assert ask(folder, rows) == [
        (1, 0.5, "first", 1), (2, 1.0, None, 2), (7, 1.0, "\\udc80 alone", 7), (8, 0.5, "first", 8),
        (9, 0.5, "again", 9), (10, 0.5, "main", 10), (12, 0.5, "resumed", 12),
    ]  # fmt: skip
    loss = "SELECT misfit FROM sonde.loss WHERE table_name = 'job.batch'"
    assert ask(folder, loss) == [(4,)]
    assert ask(second, rows) == [(14, 0.5, "second", 14)]


TABLES_AT_ONCE = """
folder = record()
numbers = [create(sys.argv[1]) for _ in range(3)]
CODE = '''
class Row:
    who: int
    n: int
    name: str
emit = sonde.table(Row)
for n in range(2000): emit(who, n, f"{who} {n % 10}")
'''
threads = [threading.Thread(target=run, args=(n, f"who = {int(n)}\\n" + CODE)) for n in numbers]
for thread in threads: thread.start()
exec("who = 0" + CODE)
for thread in threads: thread.join()
sonde.stop()
print(folder)
"""


@KINDS
def test_rows_of_interpreters_that_run_at_once_are_all_there(run, kind: str) -> None:
    folder = run(HEAD + TABLES_AT_ONCE, kind).stdout.strip()
    whole = """SELECT count(*), count(DISTINCT (who, n)), count(DISTINCT who),
        count(*) FILTER (name = who || ' ' || n % 10) FROM job.row"""
    assert ask(folder, whole) == [(8_000, 8_000, 4, 8_000)]


PROFILER = """
number = create(sys.argv[1])
folder = record()
run(number, '''
import gc
from sonde import profiler
domain = profiler.Domain("group")
with profiler.scope("scope"), domain.new_task("task") as task:
    with domain.new_frame("frame").under(task): pass
    with domain.new_frame("frame"): pass
    with sonde.span("plain"): domain.new_marker("moment").mark("task")
event = profiler.Event("event"); event.start(); event.stop()
count = domain.new_counter("count", 4); count += 1
assert str(task) == "task" and count.value == 5 and isinstance(task, profiler.Task)
del task, event, count, domain
gc.collect()
assert profiler.set_state("run") is None and profiler.dumps() == ""
''')
sonde.stop()
print(folder, int(number))
"""


@KINDS
def test_objects_of_the_profiler_are_recorded_and_its_calls_say_why_not(run, kind: str) -> None:
    done = run(HEAD + PROFILER, kind)
    folder, number = done.stdout.split()
    n = int(number)
    spans = """SELECT s.name, s.kind, s.domain, s.number, p.name AS around, s.interpreter
        FROM event.span s LEFT JOIN event.span p ON s.parent = p.id ORDER BY s.id"""
    assert ask(folder, spans) == [
        ("scope", "span", "scope", None, None, n), ("task", "task", "group", None, "scope", n),
        ("frame", "frame", "group", 1, "task", n), ("frame", "frame", "group", 2, "task", n),
        ("plain", "span", None, None, "task", n), ("event", "event", None, None, None, n),
    ]  # fmt: skip
    assert ask(folder, "SELECT name, domain, scope FROM event.marker") == [
        ("moment", "group", "task")
    ]
    assert ask(folder, "SELECT whole, interpreter FROM event.counter ORDER BY t_ns") == [
        (4, n),
        (5, n),
    ]
    lines = done.stderr.splitlines()  # Python may have a word about interpreters of its own
    assert [line for line in lines if line.startswith("sonde:")] == [
        f"sonde: profiler.{name}() does nothing here: this is a subinterpreter: the main interpreter "
        "decides whether the process is recorded"
        for name in ("set_state", "dumps")
    ]


@KINDS
def test_a_step_that_a_subinterpreter_ends_is_one_of_the_process(run, kind: str) -> None:
    code = """
number = create(sys.argv[1])
run(number, "print(sonde.step())")  # nobody counts yet
from sonde.job.torch.steps import steps
ended = []
steps.subscribe(ended.append)
print(sonde.step())
run(number, "print(sonde.step()); print(sonde.step())")
print(sonde.step())
assert [(one.number, one.kind) for one in ended] == [(n, "user") for n in range(4)], ended
"""
    assert run(HEAD + code, kind).stdout.split() == ["-1", "0", "1", "2", "3"]


@pytest.mark.skipif(sys.version_info < (3, 14), reason="the executor came with Python 3.14")
def test_work_of_an_interpreter_pool_is_recorded(run) -> None:
    done = run(
        "import sonde\nfrom concurrent.futures import InterpreterPoolExecutor\n"
        "def work(n):\n"
        "    import sonde\n"
        "    class Work: n: int\n"
        "    sonde.table(Work)(n)\n"
        "    with sonde.span('work', n=n): return n\n"
        "if __name__ == '__main__':\n"
        "    print(sonde.start(collector=False))\n"
        "    with InterpreterPoolExecutor(2) as pool: assert sum(pool.map(work, range(8))) == 28\n"
        "    sonde.stop()\n"
    )
    rows = ask(done.stdout.strip(), "SELECT interpreter > 0, count(*) FROM event.span GROUP BY 1")
    assert rows == [(True, 8)]
    assert ask(done.stdout.strip(), "SELECT sum(n) FROM job.work") == [(28,)]
