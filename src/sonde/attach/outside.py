"""The stacks of a process that is not recorded, read from outside: nothing in it is touched.

The process runs on meanwhile. Each stack is read until it is twice the same, so that it is one that
really was."""

from __future__ import annotations

import os
import struct
import time
from typing import NamedTuple

from sonde.attach import layouts, line_tables, preflight
from sonde.attach.procfs import ProcessFiles
from sonde.attach.symbols import Libraries, Library, Replaced, find_python
from sonde.session.stack_table import StackFrame, ThreadStack, order_threads

_MOST_FRAMES = 5000
_MOST_THREADS = 20_000
_TRIES = 50
_LONGEST = 1 << 16  # of a name or a line table
_FIRST_SHIM = 3  # owners from this on are frames between C and Python, without code
_Place = tuple[int, int]  # a code object, and where in it


class OutsideStacks(NamedTuple):
    """What every thread of a process does."""

    threads: list[ThreadStack]
    unsure: list[int]  # threads whose stacks never were twice the same


class FrameWalk(NamedTuple):
    """The frames of one thread, the innermost first, before they have names."""

    places: list[_Place]
    ends: list[int]  # for each call of the interpreter's C function: how many frames end with it


class _Gone(ProcessLookupError):
    """What was there a moment ago is not any more."""


class OutsideReader:
    """Reads the stacks of one process, of any supported version of Python."""

    def __init__(self, pid: int, proc: str = "/proc") -> None:
        self._process = ProcessFiles(pid, proc)
        self._codes: dict[int, line_tables.Code] = {}
        try:
            python = self._find_python()
            self.memory = os.open(f"{self._process.folder}/mem", os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, ProcessLookupError):
            raise preflight.NoSuchProcess(f"there is no process {pid}") from None
        except PermissionError:
            preflight.check_user(self._process, self._process.read_status())
            raise preflight.Forbidden(
                f"process {pid} may not be read: {preflight.explain_refusal(proc)}"
            ) from None
        try:
            self._find_layout(python)
        except _Gone:
            os.close(self.memory)
            raise preflight.NoSuchProcess(f"process {pid} has just ended") from None

    def __enter__(self) -> OutsideReader:
        return self

    def __exit__(self, *_error: object) -> None:
        os.close(self.memory)

    def _find_python(self) -> Library:
        pid = self._process.pid
        try:
            python = find_python(self._process, Libraries(self._process))
        except Replaced as error:
            raise preflight.CannotAttach(
                f"{error} was replaced since process {pid} started; restart the process"
            ) from None
        if python is None:
            raise preflight.NotPython(f"process {pid} does not run Python")
        return python

    def _find_layout(self, python: Library) -> None:
        version, found = preflight.read_version(python), None
        symbol = python.elf.find_symbols(["_PyRuntime"]).get("_PyRuntime")
        if symbol is not None and preflight.OLDEST <= version <= preflight.NEWEST:
            self._runtime = python.bias + symbol.address
            found = layouts.find_layout(version, self._runtime, self._read)
        if found is None:
            os.close(self.memory)
            raise preflight.OtherVersion(
                f"process {self._process.pid} is a Python whose memory cannot be read from outside "
                f"({python.path}, {version[0]}.{version[1]})"
            )
        self._at = found

    # ---- memory ----------------------------------------------------------------------------------

    def read_stack(self, address: int, size: int) -> bytes:
        """Return as much of `size` bytes of memory as there is."""
        try:
            return os.pread(self.memory, size, address)
        except (OSError, OverflowError):
            return b""

    def _read(self, address: int, size: int) -> bytes:
        try:
            data = os.pread(self.memory, size, address)
        except (OSError, OverflowError):
            raise _Gone from None
        if len(data) < size:
            raise _Gone
        return data

    def _word(self, address: int) -> int:
        return int(struct.unpack("<Q", self._read(address, 8))[0])

    def _text(self, address: int) -> str:
        head = self._read(address, self._at.compact)
        (length,) = struct.unpack_from("<q", head, self._at.length)
        (state,) = struct.unpack_from("<I", head, self._at.state)
        kind = state >> self._at.kind_bit
        width, is_ascii = kind & 7, kind >> 4 & 1
        if width not in (1, 2, 4) or not 0 <= length <= _LONGEST:
            raise _Gone
        data = self._read(
            address + (self._at.ascii if is_ascii else self._at.compact), width * length
        )
        return data.decode({1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}[width], "replace")

    def _bytes(self, address: int) -> bytes:
        length = self._word(address + self._at.bytes_size)
        if length > _LONGEST * 16:
            raise _Gone
        return self._read(address + self._at.bytes_data, length)

    # ---- threads and frames ----------------------------------------------------------------------

    def read(self) -> OutsideStacks:
        """Return the stacks of all threads, the main one first."""
        found, unsure = [], []
        for tid, state in self.list_threads().items():
            walk, is_sure = self._walk_twice(state)
            try:
                found.append(self.describe(tid, walk))
            except _Gone:
                continue  # this thread has just ended
            if not is_sure:
                unsure.append(tid)
        return OutsideStacks(order_threads(found, self._process.pid), unsure)

    def list_threads(self) -> dict[int, int]:
        """Return the addresses of the states of all threads, by thread id."""
        tasks, found = self._list_tasks(), dict[int, int]()
        for state in self._list_states():
            try:
                found[self._find_tid(state, tasks)] = state
            except _Gone:
                continue
        return found

    def walk(self, state: int) -> FrameWalk:
        """Return the frames of a thread that stands still; of one that ended, none."""
        try:
            return self._walk(state)
        except _Gone:
            return FrameWalk([], [])

    def describe(self, tid: int, walk: FrameWalk) -> ThreadStack:
        """Return the stack of a thread with names; ProcessLookupError if it has just ended."""
        one = ThreadStack(tid, self._find_thread_name(tid), time.monotonic_ns())
        one.idle = self._is_idle(tid)
        one.frames = [frame for place in walk.places if (frame := self._name(*place))]
        return one

    def _find_thread_name(self, tid: int) -> str | None:
        """Return the name that the kernel knows, which Python sets from 3.14 on, and libraries at
        any time; None if it is that of the process."""
        if tid == self._process.pid:
            return "MainThread"
        try:
            name, whole = (self._process.read(f"{at}comm") for at in (f"task/{tid}/", ""))
        except OSError:
            return None
        return None if name == whole else name.decode(errors="replace").strip() or None

    def _list_tasks(self) -> dict[int, int]:
        """Return the numbers of the threads as we see them, by those that the process has for them:
        in a container they are others."""
        tasks = {tid: tid for tid in self._process.list_threads()}
        if self._process.read_link("ns/pid") == os.readlink("/proc/self/ns/pid"):
            return tasks
        for tid in list(tasks):
            status = self._process.read_status(f"task/{tid}/status")
            tasks[int(status.get("NSpid", str(tid)).split()[-1])] = tid
        return tasks

    def _list_states(self) -> list[int]:
        """Return the addresses of the states of all threads of all interpreters."""
        for _ in range(_TRIES):
            try:
                states = list[int]()
                interpreter = self._word(self._runtime + self._at.interpreters_head)
                while interpreter and len(states) < _MOST_THREADS:
                    known = len(states)
                    state = self._word(interpreter + self._at.threads_head)
                    while state and len(states) < _MOST_THREADS:
                        states.append(state)
                        state = self._word(state + self._at.next_thread)
                    if len(states) == known:
                        break  # one without threads is no interpreter
                    interpreter = self._word(interpreter + self._at.next_interpreter)
                return states
            except _Gone:
                continue  # a thread has ended while we looked
        return []

    def _walk_twice(self, state: int) -> tuple[FrameWalk, bool]:
        """Return the frames of a thread that may run on, and whether they were twice the same."""
        before: FrameWalk | None = None
        for _ in range(_TRIES):
            try:
                walk = self._walk(state)
            except _Gone:
                before = None
                continue
            if walk == before:
                return walk, True
            before = walk
        return before or FrameWalk([], []), False

    def _walk(self, state: int) -> FrameWalk:
        at, walk = self._at, FrameWalk([], [])
        frame = self._word(state + at.current_frame)
        if frame and at.cframe_current is not None:
            frame = self._word(frame + at.cframe_current)
        end = max(at.previous, at.executable, at.instr, at.owner or 0, at.copy_number or 0) + 8
        for _ in range(_MOST_FRAMES):
            if not frame:
                break
            data = self._read(frame, end)
            self._add_frame(walk, data)
            (frame,) = struct.unpack_from("<Q", data, at.previous)
        if len(walk.places) > (walk.ends[-1] if walk.ends else 0):
            walk.ends.append(len(walk.places))
        return walk

    def _add_frame(self, walk: FrameWalk, data: bytes) -> None:
        at = self._at
        (code,) = struct.unpack_from("<Q", data, at.executable)
        code &= ~3  # the low bits say who owns it
        is_shim = at.owner is not None and data[at.owner] >= _FIRST_SHIM
        if code and not is_shim:
            walk.places.append((code, self._find_unit(code, data)))
        # Before 3.11 C calls every frame; 3.11 marks those that it calls, and from 3.12 on there is
        # a frame without code below them.
        if is_shim or at.owner is None or (at.is_entry is not None and data[at.is_entry]):
            walk.ends.append(len(walk.places))

    def _find_unit(self, code: int, data: bytes) -> int:
        """Return the number of the instruction that a frame is at."""
        at = self._at
        if at.code_bytes is None:
            return int(struct.unpack_from("<i", data, at.instr)[0])
        first = code + at.code_bytes
        if at.copies is not None and at.copy_number is not None:
            (number,) = struct.unpack_from("<i", data, at.copy_number)
            # The list begins with its length; the first of it are those that all threads share.
            first = self._word(self._word(code + at.copies) + 8 * (number + 1)) if number else first
        return (int(struct.unpack_from("<Q", data, at.instr)[0]) - first) // 2

    def _find_tid(self, state: int, tasks: dict[int, int]) -> int:
        if self._at.native_thread_id is not None:
            own = self._word(state + self._at.native_thread_id)
            if own not in tasks:
                raise _Gone
            return tasks[own]
        # 3.10 knows the address of the C library's own record of the thread, which has the number.
        record = self._read(self._word(state + self._at.thread_id), 1024)
        numbers = struct.unpack("<256i", record)
        return next((tasks[one] for one in numbers if one in tasks), self._process.pid)

    def _is_idle(self, tid: int) -> bool:
        try:
            stat = self._process.read(f"task/{tid}/stat")
        except OSError:
            raise _Gone from None
        return stat.rpartition(b")")[2].split()[0] != b"R"

    def _name(self, code: int, unit: int) -> StackFrame | None:
        try:
            if code not in self._codes:
                at = self._at
                (first,) = struct.unpack("<i", self._read(code + at.first_line, 4))
                self._codes[code] = line_tables.Code(
                    self._text(self._word(code + at.name)),
                    self._text(self._word(code + at.filename)),
                    first,
                    self._bytes(self._word(code + at.linetable)),
                )
        except _Gone:
            return StackFrame("?", "?", 0, 0)
        found = self._codes[code]
        find = line_tables.find_line_310 if self._at.code_bytes is None else line_tables.find_line
        return StackFrame(found.name, found.file, find(found, unit), found.first_line)


def read_stacks(pid: int) -> OutsideStacks:
    """Return what every thread of a process is doing now."""
    with OutsideReader(pid) as reader:
        return reader.read()
