"""From a thread's registers and a copy of its stack to the functions that it is in."""

from __future__ import annotations

import ctypes
import os
import struct
from ctypes import c_bool, c_ulong
from typing import Any, NamedTuple

from sonde.attach import libdw
from sonde.attach.elf import NotElf
from sonde.attach.moved_code import MovedPart, find_moved_part
from sonde.attach.native_names import INTERPRETER, NativeFrame, lies_in
from sonde.attach.procfs import ProcessFiles
from sonde.attach.symbols import Libraries, Library, Replaced

_MOST_FRAMES = 4000
_MARKS = (b"$x", b"$d")  # of assemblers, where code or data begins: they name no function
_GO_ON, _STOP = 0, 1  # what the callback of a frame says
# Where the kernel has each register, in the order of the unwind tables.
_KERNEL_ORDER = {
    "x86_64": (10, 12, 11, 5, 13, 14, 4, 19, 9, 8, 7, 6, 3, 2, 1, 0, 16),
    "aarch64": tuple(range(32)),
}
_STACK_POINTER = {"x86_64": 7, "aarch64": 31}  # in that same order
_PROGRAM_COUNTER = {"x86_64": 16, "aarch64": 32}  # in the kernel's


class ThreadMemory(NamedTuple):
    """What a thread was doing at one moment."""

    pc: int
    sp: int
    registers: list[int] | None  # None: only where it is in its code and on its stack is known
    stack: bytes  # from `sp` on


def read_registers(data: bytes) -> tuple[int, int, list[int]]:
    """Return where the thread is in its code and on its stack, and all registers in the order of
    the unwind tables, given the kernel's structure."""
    machine = os.uname().machine
    words = struct.unpack(f"<{len(data) // 8}Q", data)
    registers = [words[at] for at in _KERNEL_ORDER[machine]]
    return words[_PROGRAM_COUNTER[machine]], registers[_STACK_POINTER[machine]], registers


class Unwinder:
    """Unwinds threads of one process, given what was copied of them."""

    def __init__(self, process: ProcessFiles, memory: int | None) -> None:
        """`memory` is the open file of the memory of the process, for what is not on the stack;
        None if it may not be read."""
        self._dw, self._process, self._memory = libdw.load(), process, memory
        self._demangler = libdw.Demangler()
        self._libraries: list[tuple[int, int, Library]] = []
        self._names: dict[int, NativeFrame] = {}
        self._moved: dict[str, MovedPart | None] = {}
        self.replaced: list[str] = []  # files that are others by now: their code is not known
        self._thread: ThreadMemory | None = None
        self._callbacks = self._make_callbacks()
        self._dwfl = self._dw.dwfl_begin(ctypes.byref(self._callbacks[0]))
        self._report()
        self._dw.dwfl_attach_state(
            self._dwfl, None, process.pid, ctypes.byref(self._callbacks[1]), None
        )

    def __enter__(self) -> Unwinder:
        return self

    def __exit__(self, *_error: object) -> None:
        self._dw.dwfl_end(self._dwfl)

    def unwind(self, thread: ThreadMemory) -> list[NativeFrame]:
        """Return the functions of a thread, the innermost first, as far as they can be followed."""
        frames = [self.name(pc) for pc in self.follow(thread)]
        while len(frames) > 1 and not frames[-1].library:
            frames.pop()  # code without tables led astray
        return frames

    def follow(self, thread: ThreadMemory) -> list[int]:
        """Return the places of a thread in its functions, the innermost first."""
        pcs: list[int] = []

        def on_frame(frame: int, _argument: int) -> int:
            pc, is_exact = c_ulong(), c_bool()
            if not self._dw.dwfl_frame_pc(frame, ctypes.byref(pc), ctypes.byref(is_exact)):
                return _STOP
            # A caller is where it goes on after the call, which may be in the next function.
            pcs.append(pc.value - (not is_exact.value))
            return _GO_ON if len(pcs) < _MOST_FRAMES else _STOP

        self._thread = thread
        pid = self._process.pid
        self._dw.dwfl_getthread_frames(self._dwfl, pid, libdw.ON_FRAME(on_frame), None)
        return pcs or [thread.pc]

    # ---- what libdw asks for ---------------------------------------------------------------------

    def _make_callbacks(self) -> tuple[libdw.DwflCallbacks, libdw.DwflThreadCallbacks]:
        def find(name: str) -> int | None:
            return ctypes.cast(getattr(self._dw, name), ctypes.c_void_p).value

        files = libdw.DwflCallbacks(
            find("dwfl_build_id_find_elf"), find("dwfl_standard_find_debuginfo"), None, None
        )
        threads = libdw.DwflThreadCallbacks(
            libdw.NEXT_THREAD(lambda _dwfl, _argument, _thread: 0),
            libdw.GET_THREAD(lambda _dwfl, _tid, _argument, _thread: True),
            libdw.READ_MEMORY(self._read_word),
            libdw.SET_REGISTERS(self._set_registers),
            None,
            None,
        )
        return files, threads

    def _read_word(self, _dwfl: int, address: int, result: Any, _argument: int) -> bool:
        if self._thread is None:
            return False
        at, stack = address - self._thread.sp, self._thread.stack
        data = stack[at : at + 8] if 0 <= at <= len(stack) - 8 else b""
        try:
            if not data and self._memory is not None:
                data = os.pread(self._memory, 8, address)
        except (OSError, OverflowError):
            return False
        if len(data) == 8:
            result[0] = int.from_bytes(data, "little")
        return len(data) == 8

    def _set_registers(self, thread: int, _argument: int) -> bool:
        one, machine = self._thread, os.uname().machine
        if one is None:
            return False
        self._dw.dwfl_thread_state_register_pc(thread, one.pc)
        if one.registers is not None:
            values = (c_ulong * len(one.registers))(*one.registers)
            return bool(self._dw.dwfl_thread_state_registers(thread, 0, len(one.registers), values))
        first = _STACK_POINTER[machine]
        return bool(self._dw.dwfl_thread_state_registers(thread, first, 1, (c_ulong * 1)(one.sp)))

    # ---- files -----------------------------------------------------------------------------------

    def _report(self) -> None:
        """Tell libdw which files lie where."""
        libraries = Libraries(self._process)
        self._dw.dwfl_report_begin(self._dwfl)
        for path in libraries.list_code():
            try:
                library = libraries.open(path)
            except Replaced as error:
                self.replaced.append(str(error))
                continue
            except (OSError, NotElf):
                continue
            if library is not None:
                self._libraries += [(start, end, library) for start, end in library.text]
                self._report_file(path, library.bias)
        if libraries.vdso is not None and self._memory is not None:
            self._report_vdso(self._memory, libraries.vdso.start, libraries.vdso.end)
        self._dw.dwfl_report_end(self._dwfl, None, None)

    def _report_file(self, path: str, bias: int) -> None:
        is_program = path == self._process.read_link("exe")
        seen = f"{self._process.folder}/exe" if is_program else self._process.find_file(path)
        self._dw.dwfl_report_elf(self._dwfl, path.encode(), seen.encode(), -1, bias, True)

    def _report_vdso(self, memory: int, start: int, end: int) -> None:
        """The kernel's own library is in no file, so it is copied to one."""
        try:
            data = os.pread(memory, end - start, start)
        except OSError:
            return
        fd = os.memfd_create("vdso", os.MFD_CLOEXEC)
        os.write(fd, data)
        # libdw closes it, unless it could not use it.
        if not self._dw.dwfl_report_elf(self._dwfl, b"[vdso]", b"[vdso]", fd, start, True):
            os.close(fd)

    def name(self, pc: int) -> NativeFrame:
        """Return the function at a place."""
        if pc not in self._names:
            module = self._dw.dwfl_addrmodule(self._dwfl, pc)
            name = self._dw.dwfl_module_addrname(module, pc) if module else None
            name = None if name in _MARKS else name
            where = next((one for start, end, one in self._libraries if start <= pc < end), None)
            path = where.path if where else ""
            if name:
                text = self._demangler.read(name.partition(b"@")[0])  # without its version
            elif moved := self.find_moved(pc):
                text = moved.name
            elif where:
                text = f"{os.path.basename(path)}+{pc - where.bias:#x}"
            else:
                text = f"{pc:#x}"
            self._names[pc] = NativeFrame(text, path)
        return self._names[pc]

    def find_moved(self, pc: int) -> MovedPart | None:
        """Return the part of a function that lies at a place without a name, by the addresses of
        the process; None if it is not known to be part of another function."""
        for start, end, one in self._libraries:
            if start <= pc < end and lies_in(one.path, INTERPRETER):
                if one.path not in self._moved:
                    self._moved[one.path] = find_moved_part(one)
                part = self._moved[one.path]
                if part is not None and part.begin <= pc - one.bias < part.end:
                    return MovedPart(part.begin + one.bias, part.end + one.bias, part.name)
        return None
