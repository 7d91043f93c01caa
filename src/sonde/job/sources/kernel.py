"""When a step in a thousand is recorded for the sums of kernels, and what that may cost."""

from __future__ import annotations

import os
import sys
from _thread import get_ident

from sonde import _core, environ
from sonde.errors import Unavailable
from sonde.job.source_context import SourceContext
from sonde.job.torch.kernel_sums import KernelWindow, fold
from sonde.job.torch.kineto_driver import (
    TORCH_ERRORS,
    Kineto,
    find_anchor,
    guests,
    is_cuda_up,
    is_in_backward,
)
from sonde.job.torch.seams import check_header, find_library
from sonde.job.torch.steps import Step, steps
from sonde.tables.kernel import KernelSum
from sonde.tables.overhead import Overhead

ON = False  # the profiler is the program's own tool, and its first use makes all launches dearer
NEEDS = ("torch",)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LASTING = (
    "from the first window on, each launch takes 1 to 2 µs longer until the program ends, as after "
    "any use of torch.profiler; with TEARDOWN_CUPTI=1 at its start (CUDA 12.6 or newer) hardly so"
)
_FIRST_NS = 500_000_000  # what the first window is taken to cost: CUPTI is set up in it
_FIRST_STEPS = 3  # in which programs compile and allocate
_MOST_ROWS = 2000  # of a window; smaller sums become one for each device and kind
_MOST_STEPS = 10  # that the profiler stays on, waiting for the device


class Source:
    """Has torch's profiler on for one step, now and then; never while another one is on.

    A window goes through three steps: one whose modules are recorded whole and that is the measure
    for what the window costs, the one that it is about, and one in which the device finishes."""

    def __init__(self, context: SourceContext) -> None:
        self._context = context
        self._emit, self._emit_overhead = context.writer(KernelSum), context.writer(Overhead)
        self._kineto = Kineto(context.guard(self._give_way))
        self._on_step = context.guard(self._step)
        self._way = context.guard(self._give_way)
        self._usual_ns = 0  # how long the step before the window took; 0: no window is near
        self._about: Step | None = None  # the step that the window is about, once it has ended
        self._anchor = (0, 0)
        self._begin_ns = self._extra_ns = self._steps_on = 0
        self._is_unwanted = False
        self._pid = os.getpid()

    def start(self) -> None:
        torch: Any = sys.modules["torch"]
        reason = check_header(torch)
        if reason:
            raise Unavailable(f"lines of kernels cannot be found: {reason}")
        if not (torch.version.cuda or torch.version.hip):
            self._context.detail = (
                "this PyTorch was built without CUDA: operators alone are added up"
            )
        elif (
            torch.version.cuda
            and environ.read_variables(["TEARDOWN_CUPTI"]).get("TEARDOWN_CUPTI") != "1"
        ):
            self._context.detail = _LASTING
        self._library = find_library(torch, "libtorch_cpu.so")
        self._folder = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "")
        self._since_ns = _core.clock_ns()
        self.configure()
        self._due_ns = self._since_ns + self._spread(_FIRST_NS)
        guests.append(self._way)
        steps.subscribe(self._on_step)

    def stop(self) -> None:
        if self._way in guests:
            guests.remove(self._way)
        if self._usual_ns and self._pid != os.getpid():  # a forked child: it is the parent's window
            self._kineto.forget()
            self._usual_ns, steps.whole = 0, False
        self._give_way()
        if not self._kineto.is_on:  # else its own thread ends it, at its next step
            steps.unsubscribe(self._on_step)

    def configure(self) -> None:
        """Apply the settings."""
        values = self._context.session.values
        self._every = int(values["kernel.every"])
        self._limit_pct = float(values["torch.budget_pct"])
        self._due_step = steps.number + max(self._every, _FIRST_STEPS)

    def _spread(self, cost_ns: int) -> int:
        """Return the time that must pass so that this cost stays within the budget."""
        return round(cost_ns * 100 / self._limit_pct) if self._limit_pct else 0

    # ---- at the end of a step, in the thread that trains ---------------------------------------

    def _step(self, step: Step) -> None:
        if self._kineto.is_on:
            if self._kineto.thread == get_ident() and not is_in_backward():
                self._go_on(step)
        elif self._usual_ns:
            _core.undisturbed(self._begin)
        elif self._is_due(step):
            self._usual_ns, steps.whole = max(1, step.end_ns - step.begin_ns), True
            self._due_step = steps.number + self._every

    def _is_due(self, step: Step) -> bool:
        is_time = steps.number >= self._due_step and step.end_ns >= self._due_ns
        return is_time and step.begin_ns > 0 and not steps.whole  # whole: a capture is under way

    def _begin(self) -> None:
        before_ns = _core.clock_ns()
        try:
            if is_in_backward() or _is_capturing():
                raise Unavailable("not now")
            self._anchor = find_anchor()
            self._kineto.begin(shapes=False, memory=False, stacks=False, events=True)
            _core.op_places_start(self._context.session.text, self._library, self._folder)
        except (*TORCH_ERRORS, Unavailable) as error:
            self._extra_ns = _core.clock_ns() - before_ns
            self._give_way()
            if not isinstance(error, Unavailable):
                self._context.report(f"torch's profiler did not start: {error}")
            return
        self._begin_ns = _core.clock_ns()
        self._extra_ns, self._steps_on = self._begin_ns - before_ns, 0

    def _go_on(self, step: Step) -> None:
        self._steps_on += 1
        # The profiler makes steps longer; the time that it takes to start is counted already.
        begin_ns = self._begin_ns if self._about is None else step.begin_ns
        self._extra_ns += max(0, step.end_ns - begin_ns - self._usual_ns)
        if self._about is None:
            self._about = step
            self._kineto.mark_end()
        is_late = self._steps_on > _MOST_STEPS
        if self._is_unwanted or is_late:
            self._give_way()
            if self._way not in guests:  # the source was stopped meanwhile
                steps.unsubscribe(self._on_step)
        elif self._kineto.device is None or (self._steps_on > 1 and self._kineto.is_settled()):
            _core.undisturbed(self._finish)

    def _finish(self) -> None:
        before_ns, about = _core.clock_ns(), self._about
        assert about is not None
        try:
            self._kineto.end()
            notes = _core.op_places_take(self._library)
            self._write(about, self._kineto.take(), notes)
        except TORCH_ERRORS as error:
            self._context.report(f"torch's profiler did not stop: {error}")
        self._leave(_core.clock_ns() - before_ns + self._extra_ns)

    def _write(self, about: Step, events: list[Any], notes: list[Any]) -> None:
        ahead_ns = self._anchor[0] - self._anchor[1]  # of the wall clock, which Kineto uses
        window = KernelWindow(
            events,
            [(thread, t_ns + ahead_ns, *place) for thread, t_ns, *place in notes],
            sys.modules["torch.autograd"].DeviceType.CPU,
            self._begin_ns + ahead_ns, about.end_ns + ahead_ns,
        )  # fmt: skip
        took_ns = about.end_ns - self._begin_ns
        for key, found in fold(window.add_up(), _MOST_ROWS).items():
            device, kind, name, is_backward, (module, func, file, line) = key
            count, total_ns, own_ns, size = found
            self._emit(
                self._begin_ns, about.number, took_ns, count, total_ns, own_ns, size, line, kind,
                name, device, module, func, file, is_backward,
            )  # fmt: skip

    # ---- the end of a window --------------------------------------------------------------------

    def _give_way(self) -> None:
        """End a window without a result, or ask its thread to."""
        begin_ns = _core.clock_ns()
        if self._kineto.is_on and self._kineto.thread != get_ident():
            self._is_unwanted = True
            return
        if self._kineto.is_on:
            try:
                _core.undisturbed(self._kineto.end)
            finally:
                self._kineto.drop()
                _core.op_places_take(self._library)
        if self._usual_ns:
            self._leave(_core.clock_ns() - begin_ns + self._extra_ns)

    def _leave(self, cost_ns: int) -> None:
        """Wait for the next window, for as long as this one's cost asks."""
        now_ns = _core.clock_ns()
        self._due_ns = now_ns + self._spread(cost_ns)
        passed_ns, self._since_ns = max(1, now_ns - self._since_ns), now_ns
        self._emit_overhead(
            now_ns, steps.number, "kernel", None, None, None, 100 * cost_ns / passed_ns,
            self._limit_pct, 0, f"one step in {self._every}", 0,
        )  # fmt: skip
        self._usual_ns = self._extra_ns = 0
        self._about, self._is_unwanted, steps.whole = None, False, False


def _is_capturing() -> bool:
    """Return whether work is being recorded into a CUDA graph, which a profiler could break."""
    cuda = sys.modules.get("torch.cuda")
    return is_cuda_up() and cuda is not None and bool(cuda.is_current_stream_capturing())
