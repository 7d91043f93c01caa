"""Requests: what kept the event loop."""

from __future__ import annotations

from sonde.analysis.request_stacks import HOLDER
from sonde.cli.requests import _LOOPS
from support.handmade_stacks import FakeRecording

MS = 10**6


def test_a_callback_that_does_two_things_kept_the_loop_for_as_long_as_each_took() -> None:
    recording = FakeRecording()
    recording.see("main|encode|one", 100, wall=40).see("main|encode|two", 140, wall=40)
    recording.see("main|dump", 200, wall=60).see("main|other", 400, wall=200)
    dumped = recording.samples[2]["stack"]
    recording.row("python.loop_hold", 60, dur_ns=140 * MS, held_ns=140 * MS, thread=100,
                  callback="answer", stack=7, samples=3, cpu_ns=0)  # fmt: skip
    recording.row("python.event_loop", 1000, thread=100, wall_ns=1000 * MS, idle_ns=0, callbacks=9,
                  held_ns=0, longest_ns=0)  # fmt: skip
    recording.row("python.request", 60, dur_ns=140 * MS)
    everything = {"first_ns": 0, "last_ns": 2**62}
    sql = _LOOPS.format(inside="TRUE", stack=HOLDER, long=50 * MS, places=9, **everything)
    (loop,) = recording.query(sql).to_pylist()
    assert (loop["times"], loop["longest_ns"]) == (1, 140 * MS)
    assert loop["sums"] == [60 * MS, 40 * MS, 40 * MS] and loop["stacks"][0] == dumped
