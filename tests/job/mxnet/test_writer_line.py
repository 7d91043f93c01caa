"""The line to the process that writes traces."""

from __future__ import annotations

import _socket
import os
import threading
import time
from array import array

from conftest import wait_for
from sonde.job.mxnet.settings import MxnetSettings
from sonde.job.mxnet.state import MxnetProfile
from sonde.job.mxnet.writer_line import WriterLine
from sonde.session.profiler_line import join


def test_others_may_speak_while_one_waits_for_an_answer() -> None:
    line = WriterLine()
    line._line, far = _socket.socketpair()
    line._pid = os.getpid()
    asking = threading.Thread(target=line.ask, args=(60.0,), kwargs={"do": "dump"})
    asking.start()
    wait_for(lambda: far.recv(65536))
    free = 0
    for _ in range(200):
        if line.lock.acquire(blocking=False):
            line.lock.release()
            free += 1
        time.sleep(0.0005)
    far.close()  # whoever should answer is gone
    asking.join()
    assert free > 100
    assert not line.is_connected


def test_pausing_in_each_of_very_many_steps_keeps_requests_small() -> None:
    profile = MxnetProfile(MxnetSettings({}), "trace.json")
    for _ in range(100_001):
        profile.toggle()
    assert profile.is_open
    told = profile.describe()["windows"]
    assert isinstance(told, list) and 500 <= len(told) <= 2000
    assert told == sorted(told)


def test_windows_with_the_least_between_them_are_joined() -> None:
    ends = [0, 10, 11, 20, 50, 60, 62, 70, 100, 110]
    assert join(ends, 5) == ends
    assert join(ends, 3) == [0, 20, 50, 70, 100, 110]
    assert join(array("q", ends[:-1]), 3) == [0, 20, 50, 70, 100]
