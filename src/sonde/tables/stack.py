"""Samples of stacks, threads and asyncio tasks."""

from __future__ import annotations

from sonde.session.schema import column, i64, text, u32, u64


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
