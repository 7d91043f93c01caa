"""Who holds a GPU's memory, by line, from the history of PyTorch's allocator."""

from __future__ import annotations

import os
import sys

from sonde import _core
from sonde.errors import Unavailable
from sonde.job.source_context import SourceContext
from sonde.job.torch.steps import Step, steps
from sonde.tables.cuda_memory import CudaMemory

ON = False  # each allocation takes longer: torch then notes its stack
NEEDS = ("torch",)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

_EVERY_NS = 60 * 10**9
_REST = 1000  # a pause of this many times what the last look took
_Place = tuple[str, "str | None", "str | None", "int | None", "str | None"]


class Source:
    """Has torch note who allocates, without the trace of all events, and adds up what is alive."""

    def __init__(self, context: SourceContext) -> None:
        self._context, self._rows = context, RowWriter(context)
        self._begin = context.guard(self._begin_now)  # single objects: torch's queue, our list
        self._look = context.guard(self._look_at_step)
        self._is_ours, self._due_ns = False, 0

    def start(self) -> None:
        """Have torch call us when CUDA is initialised: asking now would initialise it."""
        torch: Any = sys.modules["torch"]
        call = getattr(sys.modules.get("torch.cuda"), "_lazy_call", None)
        if getattr(torch.version, "cuda", None) is None or call is None:
            raise Unavailable("this PyTorch was built without CUDA")
        call(self._begin)

    def stop(self) -> None:
        steps.unsubscribe(self._look)
        queue = getattr(sys.modules.get("torch.cuda"), "_queued_calls", None)
        if isinstance(queue, list):
            queue[:] = [entry for entry in queue if entry[0] is not self._begin]
        is_ours, self._is_ours = self._is_ours, False
        if is_ours and not self._context.is_inherited():  # a child has no CUDA
            sys.modules["torch.cuda.memory"]._record_memory_history(enabled=None)

    def publish(self) -> None:
        """Write what is alive now."""
        if "torch.cuda" in sys.modules and sys.modules["torch.cuda"].is_initialized():
            self._write(steps.number)

    def _begin_now(self) -> None:
        torch: Any = sys.modules["torch"]
        if torch._C._cuda_isHistoryEnabled():
            self._context.report("the program records the history itself, which is left as it is")
        else:
            # Only for what is alive, and only Python's frames: the cheapest that torch has.
            torch.cuda.memory._record_memory_history(
                enabled="state", context="state", stacks="python"
            )
            self._is_ours = True
        steps.subscribe(self._look)

    def _look_at_step(self, step: Step) -> None:
        if step.end_ns >= self._due_ns:
            self._write(step.number)

    def _write(self, step: int) -> None:
        begin_ns = _core.clock_ns()
        self._rows.write(begin_ns, step)
        end_ns = _core.clock_ns()
        self._due_ns = end_ns + max(_EVERY_NS, _REST * (end_ns - begin_ns))


class RowWriter:
    """Writes who holds what now."""

    def __init__(self, context: SourceContext) -> None:
        self._emit = context.writer(CudaMemory)

    def write(self, t_ns: int, step: int) -> None:
        torch: Any = sys.modules["torch"]
        folder = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "")
        segments = sys.modules["torch.cuda"].memory_snapshot()
        for place, (held, blocks) in sum_places(segments, folder).items():
            self._emit(t_ns, step, *place, held, blocks)


def sum_places(segments: Iterable[Mapping[str, Any]], folder: str) -> dict[_Place, list[int]]:
    """Return bytes and blocks in use by device and line; `folder` is that of torch."""
    sums: dict[_Place, list[int]] = {}
    for segment in segments:
        for block, size in _list_used(segment):
            place = (f"cuda:{segment['device']}", *_find_place(block.get("frames", ()), folder))
            known = sums.setdefault(place, [0, 0])
            known[0] += size
            known[1] += 1
    return sums


def _list_used(segment: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], int]]:
    for block in segment.get("blocks", ()):
        if str(block.get("state", "")).startswith("active"):
            yield block, int(block["size"])


def _find_place(
    frames: Iterable[Mapping[str, Any]], folder: str
) -> tuple[str | None, str | None, int | None, str | None]:
    """Return the innermost frame that is not torch's, and the innermost one if that is torch's."""
    call = None
    for frame in frames:
        name, file = str(frame["name"]), str(frame["filename"])
        if file.endswith(".py") and not file.startswith(folder):
            return name, file, int(frame["line"]), call
        call = call or name
    return None, None, None, call
