"""Record torch: modules, autograd, optimizers, data loaders and memory, within a budget."""

from __future__ import annotations

import sys
from _thread import get_native_id

from sonde import _core
from sonde.errors import Unavailable
from sonde.job.source_context import SourceContext
from sonde.job.torch.budget import Budget
from sonde.job.torch.gradient_times import GradientTimes, add_up
from sonde.job.torch.loop_facts import DebugFacts, LoaderFacts, OptimizerFacts, Precision, Threads
from sonde.job.torch.loop_hooks import Loaders, Optimizers
from sonde.job.torch.memory import MemoryWriter
from sonde.job.torch.module_calls import ModuleCalls
from sonde.job.torch.module_names import Naming
from sonde.job.torch.old_compiler import leave_out_ours
from sonde.job.torch.seams import (
    ReplacedAttribute,
    find_device,
    find_engine,
    is_tracing,
    observe_nodes,
)
from sonde.job.torch.steps import END, ROOT, steps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sonde.job.torch.budget_levels import StepPlan

# How backward is timed, which is known after the first backward pass.
_BACKWARD = {
    "engine": "backward is timed by autograd's nodes, as the engine runs them",
    "sealed engine": "backward is timed by autograd's nodes, as the engine runs them (sealed slot)",
    "observer": "backward is timed by autograd's nodes, as torch reports them to observers",
    "failed": "no backward times: the sequence numbers of autograd's nodes were not found",
}


def _find_torch() -> Any:
    torch = sys.modules["torch"]
    if not hasattr(torch, "nn") or "torch.optim.optimizer" not in sys.modules:
        raise Unavailable("this torch has no modules, or no optimizers")
    return torch


class TorchRecording:
    """Replaces attributes of torch while it records, and is called at the end of every step."""

    def __init__(
        self,
        context: SourceContext,
        trace: _core.Writer,
        step: _core.Writer,
        module: _core.Writer,
        memory: _core.Writer,
        overhead: _core.Writer,
        loader: _core.Writer,
        worker: _core.Writer,
        threads: _core.Writer,
        optimizer: _core.Writer,
        precision: _core.Writer,
        debug: _core.Writer,
    ) -> None:
        self._context, self._emit, self._emit_overhead = context, trace, overhead
        self._torch = _find_torch()
        self._optimizers = Optimizers(context, steps, OptimizerFacts(optimizer).meet)
        self._loaders = Loaders(context.guard(LoaderFacts(loader, worker).meet))
        self._naming = Naming(module)
        self._memory = MemoryWriter(memory, self._torch, guard=context.guard)
        self._precision, self._facts = Precision(precision), (Threads(threads), DebugFacts(debug))
        text = context.session.text
        self._tracer = self._naming.tracer = _core.TorchTracer(
            trace, text, context.session.page, context.guard(self._naming.name),
            context.guard(_end_by_root), self._torch.is_grad_enabled,
            context.guard(self._read_memory),
        )  # fmt: skip
        self._tracer.read_process(self._memory.core)  # until CUDA is used
        self._step_end = _core.TorchStepEnd(
            context, text, self._tracer, steps, self._optimizers.core, self._memory.core,
            step, trace, context.guard(self._check), context.guard(self._naming.describe),
            context.guard(self._adapt),
        )  # fmt: skip
        self._calls = ModuleCalls(self._torch.nn.Module, context.guard)
        self._engine: ReplacedAttribute | None = None
        self._observes = self._is_reported = False
        self._gradient_times: GradientTimes | None = None  # used if autograd cannot be observed
        self._device: str | None = None  # empty if the device gives no times
        self._budget = Budget(0)

    def start(self) -> None:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        try:
            observe_nodes()
            self._observes = self._step_end.observes = True
        except Unavailable as error:
            self._gradient_times = times = GradientTimes(self._torch)
            self._step_end.gradient_times = self._context.guard(
                lambda *step: self._write_gradient_times(times, *step)
            )
            self._add_detail(f"backward is timed by gradients, which is coarse: {error}")
        self.configure()
        leave_out_ours(self._torch)
        self._tracer.start()
        self._step_end.begin()
        steps.subscribe(self._step_end)
        self._optimizers.start()
        self._loaders.start()
        self._step_end.watch(self._loaders.core)
        self._calls.start()
        engine = find_engine()
        if engine is not None:
            self._engine = ReplacedAttribute(*engine, _core.TorchEngine)

    def stop(self) -> None:
        steps.unsubscribe(self._step_end)
        self._optimizers.stop()
        self._loaders.stop()
        self._calls.stop()
        if self._engine is not None:
            self._engine.give_back()
        self._finish()
        _core.torch_ignore()  # last, because other threads may be ending a step
        if self._gradient_times is not None:
            self._gradient_times.stop()
        self._memory.close()
        self._naming.tracer = None

    def configure(self) -> None:
        """Apply the budget and the other settings of torch."""
        values = self._context.session.values
        limit, depth, every = (values[f"torch.{name}"] for name in ("budget_pct", "depth", "every"))
        self._naming.filter(str(values["torch.modules"]))
        if values["torch.shapes"]:
            from sonde.job.torch.input_shapes import describe_inputs  # few programs need it

            self._tracer.describe(describe_inputs)
        else:
            self._tracer.describe(None)
        self._budget.configure(
            float(limit), int(depth), int(every), has_detail=self._observes or bool(self._device)
        )
        self._steer()

    def _steer(self) -> None:
        """Set what the core records from the next step on."""
        self._step_end.set_plans(*self._budget.steer())
        self._step_end.batch = self._budget.batch
        # Each event makes a busy device wait, so within a budget only one of forward and backward
        # is timed at a time.
        self._step_end.device = (1 if self._budget.limit_pct else 2) if self._device else 0

    def _add_detail(self, detail: str) -> None:
        before = self._context.detail
        self._context.report(f"{before}; {detail}" if before else detail)

    # ---- hooks in torch ------------------------------------------------------------------------

    def _find_device(self) -> None:
        try:
            self._device = find_device()
        except Unavailable as error:
            self._device = ""
            self._add_detail(f"no device times: {error}")
        if self._device is not None:
            self._tracer.read_process(None)
        if self._device:
            self._precision.check(self._naming.autocast)
            self.configure()

    def _report_backward(self) -> None:
        detail = _BACKWARD.get(_core.torch_observed())
        if detail is not None:
            self._is_reported = True
            self._add_detail(detail)

    def _read_memory(self) -> tuple[float, float, float] | None:
        return self._memory.read(self._torch._C._cuda_getDevice() if self._device else None)

    # ---- steps: the rare work; the rest is in _core/torch/step_end.c -----------------------------

    def _check(self) -> None:
        """Check torch's hooks and threads; called after the first step, and now and then."""
        self._calls.meet_again()
        if self._engine is not None:
            self._engine.put_back()
        for facts in self._facts:
            facts.check()
        if self._device:
            self._precision.check(self._naming.autocast)

    def _adapt(
        self, noted: list[tuple[int, int, StepPlan, int]], end_ns: int, rested_ns: int
    ) -> None:
        """Learn from steps that have ended, and choose what to record of the next ones. Before them
        came others, which took `rested_ns` and were not noted: judging all would take too long."""
        if self._device is None:
            self._find_device()
        if self._observes and not self._is_reported:
            self._report_backward()
        budget, level = self._budget, self._budget.level
        if budget.note_all(noted, rested_ns):
            self._emit_overhead(*budget.describe(end_ns))
        if budget.level != level or budget.batch != self._step_end.batch:
            self._steer()

    def _write_gradient_times(
        self, times: GradientTimes, step: int, begins: tuple[int, ...]
    ) -> None:
        """Write the backward pass of a step by gradient times; then hook known models."""
        thread, found = get_native_id(), add_up(times.take(begins))
        for seq, (name, part) in enumerate(found.items()):
            self._emit(
                step, seq, name, "backward", None, None, None, part.total_ns / 1e9, part.begin_ns,
                None, part.own_ns / 1e9, None, thread, name.count("."), 0, False, False, None,
            )  # fmt: skip
        for model, name in self._naming.list_roots():
            times.watch(model, name)

    def _finish(self) -> None:
        """Write what is known of the last step."""
        noted = self._step_end.finish(END)
        self._tracer.stop()
        self._naming.describe()
        self._budget.note_all(noted)
        self._emit_overhead(*self._budget.describe(_core.clock_ns()))


def _end_by_root() -> None:
    """End the step because a model is called again. Do nothing while torch traces the program: what
    we do at the end of a step would become part of the trace."""
    if not is_tracing():
        steps.end(ROOT)
