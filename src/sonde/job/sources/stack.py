"""Stacks of all Python threads, sampled without the GIL."""

from __future__ import annotations

import errno
import os

from sonde import _core
from sonde.errors import Unavailable
from sonde.job.source_context import SourceContext, has_gil
from sonde.job.sources import _python_objects
from sonde.job.sources._machine_file import open_machine_code
from sonde.job.sources._node_file import open_nodes
from sonde.job.sources._task_waits import TaskWaits
from sonde.session.files import NODES
from sonde.tables.stack import (
    EventLoop,
    FatalSignal,
    LockWait,
    LoopHold,
    Sampling,
    StackSample,
    Task,
    TaskWait,
    Thread,
)

ON = True
NEEDS = ()
_NO_CRASH_STACKS = (
    "a fatal signal leaves no native stacks: they need the collector, and that is off"
)


class Source:
    """Runs the sampler in the native thread, and reads for it what only Python knows."""

    def __init__(self, context: SourceContext) -> None:
        self._context = context
        self._writers = tuple(
            context.writer(row)
            for row in (StackSample, Thread, Sampling, LoopHold, EventLoop, LockWait)
        )
        self._fatal = context.writer(FatalSignal)
        self._objects = _python_objects.Objects(context, context.writer(Task))
        self._task_waits = TaskWaits(context.writer(TaskWait))
        self._sampler: _core.Sampler | None = None
        self._is_refusal_told = False
        self._lost: list[str] = []  # signals that the program handles by now

    def start(self) -> None:
        slow = bool(self._context.session.values["stack.slow"])
        if slow:
            self._context.detail = "slow, through the GIL, because stack.slow is set"
        elif _is_forbidden(bool(self._context.session.values["collector"])):
            slow = True
            self._context.detail = "slow, through the GIL: a seccomp filter may forbid the fast one"
        try:
            self._begin(slow)
        except OSError as error:
            if slow:
                raise
            # We do not know this Python, or the kernel does not let a process read itself this way.
            self._context.detail = f"slow, through the GIL: {error}"
            self._begin(True)

    def _begin(self, slow: bool) -> None:
        if slow and not has_gil():
            why = (self._context.detail or "").partition(": ")[2] or "stack.slow is set"
            raise Unavailable(f"without a GIL there is no slow way to read stacks, and {why}")
        session = self._context.session
        self._sampler = _core.Sampler(
            self._writers,
            session.text,
            open_nodes(os.path.join(session.folder, NODES), int(session.values["stack.bytes"])),
            session.page,
            os.fsencode(session.folder),
            self._context.guard(self._inspect),
            slow,
        )
        self._sampler.start(self._interval_ns(), self._context.since_ns)
        # Without a GIL, the frames of coroutines may change while we look at them.
        if session.values["stack.tasks"] and has_gil():
            self._sampler.see_tasks()
        if session.values["stack.native"]:
            self._see_native(slow)
        if session.values["stack.fatal"] and not slow:
            self._watch_faults()
            if session.values["collector"]:
                self._sampler.see_crash()
            else:
                self._add_detail(_NO_CRASH_STACKS)
        elif session.values["stack.fatal"]:
            self._add_detail("a fatal signal leaves no last stacks")

    def _watch_faults(self) -> None:
        """Have all threads sampled before a fault ends the program."""
        session = self._context.session
        own = _core.fatal_catch(self._fatal, session.text, session.page)
        if own:
            self._add_detail(
                f"the program handles {own} of the signals of faults itself, which leave no last "
                "stacks then"
            )

    def _see_native(self, slow: bool) -> None:
        """Have native frames added, for which the collector starts a process beside this one."""
        why = "stacks are read slowly" if slow else None
        if not self._context.session.values["collector"]:
            why = "they need the collector, and that is off"
        try:
            if why is None and self._sampler is not None:
                self._sampler.see_native(open_machine_code(self._context.session))
        except OSError as error:
            is_taken = error.errno == errno.EBUSY
            why = "the program handles SIGURG itself" if is_taken else str(error)
        if why is not None:
            self._add_detail(f"without native frames: {why}")

    def stop(self) -> None:
        # The sampler holds our `_inspect`, and keeps its files mapped: let go of it.
        _core.fatal_release()
        sampler, self._sampler = self._sampler, None
        if sampler is not None:
            sampler.stop()
            self._task_waits.write()

    def configure(self) -> None:
        if self._sampler is not None:
            self._sampler.set_interval(self._interval_ns())

    def _interval_ns(self) -> int:
        return round(float(self._context.session.values["stack.every"]) * 1e9)

    def _inspect(self, wants: int) -> None:
        if self._sampler is not None:
            self._objects.answer(self._sampler, wants)
        if self._sampler is not None and wants & _python_objects.TASKS:
            self._task_waits.look(self._sampler)
        if self._sampler is not None and wants & _python_objects.REPORT:
            self._report(self._sampler.refusal(), _core.fatal_lost())

    def _report(self, refusal: int, lost: list[str]) -> None:
        """Say what cannot be seen, or not any more."""
        if refusal and not self._is_refusal_told:
            self._is_refusal_told = True
            self._report_refusal(refusal)
        new = [name for name in lost if name not in self._lost]
        self._lost += new
        if new:
            self._add_detail(
                f"the program has a handler of its own for {', '.join(new)} by now: there are last "
                "stacks only if that passes the signal on"
            )
            self._context.report(self._context.detail)

    def _report_refusal(self, error: int) -> None:
        """Say that waits have no kind here: those called `other` may be of any."""
        why = os.strerror(error)
        if error in (errno.EACCES, errno.EPERM):
            why = "it has dropped rights, or hides its memory"
        self._add_detail(f"what threads wait for is not known (/proc/self/task/*/syscall: {why})")
        self._context.report(self._context.detail)

    def _add_detail(self, text: str) -> None:
        self._context.detail = f"{self._context.detail}; {text}" if self._context.detail else text


def _is_forbidden(may_clone: bool) -> bool:
    """Return whether a filter of system calls would end this process when it reads its memory."""
    return _core.has_filter() and not _core.may_read_memory(may_clone)
