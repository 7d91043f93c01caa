"""The stacks of a process with the functions of C and C++ between and below those of Python.

One thread after the other is stopped for as long as it takes to copy its registers, its stack and
the places of its Python frames; it is followed through the copy after it was let go. So the process
as a whole never stands still, and big libraries may be read at leisure."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import NamedTuple

from sonde import _core
from sonde.attach import preflight
from sonde.attach.native_names import NativeFrame, is_entry, is_eval
from sonde.attach.outside import FrameWalk, OutsideReader
from sonde.attach.procfs import ProcessFiles
from sonde.attach.unwinder import ThreadMemory, Unwinder, read_registers
from sonde.session.stack_table import StackFrame, ThreadStack, order_threads

_MOST_STACK = 8 << 20  # bytes that are copied of one stack
_UNKNOWN_STACK = 1 << 20  # if the mapping is not known in which it lies


class NativeStacks(NamedTuple):
    """What every thread of a process does, in all languages."""

    threads: list[ThreadStack]
    notes: list[str]


class _Copy(NamedTuple):
    tid: int
    memory: ThreadMemory | None
    walk: FrameWalk


def read_stacks(pid: int) -> NativeStacks:
    """Return what every thread of a process is doing now."""
    process, notes = ProcessFiles(pid), list[str]()
    with OutsideReader(pid) as reader, Unwinder(process, reader.memory) as unwinder:
        copier = _Copier(process, reader, notes)
        copies = [copier.copy(tid) for tid in process.list_threads()]
        threads = [one for copy in copies if (one := _merge(copy, reader, unwinder, notes))]
    notes += [f"{path} was replaced: its functions are not known" for path in unwinder.replaced]
    return NativeStacks(order_threads(threads, pid), notes)


# ---- copying -----------------------------------------------------------------------------------


class _Copier:
    """Copies what is needed of threads, one after the other."""

    def __init__(self, process: ProcessFiles, reader: OutsideReader, notes: list[str]) -> None:
        self._process, self._reader, self._notes = process, reader, notes
        self._states, self._mappings = reader.list_threads(), process.list_mappings()

    def copy(self, tid: int) -> _Copy:
        """Return what a thread does now; nothing of it if it has just ended."""
        try:
            if self._is_unstoppable(tid):
                self._notes.append(
                    f"thread {tid} is inside the kernel, where nothing stops it: frames may lack"
                )
                return self._peek(tid)
            return _core.look_at(self._process.pid, tid, lambda data: self._look(tid, data))
        except OSError as error:
            if error.errno in (errno.ESRCH, errno.ENOENT):
                return _Copy(tid, None, FrameWalk([], []))
            if error.errno == errno.EBUSY:
                self._notes.append(f"thread {tid} did not stop in time: it has no native frames")
                return _Copy(tid, None, self._walk(tid))
            raise _explain(self._process) from None

    def _look(self, tid: int, data: bytes) -> _Copy:
        pc, sp, registers = read_registers(data)
        return _Copy(tid, ThreadMemory(pc, sp, registers, self._read_stack(sp)), self._walk(tid))

    def _is_unstoppable(self, tid: int) -> bool:
        """Tell whether a thread waits for a disk or a driver, where no signal reaches it."""
        stat = self._process.read(f"task/{tid}/stat")
        return stat.rpartition(b")")[2].split()[0] == b"D"

    def _peek(self, tid: int) -> _Copy:
        """Copy a thread that cannot run now anyway: the kernel says where it was left."""
        words = self._process.read(f"task/{tid}/syscall").split()
        if len(words) < 3:  # it runs again
            return _Copy(tid, None, self._walk(tid))
        sp, pc = int(words[-2], 16), int(words[-1], 16)
        return _Copy(tid, ThreadMemory(pc, sp, None, self._read_stack(sp)), self._walk(tid))

    def _walk(self, tid: int) -> FrameWalk:
        return self._reader.walk(self._states[tid]) if tid in self._states else FrameWalk([], [])

    def _read_stack(self, sp: int) -> bytes:
        ends = (one.end for one in self._mappings if one.start <= sp < one.end)
        end = next(ends, sp + _UNKNOWN_STACK)
        return self._reader.read_stack(sp, min(end - sp, _MOST_STACK))


def _explain(process: ProcessFiles) -> preflight.CannotAttach:
    pid = process.pid
    tracer = int(process.read_status().get("TracerPid", "0"))
    if tracer:
        return preflight.AlreadyTraced(
            f"process {pid} is being traced by {preflight.name_process(tracer)}; end that first"
        )
    return preflight.Forbidden(f"process {pid} may not be traced: {preflight.explain_refusal()}")


# ---- merging -----------------------------------------------------------------------------------


def _merge(
    copy: _Copy, reader: OutsideReader, unwinder: Unwinder, notes: list[str]
) -> ThreadStack | None:
    """Return the stack of a thread in all languages; None if it ended meanwhile."""
    try:
        one = reader.describe(copy.tid, copy.walk)
    except OSError:
        return None
    if copy.memory is None:
        return one if one.frames else None
    native = unwinder.unwind(copy.memory)
    frames, is_fit = merge_frames(native, one.frames, copy.walk.ends)
    if not is_fit:
        notes.append(
            f"native frames of thread {copy.tid} are known up to {native[-1].name} only: "
            "from there on the code has no tables that say who called it"
        )
    one.frames = frames
    return one


def merge_frames(
    native: Sequence[NativeFrame], python: Sequence[StackFrame], ends: Sequence[int]
) -> tuple[list[StackFrame], bool]:
    """Put Python's frames in the places of the C function that runs them, all the innermost first.

    `ends` says how many frames end with each call of that function. Return also whether the two
    stacks fit: every Python frame has its place."""
    found, done, left = list[StackFrame](), 0, list(ends)
    for frame in native:
        if is_entry(frame.name) and left:
            end = left.pop(0)
            found += python[done:end]
            done = end
        elif not is_eval(frame.name):
            found.append(StackFrame(frame.name, frame.library, 0, 0, is_native=True))
    is_fit = done == len(python)
    return found + list(python[done:]), is_fit
