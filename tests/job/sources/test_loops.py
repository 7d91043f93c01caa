"""Event loops: which callback kept one from running others, and how busy it was."""

from __future__ import annotations

import pytest

from sonde.store.recording import open_recording

PROGRAM = """
import asyncio, sys, time
import sonde

async def block():
    for _ in range(5):
        await asyncio.sleep(0.01)
        time.sleep(0.1)

async def give_way():
    end = time.thread_time() + 0.5
    while time.thread_time() < end:
        await asyncio.sleep(0)

async def stop():
    time.sleep(2.3)

async def main():
    for _ in range(3):
        await asyncio.sleep(0.1)
    await asyncio.gather(block(), give_way())
    await asyncio.create_task(stop())

if "uvloop" in sys.argv:
    import uvloop
    uvloop.install()
folder = sonde.start(collector=False, follow=False, stack_every="2ms")
if "bare" in sys.argv:  # nobody's function that we know runs the loop
    asyncio.new_event_loop().run_until_complete(main())
else:
    asyncio.run(main())
time.sleep(0.3)
sonde.stop()
print(folder)
"""
# A hold that lasts from one row about the loop into the next has a row in each: the first may be short.
HOLDS = """
WITH hold AS (SELECT *, MAX(held_ns) OVER (PARTITION BY callback, t_ns + dur_ns - held_ns) AS longest_ns
              FROM python.loop_hold)
SELECT callback, ANY_VALUE(wait) AS wait, COUNT(*) AS rows,
       COUNT(DISTINCT t_ns + dur_ns - held_ns) AS times,
       SUM(dur_ns)::BIGINT AS dur_ns, MAX(held_ns) AS held_ns, SUM(cpu_ns)::BIGINT AS cpu_ns,
       ANY_VALUE(lineno) AS lineno
FROM hold JOIN python.frame USING (stack) WHERE depth = 0 AND longest_ns > 50e6
GROUP BY callback"""


@pytest.mark.parametrize("how", ["asyncio", "asyncio bare", "uvloop", "uvloop bare"])
def test_callbacks_that_keep_the_loop_are_told_with_their_line(run, how: str) -> None:
    if how.startswith("uvloop"):
        pytest.importorskip("uvloop")
    recording = open_recording(run(PROGRAM, *how.split()).stdout.strip())
    holds = {row["callback"]: row for row in recording.query(HOLDS).to_pylist()}
    (loop,) = recording.query(
        "SELECT SUM(callbacks)::BIGINT AS callbacks, MAX(longest_ns) AS longest_ns, "
        "SUM(wall_ns)::BIGINT AS wall_ns, SUM(idle_ns)::BIGINT AS idle_ns, "
        "SUM(held_ns)::BIGINT AS held_ns, COUNT(*) FILTER (held_ns + idle_ns > wall_ns) AS beyond "
        "FROM python.event_loop"
    ).to_pylist()
    block, stop = holds["block"], holds["stop"]
    # On a busy machine the sampler may miss one.
    assert 3 <= block["times"] <= 5 and (block["wait"], block["lineno"]) == ("sleep", 8)
    assert block["dur_ns"] > 0.3e9
    assert (stop["times"], stop["lineno"]) == (1, 16)
    assert stop["rows"] >= 2 and stop["dur_ns"] == stop["held_ns"] > 2e9
    # Others may keep a busy machine's processor from it, but its own callbacks are short.
    assert holds.get("give_way", {"cpu_ns": 0})["cpu_ns"] < 0.25e9
    assert loop["callbacks"] > 100 and loop["longest_ns"] > 1e9
    assert loop["idle_ns"] < loop["wall_ns"] < 60e9
    # stop() lasts from one row about the loop into others: each has its own part of it.
    assert loop["beyond"] == 0 and loop["held_ns"] > 2e9
