"""Attach to a process that cannot be traced: its Python, from 3.14 on, takes a script."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from conftest import TIMEOUT_S, wait_for
from sonde.attach import preflight, visit
from sonde.errors import NotAnswering
from sonde.session import stack_table, steering

QUIET = {"collector": "off"}
TRACER = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
PTRACE_SEIZE = 0x4206  # traces without a stop
print(libc.ptrace(PTRACE_SEIZE, int(sys.argv[1]), None, None), flush=True)
sys.stdin.read()
"""
RUNS = "import time\nprint('ready', flush=True)\nwhile True: time.sleep(0.01)\n"
WAITS = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
print("ready", flush=True)
signal.sigwait([signal.SIGUSR1])
print("goes on")
"""


@pytest.fixture
def trace():
    """Has another process trace the one with this pid."""
    tracers: list[subprocess.Popen[str]] = []

    def trace(pid: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", TRACER, str(pid)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        tracers.append(subprocess.Popen(command, text=True, **pipes))
        assert tracers[-1].stdout is not None and tracers[-1].stdout.readline() == "0\n"
        return tracers[-1]

    yield trace
    for tracer in tracers:
        tracer.kill()
        tracer.wait()


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="this Python takes scripts")
def test_a_python_that_takes_no_scripts_says_who_traces_it(start, trace) -> None:
    job = start(RUNS)
    trace(job.pid)
    with pytest.raises(preflight.AlreadyTraced, match="is being traced by"):
        visit.attach(job.pid, QUIET, TIMEOUT_S)


@pytest.mark.skipif(sys.version_info < (3, 14), reason="this Python takes no scripts")
def test_a_process_that_is_traced_is_recorded_and_left(start, trace) -> None:
    job = start(RUNS)
    trace(job.pid)
    recording = visit.attach(job.pid, QUIET, TIMEOUT_S)
    steering.sample_now(recording, 1)
    (main,) = wait_for(lambda: stack_table.read_newest(recording))
    assert main.frames[-1].func == "<module>"
    visit.detach(recording, TIMEOUT_S)
    assert not recording.is_alive() and job.poll() is None


@pytest.mark.skipif(sys.version_info < (3, 14), reason="this Python takes no scripts")
def test_a_process_that_runs_no_python_is_not_asked_any_more(start, trace) -> None:
    job = start(WAITS)
    tracer = trace(job.pid)
    with pytest.raises(NotAnswering, match="ran no Python code in its main thread"):
        visit.attach(job.pid, QUIET, 0.2)
    tracer.kill()  # it would keep the signal
    tracer.wait()
    job.send_signal(signal.SIGUSR1)
    assert job.communicate(timeout=TIMEOUT_S) == ("goes on\n", "")
    assert job.returncode == 0
