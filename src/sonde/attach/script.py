"""Have a process of Python 3.14 or later run a script: a second door, if it cannot be traced.

Such a Python has a place in its memory for the name of a script, which its main thread runs at its
next safe point; `sys.remote_exec` writes there. That function speaks to Pythons of its own version
only, so the request is written here."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass

from sonde.attach import layouts, preflight
from sonde.attach.preflight import CannotAttach, TracingRefused
from sonde.attach.procfs import ProcessFiles
from sonde.attach.symbols import Libraries, Library, Replaced

OLDEST = (3, 14)
_STOP_BIT = 1 << 5  # in eval_breaker: look for what else there is to do
_MOST_INTERPRETERS = 1000


@dataclass(frozen=True)
class ScriptPlan:
    """What is needed to have a process run a script."""

    process: ProcessFiles
    python: Library
    version: tuple[int, int]
    fits: bool  # this package can be loaded there
    refusal: TracingRefused  # why there is no visitor


def plan(pid: int, root: str, refusal: TracingRefused, proc: str = "/proc") -> ScriptPlan:
    """Check the process and find what is needed; raise `refusal` if its Python takes no scripts."""
    process = ProcessFiles(pid, proc)
    with preflight.explained(process, proc):
        preflight.check_process(process, process.read_status(), root, proc)
        return plan_checked(process, refusal)


def plan_checked(process: ProcessFiles, refusal: TracingRefused) -> ScriptPlan:
    """Return the same for a process that has been checked."""
    try:
        python = preflight.require_python(process, Libraries(process))
    except Replaced:
        raise refusal from None
    if preflight.read_version(python) < OLDEST:
        raise refusal
    return ScriptPlan(process, python, *preflight.check_version(process, python), refusal)


class ScriptRequest:
    """A script that the main thread of a process is asked to run; to be withdrawn in the end."""

    def __init__(self, plan: ScriptPlan, path: str) -> None:
        """Ask for it; raise why the process cannot be traced if it takes no scripts either."""
        self._plan = plan
        try:
            self._memory = os.open(f"{plan.process.folder}/mem", os.O_RDWR | os.O_CLOEXEC)
        except PermissionError:
            raise plan.refusal from None
        try:
            self._ask(os.fsencode(path) + b"\0")
        except BaseException:
            os.close(self._memory)
            raise

    def withdraw(self) -> None:
        """Take the request back if it was not seen."""
        try:
            self._write(self._pending, struct.pack("<i", 0))
        except OSError:
            pass  # the process has ended
        os.close(self._memory)

    def _ask(self, path: bytes) -> None:
        symbol = self._plan.python.elf.find_symbols(["_PyRuntime"]).get("_PyRuntime")
        if symbol is None:
            raise self._plan.refusal
        runtime = self._plan.python.bias + symbol.address
        at = layouts.read_table(self._plan.version, runtime, self._read)
        if at is None:
            raise self._plan.refusal
        interpreter = self._find_main(runtime, at)
        enabled = struct.unpack("<i", self._read(interpreter + at["debugger.enabled"], 4))[0]
        state = self._read_word(interpreter + at["interpreter.threads_main"])
        if not enabled or not state or len(path) > at["debugger.script_path_size"]:
            raise self._plan.refusal
        request = state + at["debugger.support"]
        self._pending = request + at["debugger.pending_call"]
        if struct.unpack("<i", self._read(self._pending, 4))[0]:
            raise CannotAttach(
                f"process {self._plan.process.pid} has another script to run first; try again"
            )
        self._write(request + at["debugger.script_path"], path)
        self._write(self._pending, struct.pack("<i", 1))
        # What others set there between the two calls is lost, as with sys.remote_exec. The script
        # itself lets Python see the signals that came.
        breaker = state + at["debugger.eval_breaker"]
        self._write(breaker, struct.pack("<Q", self._read_word(breaker) | _STOP_BIT))

    def _find_main(self, runtime: int, at: dict[str, int]) -> int:
        """Return the main interpreter, the last of the list: new ones are put in front."""
        here = self._read_word(runtime + at["runtime.interpreters_head"])
        for _ in range(_MOST_INTERPRETERS):
            after = self._read_word(here + at["interpreter.next"])
            if not after:
                return here
            here = after
        raise self._plan.refusal

    def _read(self, address: int, size: int) -> bytes:
        data = os.pread(self._memory, size, address)
        if len(data) < size:
            raise ProcessLookupError
        return data

    def _read_word(self, address: int) -> int:
        return int.from_bytes(self._read(address, 8), "little")

    def _write(self, address: int, data: bytes) -> None:
        os.pwrite(self._memory, data, address)
