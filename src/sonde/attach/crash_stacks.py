"""Unwinds the native stacks that a program has left at a fault.

The program is gone by then. What it has copied of its threads is followed by the unwind tables of
the files that it had mapped, as libdw reads them: crash.stacks becomes native_stacks.json."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from ctypes import c_ulong
from typing import NamedTuple

from sonde.attach import libdw
from sonde.attach.native import merge_frames
from sonde.attach.native_names import NativeFrame
from sonde.attach.native_text import is_ours, pick_frames
from sonde.attach.procfs import Mapping, ProcessFiles, read_mappings
from sonde.attach.unwinder import ThreadMemory, Unwinder
from sonde.errors import Damaged
from sonde.session import Session, crash_file
from sonde.session.files import remove_quietly
from sonde.session.native_stacks import NAME, StacksAtFault, ThreadAtFault
from sonde.session.stack_table import GENERATED, StackFrame

_RETURNS = ("__restore_rt", "__kernel_rt_sigreturn", "__kernel_sigreturn")  # from a handler
_FORBIDDEN = "the program forbids core dumps of itself (PR_SET_DUMPABLE): no stack was copied"
_LINK = 30  # of aarch64: where the innermost function returns to


class _Registers(NamedTuple):
    """Registers of which only some are known: `values` from number `first` on."""

    first: int
    values: list[int]


class _EndedProcess(ProcessFiles):
    """The files of a process that is gone, as its mappings named them."""

    def __init__(self, pid: int, maps: bytes) -> None:
        super().__init__(pid)
        self._maps = maps

    def list_mappings(self) -> list[Mapping]:
        """Return what was mapped at the fault."""
        return read_mappings(self._maps)

    def read_link(self, _name: str) -> str:
        """Return nothing: its links are gone, and its program is in the mappings."""
        return ""

    def find_file(self, path: str) -> str:
        """Return the same path: whoever unwinds was started by the program."""
        return path


class CrashUnwinder(Unwinder):
    """Unwinds threads of a process that is gone."""

    def __init__(self, process: ProcessFiles) -> None:
        super().__init__(process, None)
        self._code = [(one.start, one.end) for one in process.list_mappings() if one.is_executable]
        self._known = _Registers(0, [])

    def read(self, one: crash_file.CrashThread) -> list[NativeFrame]:
        """Return the functions of a thread, the innermost first; those of a handler that has passed
        the fault on are left out."""
        pc, sp, stack = one.pc, one.sp, one.stack
        self._known = _Registers(one.first, list(one.registers))
        if not any(start <= pc < end for start, end in self._code):
            # It has called what is no function: its caller is where the fault came from.
            pc, used = self._find_caller(one)
            sp, stack = sp + used, stack[used:]
            if used:
                self._known.values[self._find_stack_pointer() - one.first] = sp
        frames = self.unwind(ThreadMemory(pc, sp, None, stack))
        handlers = [at for at, frame in enumerate(frames) if frame.name in _RETURNS]
        return frames[handlers[-1] + 1 :] if handlers and one.how == crash_file.FAULT else frames

    def _find_caller(self, one: crash_file.CrashThread) -> tuple[int, int]:
        """Return the place after the call, and how many bytes it has put on the stack."""
        if os.uname().machine == "x86_64":
            return int.from_bytes(one.stack[:8], "little") - 1, 8
        at = _LINK - one.first
        return (one.registers[at] - 4 if 0 <= at < len(one.registers) else one.pc), 0

    @staticmethod
    def _find_stack_pointer() -> int:
        return 7 if os.uname().machine == "x86_64" else 31

    def _set_registers(self, thread: int, _argument: int) -> bool:
        if self._thread is None:
            return False
        self._dw.dwfl_thread_state_register_pc(thread, self._thread.pc)
        first, values = self._known
        array = (c_ulong * len(values))(*values)
        return bool(self._dw.dwfl_thread_state_registers(thread, first, len(values), array))


def unwind(session: Session, found: crash_file.CrashFile) -> StacksAtFault:
    """Return the native stacks of all threads of a program that is gone."""
    notes, threads = list[str](), list[ThreadAtFault]()
    if found.gap == crash_file.NO_ROOM:
        notes.append(f"there was room for the native stacks of {len(found.threads)} threads only")
    unwinder = CrashUnwinder(_EndedProcess(session.pid, found.maps))
    with unwinder:
        for one in found.threads:
            frames, is_fit = _place_python(unwinder.read(one), one)
            if is_ours(frames):
                continue
            if not is_fit:
                notes.append(
                    f"native frames of thread {one.tid} are known up to {_name_last(frames)} only"
                )
            packed = list(_pack(pick_frames(frames)))
            waits = one.how == crash_file.WAITS
            threads.append(
                ThreadAtFault(thread=one.tid, waits=waits, depth=one.depth, frames=packed)
            )
        notes += [f"{path} was replaced: its functions are not known" for path in unwinder.replaced]
    return StacksAtFault(t_ns=found.t_ns, notes=notes, threads=threads)


def _place_python(
    native: list[NativeFrame], one: crash_file.CrashThread
) -> tuple[list[StackFrame], bool]:
    """Put a frame without name in the place of each of Python's."""
    python = [StackFrame("", "", 1, 0)] * one.depth
    made = NativeFrame("<generated code>", GENERATED)
    ends = one.ends if not one.depth or one.ends[-1:] == [one.depth] else [*one.ends, one.depth]
    return merge_frames([frame if frame.library else made for frame in native], python, ends)


def _name_last(frames: list[StackFrame]) -> str:
    return next((frame.func for frame in reversed(frames) if frame.is_native), "nothing")


def _pack(frames: list[StackFrame]) -> Iterator[tuple[str, str, int]]:
    """Yield native frames as they are, and one for those of Python that follow each other."""
    python = 0
    for frame in frames:
        if frame.is_native:
            if python:
                yield "", "", python
            python = 0
            yield frame.func, frame.file, 0
        else:
            python += 1
    if python:
        yield "", "", python


def main() -> None:
    """Run as `crash_stacks FOLDER`; what the user should know is printed, a line at a time."""
    session = Session(sys.argv[1])
    path = session.path(crash_file.NAME)
    try:
        found = crash_file.CrashFile(path)
        if found.gap == crash_file.FORBIDDEN:
            sys.exit(_FORBIDDEN)
        stacks = unwind(session, found)
        stacks.write(session.path(NAME))
    except (libdw.NoUnwinder, Damaged) as error:
        sys.exit(str(error))
    except OSError as error:
        sys.exit(f"{error.filename or path}: {error.strerror}")
    finally:
        remove_quietly(path)  # a stack may hold secrets; nobody needs it twice
    print("\n".join(stacks.notes))


if __name__ == "__main__":
    main()
