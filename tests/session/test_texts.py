"""The text table, and who may fill it."""

from __future__ import annotations

from pathlib import Path

import sonde

FILL = """
import threading, time
import sonde
class Item:
    text: str
emit = sonde.table(Item)
sonde.start(collector=False, text_bytes="64KiB", **{"stack.every": "1ms"})
for i in range(5000): emit("a text of the program, number %d" % i)
for i in range(5000):
    with sonde.span("span %d" % i, value="value %d" % i): pass
def brand_new_function():
    with sonde.span("span 1"): emit("a text of the program, number 1")
    end = time.monotonic() + 0.2
    while time.monotonic() < end: sum(range(1000))
thread = threading.Thread(target=brand_new_function, name="brand new thread")
thread.start()
thread.join()
"""


def test_texts_of_the_program_leave_room_for_names(run, root: Path) -> None:
    run(FILL)
    (session,) = sonde.session.list_sessions(str(root))
    ask = sonde.Recording([session]).query
    lost = ask("SELECT table_name FROM sonde.loss WHERE text_lost > 0").to_pylist()
    assert {row["table_name"] for row in lost} >= {"job.item", "event.span"}
    funcs = ask("SELECT DISTINCT func FROM python.frame").to_pylist()
    assert {"func": "brand_new_function"} in funcs
    assert {"func": None} not in funcs
    assert ask("SELECT name FROM python.thread WHERE name = 'brand new thread'").num_rows > 0
    # What was known before the table was full is known for good.
    assert ask("SELECT name FROM event.span WHERE name = 'span 1'").num_rows == 2
    assert ask("SELECT text FROM job.item WHERE text LIKE '%number 1'").num_rows == 2
    assert ask("SELECT source FROM sonde.source WHERE source IS NULL").num_rows == 0
