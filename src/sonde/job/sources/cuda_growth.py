"""While a GPU's memory keeps growing: a look for some steps at which lines allocate what stays."""

from __future__ import annotations

import sys

from sonde import _core
from sonde.job.source_context import SourceContext, is_from_signal
from sonde.job.sources.cuda_memory import RowWriter
from sonde.job.torch.steps import Step, steps

ON = True
NEEDS = ("torch",)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_WINDOW_NS = 5 * 10**8  # the least that is in use within each is compared with the one before
_WINDOWS = 8  # in a row, each with more in use than the one before, and in more blocks
_LEAST_BYTES = 32 * 2**20  # by which it has grown in these
_MOST_BLOCKS = 50_000  # to list more takes too long
_LOOK_NS, _LOOK_STEPS = 10**9, 6  # how long a look is, at least
_LONGEST_NS = 30 * 10**9  # but it ends with the first step after this
_PAUSE_NS = 60 * 10**9  # after the first look; then twice as long each time
_REST = 1000  # a pause is at least this many times what the look itself took


class Source:
    """Reads twice a second how much is in use. While it grows, torch notes who allocates."""

    def __init__(self, context: SourceContext) -> None:
        self._context, self._rows = context, RowWriter(context)
        self._at_step = context.guard(self._at_step_now)  # one object, by which it is taken away
        self._look: _AllocationLook | None = None
        self._pause_ns, self._rests_until_ns = _PAUSE_NS, 0
        self._forget(0)

    def start(self) -> None:
        steps.subscribe(self._at_step)

    def stop(self) -> None:
        steps.unsubscribe(self._at_step)
        look, self._look = self._look, None
        if look is not None and not self._context.is_inherited():  # a child has no CUDA
            look.end()

    def _forget(self, due_ns: int) -> None:
        self._least: list[tuple[int, int]] = []  # bytes and blocks in use, of each window
        self._now: tuple[int, int] | None = None
        self._due_ns, self._read_ns = due_ns, 0

    def _at_step_now(self, step: Step) -> None:
        try:
            self._take(step)
        except BaseException:  # the history must not stay on, whatever failed
            look, self._look = self._look, None
            if look is not None:
                look.end()
            raise

    def _take(self, step: Step) -> None:
        if self._look is not None:
            if self._look.is_over(step):
                spent_ns, self._look = self._look.spent_ns, None
                self._rests_until_ns = step.end_ns + max(self._pause_ns, _REST * spent_ns)
                self._pause_ns *= 2
                self._forget(0)
        elif step.end_ns >= max(self._rests_until_ns, self._read_ns):
            self._read(step)

    def _read(self, step: Step) -> None:
        """Take the least of some readings in each window: a step may end while much is in use."""
        self._read_ns = step.end_ns + _WINDOW_NS // 2
        used = _read_use()
        if used is None:
            return
        self._now = used if self._now is None else (
            min(used[0], self._now[0]), min(used[1], self._now[1]))  # fmt: skip
        if step.end_ns < self._due_ns:
            return
        if self._due_ns == 0:
            self._due_ns, self._now = step.end_ns + _WINDOW_NS, None
            return
        if self._least and not (self._now[0] > self._least[-1][0]
                                and self._now[1] > self._least[-1][1]):  # fmt: skip
            self._least.clear()
        self._least.append(self._now)
        self._due_ns, self._now = step.end_ns + _WINDOW_NS, None
        if len(self._least) >= _WINDOWS and self._has_grown():
            self._begin(step)

    def _has_grown(self) -> bool:
        del self._least[:-_WINDOWS]
        first, last = self._least[0], self._least[-1]
        return last[0] - first[0] >= _LEAST_BYTES and last[1] <= _MOST_BLOCKS

    def _begin(self, step: Step) -> None:
        torch: Any = sys.modules["torch"]
        if torch._C._cuda_isHistoryEnabled():  # the program's own, or the source cuda_memory
            self._rests_until_ns = step.end_ns + _PAUSE_NS
            self._forget(0)
        else:
            self._look = _AllocationLook(self._rows, step)
            self._look.begin(step)


class _AllocationLook:
    """Some steps in which torch notes the line of each allocation. What is alive is written at the
    beginning, when no line is known, in the middle and at the end: what is more at the end than it
    was in the middle is what stays."""

    def __init__(self, rows: RowWriter, step: Step) -> None:
        self._rows, self._begin_ns, self._steps = rows, step.end_ns, 0
        self._is_half = False
        self.spent_ns = 0

    def begin(self, step: Step) -> None:
        memory = sys.modules["torch.cuda.memory"]
        memory._record_memory_history(enabled="state", context="state", stacks="python")
        self._write(step)

    def is_over(self, step: Step) -> bool:
        """Return whether this was its last step, after which torch notes nothing any more."""
        self._steps += 1
        passed_ns = step.end_ns - self._begin_ns
        is_long = passed_ns >= _LONGEST_NS
        if is_long or (passed_ns >= _LOOK_NS and self._steps >= _LOOK_STEPS):
            self._write(step)
            self.end()
            return True
        if not self._is_half and passed_ns >= _LOOK_NS // 2 and self._steps >= _LOOK_STEPS // 2:
            self._is_half = True
            self._write(step)
        return False

    def end(self) -> None:
        """Leave it as it was, unless the program has begun to record the history meanwhile."""
        begin_ns = _core.clock_ns()
        memory = sys.modules["torch.cuda.memory"]
        # Ours has a trace of one event; the program's own has many.
        if all(len(trace) < 2 for trace in memory._snapshot()["device_traces"]):
            memory._record_memory_history(enabled=None)
        self.spent_ns += _core.clock_ns() - begin_ns

    def _write(self, step: Step) -> None:
        begin_ns = _core.clock_ns()
        self._rows.write(begin_ns, step.number)
        self.spent_ns += _core.clock_ns() - begin_ns


def _read_use() -> tuple[int, int] | None:
    """Return how many bytes are in use on the current device, and in how many blocks; None if that
    cannot be known."""
    cuda = sys.modules.get("torch.cuda")
    if cuda is None or not cuda.is_initialized():
        return None
    try:
        stats = sys.modules["torch"]._C._cuda_memoryStats(cuda.current_device())
        used, blocks = (stats[name]["all"]["current"] for name in ("allocated_bytes", "allocation"))
    except (AttributeError, KeyError):  # another torch
        return None
    except RuntimeError as error:  # the program uses an allocator that is not torch's
        if is_from_signal(error):
            raise
        return None
    return used, blocks
