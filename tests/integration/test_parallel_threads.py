"""Threads that emit at the same time: truly so where Python has no GIL."""

from __future__ import annotations

import sonde

THREADS, ROUNDS = 8, 300

PROGRAM = f"""
import sys, threading
import sonde
before = getattr(sys, "_is_gil_enabled", lambda: None)()
folder = sonde.start(collector=False, stack_every="1ms")
class Batch:
    n: int
    name: str
emit = sonde.table(Batch)
begin = threading.Barrier({THREADS})
counter, shared = sonde.counter("all"), sonde.span("shared")
def work(number):
    begin.wait()
    for n in range({ROUNDS}):
        with sonde.span("outer", number=number):
            with sonde.span("inn\xe9r"):
                emit(n, f"thread {{number}}, {{n % 50}}")
        counter.increment()
        sonde.mark("moment")
        with shared:
            pass
threads = [threading.Thread(target=work, args=(number,)) for number in range({THREADS})]
for thread in threads: thread.start()
for thread in threads: thread.join()
sonde.stop()
assert before == getattr(sys, "_is_gil_enabled", lambda: None)()
print(folder, counter.value)
"""


def test_every_event_of_eight_threads_is_there_once(run) -> None:
    folder, value = run(PROGRAM).stdout.split()
    wanted = THREADS * ROUNDS
    assert int(value) == wanted
    recording = sonde.open(folder)

    def count(sql: str) -> list[dict[str, object]]:
        return recording.query(sql).to_pylist()

    assert count(
        "SELECT name, count(DISTINCT id) AS n, count(parent) AS inside FROM event.span "
        "GROUP BY name ORDER BY name"
    ) == [
        {"name": "inn\xe9r", "n": wanted, "inside": wanted},
        {"name": "outer", "n": wanted, "inside": 0},
        {"name": "shared", "n": wanted, "inside": 0},
    ]
    assert count("SELECT count(DISTINCT value) AS n, max(value) AS most FROM event.counter") == [
        {"n": wanted, "most": float(wanted)}
    ]
    assert count("SELECT count(DISTINCT id) AS n FROM event.marker") == [{"n": wanted}]
    assert count("SELECT count(*) AS n, count(DISTINCT name) AS texts FROM job.batch") == [
        {"n": wanted, "texts": THREADS * 50}
    ]
    assert count("SELECT count(*) AS n FROM event.attribute") == [{"n": wanted}]
    assert count("SELECT sum(dropped + misfit + text_lost)::INT AS n FROM sonde.loss") == [{"n": 0}]
