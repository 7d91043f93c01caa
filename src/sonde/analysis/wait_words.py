"""What an idle thread waits for, in words: told by the functions of Python's library it is in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sonde.analysis.code_names import PYTHON, find_owner, name_module
from sonde.session.held_lock import THREAD, HeldLock

# Of the functions at the inner end of a stack, the outermost that is known tells most: a queue is
# made of conditions, and a condition of locks.
_WORDS = {
    "queue.Queue.get": "an item from a queue", "queue.Queue.put": "room in a queue",
    "queue.Queue.join": "the items of a queue to be done",
    "multiprocessing.queues.Queue.get": "an item from another process",
    "multiprocessing.queues.Queue.put": "room in a queue to another process",
    "multiprocessing.queues.SimpleQueue.get": "an item from another process",
    "multiprocessing.queues.Queue._finalize_join": "another process to take the items of its queue",
    "multiprocessing.pool.ApplyResult.wait": "a result of a process pool",
    "multiprocessing.process.BaseProcess.join": "a process to end",
    "multiprocessing.popen_fork.Popen.wait": "a process to end",
    "multiprocessing.connection.Connection.recv": "data from another process",
    "multiprocessing.connection.Connection._send": "another process to take what it sends",
    "multiprocessing.connection.wait": "data from other processes",
    "subprocess.Popen.wait": "a child process to end",
    "subprocess.Popen.communicate": "a child process to end",
    "concurrent.futures._base.Future.result": "the result of a future",
    "concurrent.futures._base.wait": "futures", "concurrent.futures._base.as_completed": "futures",
    "concurrent.futures.thread._worker": "work for a thread pool",
    "concurrent.futures.process._process_worker": "work for a process pool",
    "threading.Thread.join": "a thread to end",
    "threading.Thread._wait_for_tstate_lock": "a thread to end",
    "threading.Event.wait": "an event", "threading.Barrier.wait": "a barrier",
    "threading.Semaphore.acquire": "a semaphore", "threading.Condition.wait": "a condition",
    "threading._RLock.acquire": "a lock",
    "selectors.EpollSelector.select": "input (no socket or timer is ready)",
    "selectors.PollSelector.select": "input (no socket or timer is ready)",
    "selectors.SelectSelector.select": "input (no socket or timer is ready)",
    "socket.SocketIO.readinto": "data from a socket", "socket.create_connection": "a connection",
    "socket.socket.accept": "a connection", "socket.getaddrinfo": "the address of a host",
    "ssl.SSLSocket.read": "data from a socket", "ssl.SSLSocket.recv": "data from a socket",
    "ssl.SSLSocket.do_handshake": "a TLS handshake",
    "asyncio.locks.Event.wait": "an event", "asyncio.locks.Lock.acquire": "a lock",
    "asyncio.locks.Condition.wait": "a condition", "asyncio.locks.Semaphore.acquire": "a semaphore",
    "asyncio.queues.Queue.get": "an item from a queue",
    "asyncio.queues.Queue.put": "room in a queue",
    "asyncio.queues.Queue.join": "the items of a queue to be done",
    "asyncio.tasks.sleep": "the end of a sleep", "asyncio.tasks.wait_for": "a result, with a limit",
    "asyncio.tasks.wait": "other tasks", "asyncio.taskgroups.TaskGroup.__aexit__": "other tasks",
    "asyncio.streams.StreamReader.read": "data from a stream",
    "asyncio.streams.StreamReader.readline": "data from a stream",
    "asyncio.streams.StreamReader.readuntil": "data from a stream",
    "asyncio.streams.StreamReader.readexactly": "data from a stream",
    "asyncio.streams.StreamWriter.drain": "a stream to be written",
    "asyncio.subprocess.Process.wait": "a child process to end",
}  # fmt: skip


def _drop_classes() -> dict[str, str]:
    """Return the words by module and plain name where they are clear: 3.10 names no class."""
    plain: dict[str, set[str]] = {}
    for key, words in _WORDS.items():
        *module, name = (part for part in key.split(".") if not part.lstrip("_")[:1].isupper())
        plain.setdefault(".".join((*module, name)), set()).add(words)
    return {key: words.pop() for key, words in plain.items() if len(words) == 1}


_PLAIN_WORDS = _drop_classes()

# What the kernel knows of any wait, by its kind in python.stack_sample.
WAITS = {
    "gil": "the GIL", "lock": "a lock", "shared_lock": "a lock that processes share",
    "sleep": "the end of a sleep", "poll": "input", "network": "the network",
    "pipe": "data through a pipe", "child": "a child process",
    "disk": "a disk", "fault": "memory to be loaded", "device": "a device",
}  # fmt: skip

# The same for processes that are not recorded, by the function of the kernel that they sleep in.
_KERNEL = {
    "pipe_write": "room in a pipe", "pipe_read": "data through a pipe",
    "do_wait": "a child process",
    "futex": "a lock", "nanosleep": "the end of a sleep", "poll": "input",
    "tty_read": "input from a terminal", "sk_wait_data": "the network",
    "wait_for_connect": "the network", "accept": "a connection", "unix_stream": "a local socket",
    "flock": "a locked file", "posix_lock": "a locked file",
}  # fmt: skip


def describe_kernel_wait(function: str) -> str:
    """Return what a process waits for that sleeps in this function of the kernel; empty if that is
    not known."""
    return next((words for part, words in _KERNEL.items() if part in function), "")


def describe_wait(frames: Sequence[tuple[str, str]], kind: str | None = None) -> str:
    """Return what a stack of (function, file), the innermost first, waits for; empty if unknown.
    `kind` is what the kernel says: a thread may wait for the GIL in any function."""
    found = WAITS.get(kind or "", "")
    if kind == "gil":
        return found
    for func, file in frames:
        if find_owner(file) != PYTHON:
            break
        name = f"{name_module(file)}.{func}"
        found = _WORDS.get(name) or _PLAIN_WORDS.get(name, found)
    return found


def describe_lock(words: str, wait: HeldLock, names: Mapping[int, str | None], place: str) -> str:
    """Return what a thread waits for, with who holds it; `place` is where the holder took it."""
    if wait.holder is None:
        return f"{words} (who holds it is not known)"
    name = names.get(wait.holder)
    who = f'thread {wait.holder} "{name}"' if name else f"thread {wait.holder}"
    if wait.kind == THREAD:
        return f"{who} to end"
    lock = "a lock" if words in ("", "a lock") else f"{words}, whose lock"
    that = " that" if lock == "a lock" else ""
    who = "it holds itself" if wait.holder == wait.thread else f"{who} holds"
    return f"{lock}{that} {who}" + (f", taken at {place}" if place else "")
