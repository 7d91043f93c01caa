"""Make the folders beside this file: `python tests/golden/make.py`, whenever the format changes.

`ended` is a recording with every kind of file that a job and the tools write. `sealed` is one that
the collector has archived. The values in them are known: tests/session/test_format.py reads them."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import sonde
from sonde import environ
from sonde.collector import loop
from sonde.session import (
    Session,
    captures,
    crash_file,
    files,
    native_stacks,
    runs,
    shipped,
    steering,
)
from sonde.session.heap_look import HeapLook
from sonde.session.native_stacks import StacksAtFault, ThreadAtFault
from sonde.session.records import (
    Exit,
    MemoryKills,
    Meta,
    ProfilerAnswer,
    ProfilerRequest,
    ProfilerRequests,
)
from sonde.session.torch_records import CaptureGo, CaptureStop, Oom, OomBlocks, OomSegments, OomStep
from sonde.session.writer import find_current
from sonde.store import archive

HERE = Path(__file__).resolve().parent
PLACE = Path(tempfile.gettempdir(), "golden")  # stacks name the files that ran: not your folders

OFF = {
    f"source_{name}": "off" for name in ("capture", "collective", "compile", "cuda", "oom", "torch")
}
SMALL = {"ring_bytes": "4KiB", "text_bytes": "16KiB", "stack_bytes": "16KiB"}
REQUESTS = ProfilerRequests(requests=[ProfilerRequest(number=7, what="halt", values={})])
EXIT = Exit(status=9, out_of_memory="cgroup", exception="golden.Error: no")
KILLS = MemoryKills(
    folder="/sys/fs/cgroup/job", number=7, kills=1, wholes=0, limits=3, ours=1, starts=2
)
LOOK = HeapLook(
    is_on=False, is_declined=True, count=2, begin_ns=5, until_ns=6, why="because the memory grew"
)
# A fault of thread 100, in which nothing was known of any thread.
CRASH = b"soncrash" + struct.pack("<IIqQ", 1, 0, 5, 100)
AT_FAULT = StacksAtFault(
    t_ns=5,
    notes=["golden note"],
    threads=[
        ThreadAtFault(
            thread=100, waits=True, depth=2, frames=[("read", "/lib/libc.so.6", 0), ("", "", 2)]
        )
    ],
)
SHIPPED = shipped.Shipped(
    to="/shared", state="on", since_wall_ns=6, tables={"job.sample": shipped.ShippedTable(done=3)}
)
ANSWER = ProfilerAnswer(number=7, path="/tmp/profile.json", errors={"6": "no"})
OOM = Oom(
    number=1, t_ns=5, wall_ns=6, step=3, thread=100, device="cuda:0",
    needed_bytes=1024, free_bytes=512, total_bytes=2048, largest_free_bytes=256,
    segments=OomSegments(
        segments=1, blocks=3, free_blocks=1, free_bytes=256, largest_free_bytes=256,
        most_used=[OomBlocks(size_bytes=128, blocks=2)],
    ),
    stats={"num_ooms": 1}, stacks={"100": ["train (train.py:3)"]},
    last_steps=[OomStep(step=2, t_ns=3, dur_ns=1)],
)  # fmt: skip


class Sample:
    """Every kind of column."""

    a: sonde.i8
    b: sonde.i16
    c: sonde.i32
    d: sonde.i64
    e: sonde.u8
    f: sonde.u16
    g: sonde.u32
    h: sonde.u64
    i: sonde.f64 | None
    j: bool
    k: sonde.text | None


class Expired:
    """Rows that retention removes."""

    x: sonde.i64


def rows() -> list[tuple[object, ...]]:
    low = (-(2**7), -(2**15), -(2**31), -(2**63), 0, 0, 0, 0, -0.5, False, "first")
    high = (
        2**7 - 1, 2**15 - 1, 2**31 - 1, 2**63 - 1, 2**8 - 1, 2**16 - 1, 2**32 - 1, 2**64 - 1,
        1e300, True, "é🦀",
    )  # fmt: skip
    return [low, high, (0,) * 8 + (None, True, None)]


def start() -> Session:
    emit, emit_expired = sonde.table(Sample, "job.sample"), sonde.table(Expired, "job.expired")
    folder = sonde.start(collector="off", stack_every="1ms", source_heap="on", **SMALL, **OFF)
    assert folder
    for row in rows():
        emit(*row)
    for number in range(5):
        emit_expired(number)
    return Session(folder)


def work() -> None:
    """Be seen in stacks, and use events of every kind."""
    golden_local = 42
    with sonde.span("golden span"):
        sonde.counter("golden counter", 2.5)
        sonde.mark("golden marker")
        until = time.monotonic() + 0.2
        while time.monotonic() < until:
            golden_local += 1


def write_all(session: Session) -> None:
    """Have every file written that a job, the tools or other ranks write."""
    work()
    sonde.snapshot()
    assert steering.inspect(session, 10)
    with sonde.profile(name="golden run"):
        work()
    runs.process_all(session)
    run = runs.start(session, runs.RunOptions(name="no result yet"))
    run.wait_running()
    work()
    run.stop()
    from support import torch_traces  # beside this file in PLACE

    torch_traces.store(session.folder, session.meta.monotonic_ns)
    CaptureGo(first_step=5).write(captures.name_file(session.folder, torch_traces.ID, captures.GO))
    stop = captures.name_file(session.folder, torch_traces.ID, captures.STOP)
    CaptureStop().write(stop)
    OOM.write(session.path("oom-1.json"))
    EXIT.write(session.path(files.EXIT))
    KILLS.write(session.path(files.MEMORY_KILLS))
    LOOK.write(session.path(files.HEAP_LOOK))
    Path(session.path(crash_file.NAME)).write_bytes(CRASH)
    AT_FAULT.write(session.path(native_stacks.NAME))
    REQUESTS.write(session.path("profiler.json"))
    ANSWER.write(session.path("profiler.answer.json"))
    SHIPPED.write(session.path(shipped.NAME))
    files.log(session.folder, "golden line")


def seal(session: Session) -> None:
    while not session.read_sealed():
        loop.Collector(environ.find_root()).step(0.0)
    (segment,) = archive.list_segments(session, "job.expired")
    archive.expire(session, "job.expired", segment)


def keep(session: Session, name: str) -> None:
    """Copy a session to its place, under the name of a host that does not exist."""
    to = HERE / name
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(session.folder, to)
    meta = Meta.read(str(to / "meta.json")).replace(
        id=name, cwd="/", executable="python",
        boot_id=None, job_env={},
    )  # fmt: skip
    meta.write(str(to / "meta.json"))


def make() -> None:
    """Record, in a process whose host and folders have the same names everywhere."""
    known = os.uname()
    renamed = os.uname_result((known.sysname, "golden", "6", "", known.machine))
    os.uname = lambda: renamed
    sys.orig_argv = ["python", "train.py"]
    with tempfile.TemporaryDirectory() as root:
        os.environ["SONDE_DIR"] = root
        session = start()
        write_all(session)
        sonde.stop()
        keep(session, "ended")
        session = start()
        work()
        sonde.stop()
        assert find_current() is None
        seal(session)
        keep(session, "sealed")


def main() -> None:
    PLACE.mkdir()
    try:
        package = Path(sonde.__file__).parent
        for path in (package, HERE.parent / "support", HERE / "make.py"):
            (PLACE / path.name).symlink_to(path)
        (PLACE / "lib").symlink_to(sysconfig.get_path("stdlib"))
        code = "import make; make.make()"
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{PLACE}:{PLACE}/lib"}
        subprocess.run([sys.executable, "-c", code], env=env, cwd="/", check=True)
    finally:
        shutil.rmtree(PLACE)


if __name__ == "__main__":
    main()
