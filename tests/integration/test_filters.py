"""A filter of system calls that ends whoever makes a forbidden one does not end a recorded job."""

from __future__ import annotations

import platform

import pytest

import sonde

# Allow everything but one system call, whose number is in `FORBIDDEN`; no new privileges first.
FILTER = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def forbid(number):
    load, equal, answer = (0x20, 0, 0, 0), (0x15, 0, 1, number), 0x06
    rows = [load, equal, (answer, 0, 0, 0x80000000), (answer, 0, 0, 0x7fff0000)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *row) for row in rows))
    program = struct.pack("HxxxxxxQ", len(rows), ctypes.addressof(code))
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, program, 0, 0) == 0, os.strerror(ctypes.get_errno())
"""
READV = 270 if platform.machine() == "aarch64" else 310


@pytest.mark.parametrize("collector", [True, False])
def test_a_job_that_may_not_read_memory_is_recorded_slowly(run_anew, collector: bool) -> None:
    code = f"""
forbid({READV})
import sonde, time
folder = sonde.start(collector={collector}, stack_every="1ms")
end = time.monotonic() + 0.3
def work():
    while time.monotonic() < end: pass
work()
print(folder)
"""
    folder = run_anew(FILTER + code).stdout.strip()
    recording = sonde.open(folder)
    (source,) = recording.query("SELECT * FROM sonde.source WHERE source = 'stack'").to_pylist()
    assert source["state"] != "failed"
    (log, *_) = recording.query(
        "SELECT detail FROM sonde.source_log WHERE source = 'stack' AND state = 'on'"
    ).to_pylist()
    assert "seccomp" in log["detail"]


def test_a_filter_that_allows_it_changes_nothing(run_anew) -> None:
    code = """
forbid(1 << 20)
import sonde
print(sonde.start())
"""
    folder = run_anew(FILTER + code).stdout.strip()
    (log, *_) = (
        sonde.open(folder)
        .query("SELECT detail FROM sonde.source_log WHERE source = 'stack' AND state = 'on'")
        .to_pylist()
    )
    assert log["detail"] is None
