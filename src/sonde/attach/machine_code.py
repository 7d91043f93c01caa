"""Answers a job, its sampler and its heap: how to get from a place in machine code to its caller,
and its name.

It runs in the background, beside the job, as long as `stack.native` is on: see machine_code.h.
What it says comes from the unwind tables and symbols of the files that the job has mapped, as libdw
reads them."""

from __future__ import annotations

import ctypes
import os
import select
import sys
import time
from bisect import bisect_right, insort
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import c_bool, c_int64, c_ulong, c_void_p
from typing import Any, NamedTuple

from sonde import _core
from sonde.attach import libdw
from sonde.attach.native_names import has_no_name, is_call, is_eval, shorten_name
from sonde.attach.preflight import explain_refusal
from sonde.attach.procfs import ProcessFiles
from sonde.attach.unwinder import ThreadMemory, Unwinder
from sonde.session import Session, files, ring, texts
from sonde.session.stack_table import GENERATED

_POLL_S = 0.005  # how often it looks for questions
_IDLE_POLL_S = 0.05  # after a while without any; a program that crashes waits for an answer
_BUSY_S = 2.0
_LOOK_S = 1.0  # how often it looks whether the session is still there
_RENEW_S = 1.0  # between two looks at which files are mapped
# As in machine_code.h.
_STACK, _FRAME, _CHAIN, _SAVED, _SIGNAL, _NOWHERE = range(6)
_PLAIN, _CALLS, _EVAL, _UNKNOWN = range(4)
_SAMPLER, _HEAP = range(2)
_KEPT = -(2**31)
_END = 2**64 - 1
_STRIDE, _MOST_STRIDES = 32, 1024
_MOST_FILES = 5  # that a line about functions without names lists
_MOST_ROWS = 512  # of the unwind tables, for one function
_BREG0, _BREGX, _CFA, _DEREF, _PLUS = 0x70, 0x92, 0x9C, 0x06, 0x23  # operations of DWARF
# Numbers of registers in unwind tables: the stack pointer, the frame pointer, the return address.
_REGISTERS = {"x86_64": (7, 6, 16), "aarch64": (31, 29, 30)}


class WayOut(NamedTuple):
    """How to get from a place to its caller; the names are those of machine_code.h."""

    begin: int
    end: int
    base: int
    caller: int = 0
    place: int = _KEPT
    frame: int = _KEPT


class CodeReader(Unwinder):
    """Reads what is known about the machine code of one process."""

    def __init__(self, process: ProcessFiles, memory: int | None) -> None:
        self._registers = _REGISTERS[os.uname().machine]
        super().__init__(process, memory)
        # Code that was made while the process ran: it has no tables.
        self._made = [
            WayOut(one.start, one.end, _CHAIN)
            for one in process.list_mappings()
            if one.is_executable and not one.path
        ]
        self._free = ctypes.CDLL(None).free
        self._free.argtypes = [c_void_p]

    def _set_registers(self, thread: int, _argument: int) -> bool:
        """Give libdw the few registers that are known; they follow each other."""
        one = self._thread
        if one is None or one.registers is None:
            return False
        self._dw.dwfl_thread_state_register_pc(thread, one.pc)
        values = (c_ulong * len(one.registers))(*one.registers)
        first = min(self._registers[:2])
        return bool(self._dw.dwfl_thread_state_registers(thread, first, len(values), values))

    def read_rules(self, pc: int) -> list[WayOut]:
        """Return the rules of the function at a place; none if nothing is mapped there.

        On x86_64 a function has a rule for each register that it saves. If only that of the place
        were told, the sampler would have to ask for each of them in turn."""
        module = self._dw.dwfl_addrmodule(self._dwfl, pc)
        if not module:
            return [one for one in self._made if one.begin <= pc < one.end][:1]
        name, begin, end = self._read_symbol(module, pc)
        if end != _END and is_eval(self.name(pc).name):
            return [WayOut(begin, end, _CHAIN)]  # from there on the frames are Python's
        rules = self._read_function(module, begin, end) if end != _END else []
        if any(one.begin <= pc < one.end for one in rules):
            return rules
        rule = self._read_around(module, pc)
        if rule:
            return [rule._replace(begin=max(rule.begin, begin if name else 0))]
        if name is None:
            begin, end = self._find_bare(module, pc, -_STRIDE), self._find_bare(module, pc, _STRIDE)
        elif end == _END:
            begin, end = pc, pc + 1
        return [WayOut(begin, end, _CHAIN)]

    def _read_function(self, module: int, begin: int, end: int) -> list[WayOut]:
        """Return the rules of a function from its beginning on, as far as there are tables."""
        rules: list[WayOut] = []
        while begin < end and len(rules) < _MOST_ROWS:
            rule = self._read_rule(module, begin)
            if rule is None:
                break
            rules.append(rule._replace(begin=begin, end=min(rule.end, end)))
            begin = rule.end
        return rules

    def _read_around(self, module: int, pc: int) -> WayOut | None:
        """Return the rule of a place, where no function's beginning is known."""
        rule = self._read_rule(module, pc)
        first = rule and self._read_rule(module, rule.begin)
        # libdw counts what ends a function early, and its stack with it, to what comes after that.
        return rule if rule is None or first == rule else rule._replace(begin=pc)

    def _read_rule(self, module: int, pc: int) -> WayOut | None:
        with self._find_frame(module, pc) as (frame, bias):
            return self._read_frame(frame, bias) if frame else None

    def _read_symbol(self, module: int, pc: int) -> tuple[bytes | None, int, int]:
        """Return the name of a function, where it begins, and where it ends if that is known."""
        offset, symbol = c_ulong(), (c_ulong * 3)()
        name = self._dw.dwfl_module_addrinfo(
            module, pc, ctypes.byref(offset), symbol, None, None, None
        )
        begin = pc - offset.value
        moved = self.find_moved(pc) if name is None else None
        if moved is not None:
            return moved.name.encode(), moved.begin, moved.end
        return name, begin, begin + symbol[2] if symbol[2] > offset.value else _END

    @contextmanager
    def _find_frame(self, module: int, pc: int) -> Iterator[tuple[c_void_p | None, int]]:
        """Find the row of the unwind tables for a place, if there is one."""
        bias = c_ulong()
        for name in ("dwfl_module_eh_cfi", "dwfl_module_dwarf_cfi"):
            frame = c_void_p()
            cfi = getattr(self._dw, name)(module, ctypes.byref(bias))
            if cfi and not self._dw.dwarf_cfi_addrframe(cfi, pc - bias.value, ctypes.byref(frame)):
                try:
                    yield frame, bias.value
                finally:
                    self._free(frame)
                return
        yield None, 0

    def _find_bare(self, module: int, pc: int, stride: int) -> int:
        """Return how far code without name and tables goes on, as in kernels written by hand."""
        at = pc
        for _ in range(_MOST_STRIDES):
            with self._find_frame(module, at + stride) as (frame, _bias):
                is_bare = frame is None and self._read_symbol(module, at + stride)[0] is None
            if not is_bare:
                break
            at += stride
        return at if stride < 0 else at + 1

    def _read_frame(self, frame: c_void_p, bias: int) -> WayOut:
        """Return what a row of the tables says; to follow the frame pointers if it says so in a way
        of its own."""
        first, last, is_signal = c_ulong(), c_ulong(), c_bool()
        at = (ctypes.byref(first), ctypes.byref(last), ctypes.byref(is_signal))
        link = self._dw.dwarf_frame_info(frame, *at)
        bounds = first.value + bias, last.value + bias
        if is_signal.value:
            return WayOut(*bounds, _SIGNAL)
        if self._is_undefined(frame, link):
            return WayOut(*bounds, _NOWHERE)
        stack, pointer, _link = self._registers
        ops, count = ctypes.POINTER(libdw.DwarfOp)(), c_ulong()
        self._dw.dwarf_frame_cfa(frame, ctypes.byref(ops), ctypes.byref(count))
        if self._is_saved(ops, count.value):
            held = self._read_register(frame, pointer, from_itself=True)
            place = self._read_register(frame, link)
            if place is not None and held is not None:
                return WayOut(*bounds, _SAVED, c_int64(ops[0].number).value, place, held)
        if count.value != 1 or ops[0].atom != _BREGX or ops[0].number not in (stack, pointer):
            return WayOut(*bounds, _CHAIN)
        base = _STACK if ops[0].number == stack else _FRAME
        caller = c_int64(ops[0].number2).value
        place, held = self._read_register(frame, link), self._read_register(frame, pointer)
        if place is None or held is None:
            return WayOut(*bounds, _CHAIN)
        return WayOut(*bounds, base, caller, place, held)

    def _is_saved(self, ops: Any, count: int) -> bool:
        """Tell whether the caller's stack pointer is in memory, near the frame pointer: so do
        functions that align their stack, for vector registers mostly."""
        return count == 2 and (ops[0].atom, ops[1].atom) == (_BREG0 + self._registers[1], _DEREF)

    def _is_undefined(self, frame: c_void_p, link: int) -> bool:
        """Tell whether the tables say that there is no caller."""
        memory = (libdw.DwarfOp * 3)()
        ops, count = ctypes.POINTER(libdw.DwarfOp)(), c_ulong()
        result = ctypes.byref(ops), ctypes.byref(count)
        failed = self._dw.dwarf_frame_register(frame, link, memory, *result)
        return not failed and count.value == 0 and bool(ops)  # kept as it is: there is no list

    def _read_register(
        self, frame: c_void_p, register: int, *, from_itself: bool = False
    ) -> int | None:
        """Return where a register is saved, counted from the caller's stack pointer, or else from
        its own value; None if the tables say so in a way of their own."""
        memory = (libdw.DwarfOp * 3)()
        ops, count = ctypes.POINTER(libdw.DwarfOp)(), c_ulong()
        result = ctypes.byref(ops), ctypes.byref(count)
        if self._dw.dwarf_frame_register(frame, register, memory, *result):
            return None
        if count.value == 0:
            return _KEPT  # or it is not defined: then nobody needs it
        if ops[0].atom != _CFA or count.value > 2:
            return None
        if from_itself:
            is_near = count.value == 2 and ops[1].atom == _BREG0 + register
            return c_int64(ops[1].number).value if is_near else None
        if count.value == 1:
            return 0
        return c_int64(ops[1].number).value if ops[1].atom == _PLUS else None


def _order_registers(sp: int, fp: int, link: int) -> tuple[int, ...]:
    """Return what the sampler knows in the order of the unwind tables."""
    return (fp, link, sp) if os.uname().machine == "aarch64" else (fp, sp)


class _Answers:
    """Answers the questions of one session."""

    def __init__(self, session: Session) -> None:
        self._process = ProcessFiles(session.pid)
        self._table = ring.map_file(session.path(files.MACHINE_CODE), writable=True)
        self._text = texts.open_text(session.folder)
        self._memory = _open_memory(session.pid)
        self._reader, self._read_s = CodeReader(self._process, self._memory), time.monotonic()
        self._known: list[tuple[int, int]] = []  # begin and end of what has been told, in order
        self.nameless: list[str] = []  # files of which at least one function has no name
        self.is_full = False

    def answer(self) -> bool:
        """Answer the questions that are there; return whether there was one."""
        return any([self._answer(asker) for asker in (_SAMPLER, _HEAP)])

    def _answer(self, asker: int) -> bool:
        asked = _core.machine_take(self._table, asker)
        if asked is None:
            return False
        unknown, pc, sp, fp, link, stack = asked
        memory = ThreadMemory(pc, sp, list(_order_registers(sp, fp, link)), stack)
        for place in (unknown, *self._reader.follow(memory)):
            if not self._is_known(place):
                self._tell(place)
            if place != unknown and is_eval(self._reader.name(place).name):
                break  # what lies outside is Python's
        return True

    def _note_nameless(self, file: str, kind: int) -> None:
        if kind == _PLAIN and file not in self.nameless:
            self.nameless.append(file)

    def _is_known(self, place: int) -> bool:
        at = bisect_right(self._known, (place, _END))
        return at > 0 and place < self._known[at - 1][1]

    def _tell(self, pc: int) -> None:
        """Tell the sampler about the function at a place; nothing if a library may have been
        loaded there a moment ago: it will ask again."""
        rules = self._reader.read_rules(pc)
        if not rules and time.monotonic() - self._read_s > _RENEW_S:
            self._reader.__exit__()
            self._reader, self._read_s = CodeReader(self._process, self._memory), time.monotonic()
            rules = self._reader.read_rules(pc)
        if not rules:
            return
        frame = self._reader.name(pc)
        kind = _EVAL if is_eval(frame.name) else _CALLS if is_call(frame) else _PLAIN
        name = shorten_name(frame.name)
        file = frame.library or GENERATED
        if file == GENERATED:
            name = "<generated code>"
        elif has_no_name(frame):
            name = "<no name>"
            self._note_nameless(os.path.basename(file), kind)
        for rule in rules:
            if not self._is_known(rule.begin):
                insort(self._known, (rule.begin, rule.end))
                told = _core.machine_add(self._table, self._text, *rule, kind, name, file)
                self.is_full = self.is_full or not told


def _open_memory(pid: int) -> int | None:
    """Open the memory of a process; None if only its parents may read it, which is the rule of many
    systems (kernel.yama.ptrace_scope). What the sampler leaves here is almost always enough."""
    try:
        return os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:
        return None


def _answer_all(session: Session) -> None:
    """Answer until the session has ended, or whoever started this."""
    answers = _Answers(session)
    asked_s = looked_s = time.monotonic()
    said = ""
    while True:
        now_s = time.monotonic()
        if now_s - looked_s > _LOOK_S:
            looked_s = now_s
            if not session.is_alive():
                return
            gaps = describe_gaps(answers.nameless, is_full=answers.is_full)
            if gaps != said:
                print(gaps, flush=True)
            said = gaps
        if answers.answer():
            asked_s = now_s
        is_busy = now_s - asked_s < _BUSY_S
        if select.select([0], [], [], _POLL_S if is_busy else _IDLE_POLL_S)[0]:
            return  # nobody holds the other end: the collector has ended


def describe_gaps(nameless: list[str], *, is_full: bool) -> str:
    """Say of which files the functions, or some of them, have no names, and whether others are not
    known at all; an empty text if there is nothing to say."""
    said = []
    if nameless:
        more = len(nameless) - _MOST_FILES
        listed = ", ".join(nameless[:_MOST_FILES]) + (f" and {more} more" if more > 0 else "")
        said.append(f"functions without a name (their files have no symbols for them): {listed}")
    if is_full:
        said.append("there is no room for more functions: samples in others have no native frames")
    return "; ".join(said)


def main() -> None:
    """Run as `machine_code FOLDER` until the session or whoever started this has ended. What the
    user should know is printed, a line at a time."""
    run(_answer_all, Session(sys.argv[1]))


def run(answer: Callable[[Session], None], session: Session) -> None:
    """Answer for a session; if that cannot be, end with a line that says why."""
    try:
        answer(session)
    except libdw.NoUnwinder as error:
        sys.exit(str(error))
    except PermissionError:
        sys.exit(f"the process may not be read: {explain_refusal()}")
    except OSError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
