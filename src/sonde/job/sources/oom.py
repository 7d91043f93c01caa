"""The state of the program when a device ran out of memory."""

from __future__ import annotations

import os
import sys
import time
from _thread import get_native_id
from collections import deque
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType

from sonde import _core, words
from sonde.job.notice import print_notice
from sonde.job.source_context import SourceContext
from sonde.job.torch.steps import Step, steps
from sonde.session.torch_records import Oom, OomBlocks, OomSegments, OomStep
from sonde.tables.torch import TorchOom

ON = True
NEEDS = ("torch",)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FILE = "oom-{}.json"
_ATTACH = "_cuda_attach_out_of_memory_observer"
_MAX_FILES = 16  # a program that searches for the largest batch runs out of memory on purpose
_MAX_FRAMES, _MAX_BLOCKS, _LAST_STEPS = 100, 20, 32


class _Relay:
    """The observer given to torch, which can never be removed: it passes calls on to a listener."""

    def __init__(self) -> None:
        self.listener: Callable[..., object] | None = None
        self.is_attached = False

    def __call__(self, device: int, needed: int, total: int, free: int) -> None:
        if self.listener is not None:
            self.listener(device, needed, total, free)


_relay = _Relay()


class Source:
    """Attaches to torch's allocator as soon as the program uses CUDA; before that it is idle."""

    def __init__(self, context: SourceContext) -> None:
        # The session is kept, because the context has none while the recording stops.
        self._context, self._session = context, context.session
        self._emit = context.writer(TorchOom)
        self._number = 0
        self._file: str | None = None  # written for the newest event
        self._newest: Oom | None = None
        self._steps: deque[Step] = deque(maxlen=_LAST_STEPS)
        self._remember = self._steps.append  # a single object, so that it can be unsubscribed
        self._attach = context.guard(self._attach_now)  # likewise: torch's queue holds it

    def start(self) -> None:
        """Have torch call us when CUDA is initialised: asking now would initialise it."""
        torch = sys.modules["torch"]
        call = getattr(sys.modules.get("torch.cuda"), "_lazy_call", None)
        if not hasattr(torch._C, _ATTACH) or call is None:
            self._context.detail = "this torch has no CUDA"
            return
        self._context.detail = None
        call(self._attach)

    def stop(self) -> None:
        _relay.listener = None
        steps.unsubscribe(self._remember)
        queue = getattr(sys.modules.get("torch.cuda"), "_queued_calls", None)
        if isinstance(queue, list):
            queue[:] = [entry for entry in queue if entry[0] is not self._attach]
        if self._session.pid == os.getpid():
            self._check_exit()

    def _attach_now(self) -> None:
        _relay.listener = self._context.guard(self._observe)
        steps.subscribe(self._remember)
        if not _relay.is_attached:
            _relay.is_attached = True
            getattr(sys.modules["torch"]._C, _ATTACH)(_relay)

    # ---- out of memory ---------------------------------------------------------------------------

    def _observe(self, device: int, needed: int, total: int, free: int) -> None:
        """Record the state; runs in the thread that wanted memory, without the allocator's lock.
        Nothing here may allocate memory of the device."""
        stats, segments = _read_allocator(device)
        seen = self._make(f"cuda:{device}").replace(
            needed_bytes=needed, free_bytes=free, total_bytes=total,
            allocated_bytes=stats.get("allocated_bytes.all.current"),
            cached_bytes=stats.get("reserved_bytes.all.current"),
            largest_free_bytes=segments.largest_free_bytes, segments=segments,
            stats={key: one for key, one in stats.items() if ".all." in key or "." not in key},
            stacks=_list_stacks(),
        )  # fmt: skip
        self._keep(seen)

    def _make(self, device: str) -> Oom:
        self._number += 1
        return Oom(
            number=self._number, t_ns=_core.clock_ns(), wall_ns=time.time_ns(), step=steps.number,
            thread=get_native_id(), device=device, last_steps=self._list_steps(),
        )  # fmt: skip

    def _keep(self, seen: Oom) -> None:
        has_file = seen.number <= _MAX_FILES
        self._newest, self._file = seen, self._write(seen) if has_file else None
        self._emit(
            seen.t_ns, seen.step, seen.device, seen.needed_bytes, seen.free_bytes, seen.total_bytes,
            seen.allocated_bytes, seen.cached_bytes, seen.largest_free_bytes, seen.thread,
            seen.number, self._file,
        )  # fmt: skip
        if has_file:
            print_notice(_describe(seen, self._file or self._session.folder))

    def _write(self, seen: Oom) -> str | None:
        path = os.path.join(self._session.folder, FILE.format(seen.number))
        try:
            seen.write(path)
        except OSError as error:  # a full disk: there are still the row and the notice
            self._session.log(f"{path}: {error.strerror}")
            return None
        return path

    def _list_steps(self) -> list[OomStep]:
        return [
            OomStep(step=one.number, t_ns=one.begin_ns, dur_ns=one.end_ns - one.begin_ns)
            for one in self._steps
        ]

    # ---- exit ------------------------------------------------------------------------------------

    def _check_exit(self) -> None:
        """If running out of memory ended the program, add the exception to the last file."""
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        kind = getattr(sys.modules.get("torch.cuda"), "OutOfMemoryError", None)
        if not isinstance(kind, type) or not isinstance(error, kind):
            return
        name, trace = f"{type(error).__name__}: {error}", getattr(error, "__traceback__", None)
        if self._newest is not None and self._file is not None:
            self._write(self._newest.replace(exception=name, traceback=list(_list_trace(trace))))
        elif self._newest is None:  # a device whose allocator has no observer
            seen = self._make("unknown")
            self._keep(seen.replace(exception=name, traceback=list(_list_trace(trace))))


# ---- state ---------------------------------------------------------------------------------------


def _read_allocator(device: int) -> tuple[dict[str, int], OomSegments]:
    """Return the allocator's own numbers and a summary of its memory; change nothing."""
    cuda: Any = sys.modules["torch.cuda"]
    segments = [one for one in cuda.memory_snapshot() if one.get("device") == device]
    return cuda.memory_stats(device), _sum_segments(segments)


def _sum_segments(segments: list[dict[str, Any]]) -> OomSegments:
    blocks = [block for one in segments for block in one.get("blocks", ())]
    free = [block["size"] for block in blocks if block.get("state") == "inactive"]
    used: dict[int, int] = {}
    for block in blocks:
        if str(block.get("state", "")).startswith("active"):
            used[block["size"]] = used.get(block["size"], 0) + 1
    largest = sorted(used.items(), key=lambda item: -item[0] * item[1])[:_MAX_BLOCKS]
    return OomSegments(
        segments=len(segments),
        blocks=len(blocks),
        free_blocks=len(free),
        free_bytes=sum(free),
        largest_free_bytes=max(free, default=0),
        most_used=[OomBlocks(size_bytes=size, blocks=count) for size, count in largest],
    )


def _list_stacks() -> dict[str, list[str]]:
    """Return the stack of every Python thread, innermost frame first."""
    return {str(ident): list(_list_frames(frame)) for ident, frame in sys._current_frames().items()}


def _list_frames(frame: FrameType | None) -> Iterator[str]:
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return
        code = frame.f_code
        yield f"{code.co_name} ({code.co_filename}:{frame.f_lineno})"
        frame = frame.f_back


def _list_trace(trace: TracebackType | None) -> Iterator[str]:
    for _ in range(_MAX_FRAMES):
        if trace is None:
            return
        code = trace.tb_frame.f_code
        yield f"{code.co_name} ({code.co_filename}:{trace.tb_lineno})"
        trace = trace.tb_next


def _describe(seen: Oom, where: str) -> str:
    def show(value: int | None) -> str:
        return "an unknown amount" if value is None else words.show_bytes(value)

    needed, free, total = map(show, (seen.needed_bytes, seen.free_bytes, seen.total_bytes))
    used, cached = show(seen.allocated_bytes), show(seen.cached_bytes)
    return (
        f"out of memory on {seen.device} in step {seen.step}: {needed} needed, {free} of {total}"
        f" free, {used} in use, {cached} kept by torch; see {where}"
    )
