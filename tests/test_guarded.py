"""Servers that tests start do not outlive them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from conftest import wait_for
from support.guarded import end_guarded, list_session, start_guarded
from support.places import TESTS

SERVER = ["sh", "-c", "sleep 600 & sleep 600"]
STARTER = f"""
import os, sys, time
sys.path.insert(0, sys.argv[1])
from support.guarded import start_guarded
print(start_guarded({SERVER!r}, os.environ).pid, flush=True)
time.sleep(600)
"""


def test_a_server_and_its_children_end_when_the_tests_are_killed() -> None:
    words = [sys.executable, "-c", STARTER, str(TESTS)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as tests:
        assert tests.stdout is not None
        leader = int(tests.stdout.readline())
        wait_for(lambda: len(list_session(leader)) == 4)
        tests.send_signal(signal.SIGKILL)
    wait_for(lambda: list_session(leader) == [])


def test_a_server_that_is_ended_takes_its_children_along() -> None:
    server = start_guarded(SERVER, os.environ)
    wait_for(lambda: len(list_session(server.pid)) == 4)
    end_guarded(server)
    wait_for(lambda: list_session(server.pid) == [])  # whoever inherits the dead asks for them
