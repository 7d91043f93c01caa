"""What a thread waits for, in words, by the functions that it is in."""

from __future__ import annotations

import queue
import threading

from sonde.analysis.wait_words import describe_wait


def test_names_without_their_class_tell_the_same_where_only_one_is_meant() -> None:
    for wait, get in (
        (("wait", "get")),
        ("Condition.wait", "Queue.get"),
    ):  # as 3.10 says it, and others
        frames = [(wait, threading.__file__), (get, queue.__file__), ("work", "/home/me/job.py")]
        assert describe_wait(frames, "lock") == "an item from a queue"
    assert (
        describe_wait([("wait", threading.__file__)], "lock") == "a lock"
    )  # an event, a barrier …
