"""Stacks of all Python threads, sampled without the GIL."""

from __future__ import annotations

import os

from sonde import _core
from sonde.job.source_context import Host
from sonde.job.sources import _python_objects
from sonde.session import ring
from sonde.session.folder import NODES
from sonde.session.schema import column, i64, text, u32, u64

_NODE_BYTES = 64


class StackSample:
    """What a thread was doing: one sample, or several that say the same of an idle thread."""

    RING_BYTES = 8 * 2**20
    t_ns: i64 = column("when the (last) sample was taken", "ns")
    thread: i64 = column("thread id, as the kernel counts")
    stack: i64 = column("which stack: see python.frame; the same number in every process")
    samples: u32 = column("how many samples it stands for")
    wall_ns: i64 = column("time it stands for: since the thread's last sample", "ns")
    cpu_ns: i64 = column("CPU time since it was last sampled at work; 0 if it is idle", "ns")
    gil: bool = column("the thread held the GIL")
    idle: bool = column("the thread slept or waited, for anything but a CPU")


class Thread:
    """A thread was first seen, got a name, or ended; told again every five minutes."""

    RING_BYTES = 2**21
    t_ns: i64 = column("when", "ns")
    thread: i64 = column("thread id, as the kernel counts")
    name: text | None = column("what Python calls it")
    state: text = column("started, named or ended")


class Sampling:
    """How the sampling itself went, in sums since its start; a row every 10 s."""

    RING_BYTES = 2**16
    t_ns: i64 = column("when", "ns")
    due: u64 = column("times that a sample of all threads was due")
    taken: u64 = column("times that one was taken")
    samples: u64 = column("stacks of single threads")
    torn: u64 = column("stacks given up: they changed while they were read")
    skipped_interpreters: u64 = column("times that there were subinterpreters, which are left out")
    cut: u64 = column("stacks deeper than 512 frames; the outermost are left out")
    cpu_ns: i64 = column("CPU time of sonde's thread", "ns")
    threads: u32 = column("threads there were")
    stacks: u32 = column("distinct stacks and parts of them")
    stacks_lost: u64 = column("samples whose stack found no room: see stack.bytes")


class Task:
    """A frame of an asyncio task, written when asked for: `sonde stacks --tasks`."""

    RING_BYTES = 2**18
    t_ns: i64 = column("when", "ns")
    task: u64 = column("which task")
    name: text = column("its name")
    state: text = column("running or waiting")
    waits_for: text | None = column("what it awaits, if that is no coroutine")
    depth: u32 = column("0 is the frame that awaits, or runs")
    func: text | None = column("function")
    file: text | None = column("its file")
    lineno: i64 = column("line")


ROWS = (StackSample, Thread, Sampling, Task)


class Source:
    """The sampler in the watcher's thread, and what only Python can tell it."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._samples = host.writer(StackSample)
        self._threads = host.writer(Thread)
        self._sampling = host.writer(Sampling)
        self._objects = _python_objects.Objects(host, host.writer(Task))

    def start(self) -> None:
        slow = bool(self._host.session.values["stack.slow"])
        if slow:
            self._host.detail = "slow, as asked: through the GIL"
        try:
            self._begin(slow)
        except OSError as error:
            if slow:
                raise
            # Not this Python, or the kernel does not let a process read itself so.
            self._host.detail = f"slow, through the GIL: {error}"
            self._begin(True)

    def _begin(self, slow: bool) -> None:
        session = self._host.session
        self._sampler = _core.Sampler(
            self._samples,
            self._threads,
            self._sampling,
            session.text,
            _open_nodes(session.folder, session.values["stack.bytes"]),
            session.page,
            os.fsencode(session.folder),
            self._host.guard(self._inspect),
            slow,
        )
        self._sampler.start(self._interval_ns())

    def stop(self) -> None:
        self._sampler.stop()

    def configure(self) -> None:
        self._sampler.pace(self._interval_ns())

    def _interval_ns(self) -> int:
        return round(float(self._host.session.values["stack.every"]) * 1e9)

    def _inspect(self, wants: int) -> None:
        self._objects.tell(self._sampler, wants)


def _open_nodes(folder: str, size: object) -> _core.Map:
    assert isinstance(size, int)
    path = os.path.join(folder, NODES)
    if os.path.exists(path):  # switched off and on again
        return ring.map_file(path, writable=True)
    entries = size // _NODE_BYTES
    fd = ring.create_file(path + ".new", _core.nodes_bytes(entries))
    try:
        nodes = _core.Map(fd, True)
    finally:
        os.close(fd)
    _core.nodes_init(nodes, entries)
    os.rename(path + ".new", path)
    return nodes
