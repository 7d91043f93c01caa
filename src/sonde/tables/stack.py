"""Samples of stacks, threads, event loops and asyncio tasks."""

from __future__ import annotations

from sonde.session.schema import column, i64, text, u32, u64


class StackSample:
    """What a thread was doing: one sample, or several equal ones of an idle thread."""

    RING_BYTES = 8 * 2**20
    t_ns: i64 = column("when the (last) sample was taken", "ns")
    thread: i64 = column("kernel thread id")
    stack: i64 = column(
        "id of the stack, see python.frame; equal stacks have the same id in every process"
    )
    samples: u32 = column("how many samples this row stands for")
    wall_ns: i64 = column(
        "elapsed time this row stands for: since the thread's previous sample", "ns"
    )
    cpu_ns: i64 = column(
        "CPU time since the thread was last sampled while working; 0 if it is idle", "ns"
    )
    gil: bool = column("the thread held the GIL of its interpreter")
    idle: bool = column("the thread slept or waited for something other than a CPU")
    interpreter: u32 = column("number of the interpreter that the thread was in; 0 is the main one")
    wait: text | None = column(
        "what an idle thread waited for, told by its system call: gil, lock, shared_lock (which "
        "another process may give back), sleep, poll, network, pipe, child, disk, fault, device or "
        "other; NULL if it was not idle"
    )
    queue_ns: i64 | None = column(
        "time of wall_ns that it waited for a CPU; 0 if it is idle, NULL if the kernel does not "
        "tell",
        "ns",
    )
    call: text | None = column(
        "C function that the innermost line was calling, like re.Pattern.match, time.sleep or "
        "list.__contains__ (for `in`); also operators of long texts and lists and of what "
        "extensions make, like str.__add__ and numpy.ndarray.__getitem__; raise while an exception "
        "is raised or caught; {**} and [*] while a dictionary or a list takes in another; while "
        "in a loop that does nothing but ask, and ends only if another thread changes the answer; "
        "NULL if there was none that can be told, and on Python 3.10"
    )


class Thread:
    """A thread that was first seen, got a name, or ended; repeated every five minutes."""

    RING_BYTES = 2**21
    t_ns: i64 = column("when", "ns")
    thread: i64 = column("kernel thread id")
    name: text | None = column("name of the thread in Python")
    state: text = column("started, named or ended")


class Sampling:
    """How sampling itself went: totals since its start, every 10 s."""

    RING_BYTES = 2**16
    t_ns: i64 = column("when", "ns")
    due: u64 = column("samples of all threads that were due")
    taken: u64 = column("samples of all threads that were taken")
    samples: u64 = column("stacks of single threads that were recorded")
    torn: u64 = column("stacks that were given up because they changed while being read")
    skipped_interpreters: u64 = column(
        "times that a subinterpreter was left out: before 3.12, in part in 3.12, or beyond 256"
    )
    cut: u64 = column("stacks deeper than 512 frames, whose outermost frames are left out")
    cpu_ns: i64 = column("CPU time of sonde's own thread", "ns")
    threads: u32 = column("number of threads")
    stacks: u32 = column("distinct stacks, including the parts they share")
    stacks_lost: u64 = column("samples for whose stack there was no room: raise stack.bytes")
    native: u64 = column("samples of running threads whose functions of C are known: stack.native")
    native_lost: u64 = column(
        "samples of running threads whose functions of C are not known: seen for the first time, "
        "in code without unwind tables, or the thread did not answer in time"
    )


class LoopHold:
    """A callback that kept an event loop (asyncio, uvloop) from running any other; the longest
    ones have a row for each second. A callback is one step of a task, from one await that has to
    wait to the next, or a function that the loop was given."""

    RING_BYTES = 2**19
    t_ns: i64 = column("when the time that this row stands for began", "ns")
    dur_ns: i64 = column(
        "how long the callback was seen to keep the loop: between two samples, so in truth up to "
        "twice stack.every longer; what takes less than stack.every is not seen",
        "ns",
    )
    held_ns: i64 = column(
        "how long it had kept the loop at the end of this row; more than dur_ns if it has rows "
        "before this one",
        "ns",
    )
    thread: i64 = column("kernel id of the thread that runs the loop")
    callback: text | None = column(
        "the function that the loop called, such as the coroutine of a task; NULL if it is in C"
    )
    stack: i64 = column("id of the stack that took most of that time, see python.frame")
    samples: u32 = column("samples that this row rests on")
    cpu_ns: i64 = column("CPU time that the thread used meanwhile", "ns")
    wait: text | None = column(
        "what the callback waited for most, as in python.stack_sample; NULL if it ran most of the "
        "time"
    )


class EventLoop:
    """An event loop (asyncio, uvloop): how busy it was, once a second."""

    RING_BYTES = 2**17
    t_ns: i64 = column("when", "ns")
    thread: i64 = column("kernel id of the thread that runs the loop")
    wall_ns: i64 = column("elapsed time that this row stands for", "ns")
    idle_ns: i64 = column("of it, time in which the loop waited for something to happen", "ns")
    callbacks: u64 = column(
        "callbacks that ran; more than that if callbacks enter contexts (contextvars) themselves"
    )
    held_ns: i64 = column("time in which callbacks kept the loop for long: see loop_hold", "ns")
    longest_ns: i64 = column("the longest time that one of them had kept it so far", "ns")


class LockWait:
    """A thread that has waited for a lock for a second or more, and who holds it; written again
    while the wait lasts, and whenever `sonde stacks` asks. Not on Pythons without a GIL."""

    RING_BYTES = 2**18
    t_ns: i64 = column("when it was seen", "ns")
    thread: i64 = column("kernel id of the thread that waits")
    since_ns: i64 = column("since when the thread has done nothing else", "ns")
    lock: u64 = column("memory address of the lock: equal ones are the same lock")
    kind: text = column(
        "Lock, RLock, or thread: it waits for a thread to end (told apart until Python 3.12)"
    )
    holder: i64 | None = column(
        "kernel id of the thread that holds it: an RLock names it, a Lock is held by whoever is "
        "inside of a `with` block of it; NULL if that is not known, as after acquire()"
    )
    holder_stack: i64 | None = column(
        "id of the stack that the holder was at, see python.frame; NULL if there is none"
    )
    taken_func: text | None = column(
        "function whose `with` block took the lock; NULL if that is not known"
    )
    taken_file: text | None = column("source file of it")
    taken_lineno: i64 | None = column("line of the `with`")


class FatalSignal:
    """A signal that ended the program. Every thread was sampled once more: see python.backtrace."""

    RING_BYTES = 2**12
    t_ns: i64 = column("when", "ns")
    thread: i64 = column("kernel thread id of the thread that got it")
    signal: text = column("SIGSEGV, SIGABRT, SIGBUS, SIGFPE or SIGILL")
    address: u64 | None = column("memory address of the fault; NULL if somebody sent the signal")


class Task:
    """A frame of an asyncio task, written when `sonde stacks --tasks` asks for it."""

    RING_BYTES = 2**18
    t_ns: i64 = column("when", "ns")
    task: u64 = column("id of the task")
    name: text = column("name of the task")
    state: text = column("running or waiting")
    waits_for: text | None = column("what the task awaits, if that is not a coroutine")
    depth: u32 = column("position in the stack; 0 is the innermost frame, which awaits or runs")
    func: text | None = column("name of the function")
    file: text | None = column("source file")
    lineno: i64 = column("line that runs or awaits")


class TaskWait:
    """What asyncio's tasks awaited: looked at twice a second while an event loop runs, and written
    every two seconds for each place. SUM(soon_ns) / SUM(soon_ended) is how long a wait lasts, on
    average; SUM(later_ns) / SUM(later_ended) is, if most waits last longer than half a second."""

    RING_BYTES = 2**18
    t_ns: i64 = column("when the time that this row stands for ended", "ns")
    wall_ns: i64 = column("elapsed time that this row stands for", "ns")
    stack: i64 = column(
        "id of the awaits, from the coroutine of the task inwards, see python.frame"
    )
    waits_for: text | None = column("type of what the innermost one awaits")
    looks: u32 = column("how often tasks were looked at")
    tasks: u64 = column(
        "tasks that were seen to wait here, added up over the looks; divided by `looks`, the tasks "
        "that wait here on average"
    )
    soon: u64 = column("waits that were looked at again some 10 ms later")
    soon_ended: u64 = column("of those, waits that had ended by then")
    soon_ns: i64 = column("the time between, added up over these waits", "ns")
    later: u64 = column("waits that were looked at again half a second later")
    later_ended: u64 = column("of those, waits that had ended by then")
    later_ns: i64 = column("the time between, added up over these waits", "ns")


ROWS = (StackSample, Thread, Sampling, LoopHold, EventLoop, LockWait, FatalSignal, Task, TaskWait)
