"""Phases of torch.compile, each of them profiled as a run."""

from __future__ import annotations

import re
import sys
from _thread import get_ident
from collections.abc import Callable

from sonde import _core
from sonde.errors import Unavailable
from sonde.job.profile_run import ProfileSettings, Ticket, begin, end, wait_running
from sonde.job.recorder import recorder
from sonde.job.source_context import SourceContext
from sonde.session.run import CANCELLED
from sonde.tables.torch import CompilePhase

ON = False
NEEDS = ("torch",)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Torch wraps each phase so that a profiler of Meta's can run around it. It asks this class whether
# that profiler is on (`enabled`), and hands it the phase (`profile_compile_time`).
_MODULE, _CLASS, _HOOK = (
    "torch._strobelight.compile_time_profiler", "StrobelightCompileTimeProfiler",
    "profile_compile_time",
)  # fmt: skip
TAG = "torch.compile"
PROFILED, RECURSIVE, FILTERED, CONFLICT, FAILED = (
    "profiled", "recursive", "filtered", "conflict", "failed",
)  # fmt: skip


class _Phase:
    """A phase in progress."""

    __slots__ = ("compile_id", "name", "state", "t_ns", "thread", "ticket")

    def __init__(self, name: str) -> None:
        self.name, self.thread, self.t_ns = name, get_ident(), 0
        self.state = ""  # empty: no row is written for it
        self.compile_id: str | None = None
        self.ticket: Ticket | None = None


class Source:
    """Takes the place of torch's own phase profiler until it is switched off."""

    def __init__(self, context: SourceContext) -> None:
        self._context = context
        self._emit = context.writer(CompilePhase)
        self._inside: set[int] = set()  # threads that are in a profiled phase
        self._on = False
        self._hook = self._run  # a single object, so that it can be recognised later
        self._seam: Any = None
        self._before: tuple[object, object] = (None, None)
        self._enter: Callable[[_Phase], object] = context.guard(self._begin_if_wanted)
        self._write: Callable[..., object] = context.guard(self._emit_row)

    def start(self) -> None:
        self._on = True
        self.configure()
        seam = _find_seam()
        if seam.enabled:
            raise Unavailable("torch's own phase profiler is on; only one of the two can be")
        self._before = (seam.enabled, vars(seam)[_HOOK])
        setattr(seam, _HOOK, self._hook)
        seam.enabled = True  # last, because torch calls us from here on
        self._seam = seam

    def stop(self) -> None:
        self._on = False
        # If somebody has wrapped our hook, it stays in place and only passes phases on.
        if self._seam is not None and vars(self._seam).get(_HOOK) is self._hook:
            self._seam.enabled, original = self._before
            setattr(self._seam, _HOOK, original)
        self._seam = None

    def configure(self) -> None:
        """Apply the settings: which compilations are profiled, how often, and for how long."""
        values = self._context.session.values
        self._settings = ProfileSettings(
            every=float(values["compile.every"]),
            max_duration=float(values["compile.max_duration"]),
            max_frames=int(values["compile.max_frames"]) or None, quiet=True,
        )  # fmt: skip
        pattern = values["compile.frames"]
        self._frames = re.compile(str(pattern)) if pattern else None

    # ---- a phase -------------------------------------------------------------------------------

    def _run(self, function: Callable[..., Any], name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Run a phase for torch."""
        skip = kwargs.get("skip")
        if isinstance(skip, int):
            kwargs["skip"] = skip + 1  # torch leaves this frame, too, out of the stacks it shows
        phase = _Phase(name)
        try:
            self._enter(phase)
            phase.t_ns = _core.clock_ns()
            result = function(*args, **kwargs)
        except BaseException as error:
            self._leave(phase, error)
            raise
        self._leave(phase, None)
        return result

    def _begin_if_wanted(self, phase: _Phase) -> None:
        """Begin profiling a phase, if it is wanted."""
        writing = recorder.session
        if writing is None or not _core.control_get(writing.page)["on"]:
            return
        phase.compile_id = _find_compile_id()
        if phase.thread in self._inside:
            phase.state = RECURSIVE
        elif not self._is_wanted(phase.compile_id):
            phase.state = FILTERED
        else:
            _core.undisturbed(lambda: self._begin(phase))
            if phase.ticket is not None:
                wait_running(self._settings, phase.ticket.run)

    def _is_wanted(self, compile_id: str | None) -> bool:
        if self._frames is None:
            return True
        # A filter also excludes compilations that have no id.
        return compile_id is not None and self._frames.match(compile_id) is not None

    def _begin(self, phase: _Phase) -> None:
        # Locked, because begin() would restart a recording that was stopped a moment ago.
        with recorder.lock:
            if not self._on or recorder.session is None:
                return
            tags = [TAG, f"phase:{phase.name}", f"compile:{recorder.session.id}"]
            if phase.compile_id is not None:
                tags.append(f"frame:{phase.compile_id}")
            begun = begin(self._settings.with_tags(tags), phase.name)
        if isinstance(begun, Ticket):
            self._inside.add(phase.thread)
            phase.ticket, phase.state = begun, PROFILED
        else:
            phase.state = CONFLICT if begun.state == CANCELLED else FAILED

    def _leave(self, phase: _Phase, error: BaseException | None) -> None:
        now_ns = _core.clock_ns()
        if phase.ticket is not None:
            self._inside.discard(phase.thread)
            end(phase.ticket, error, quiet=True)
        if self._on and phase.state:
            self._write(phase, now_ns, error)

    def _emit_row(self, phase: _Phase, now_ns: int, error: BaseException | None) -> None:
        run = None if phase.ticket is None else phase.ticket.run
        if run is not None and run.about.final is not None:
            phase.state = FAILED  # the run was given up before it began
        begin_ns = phase.t_ns or now_ns  # 0 if it was interrupted before it began
        self._emit(
            begin_ns, now_ns - begin_ns, phase.name, phase.compile_id,
            None if run is None else run.id, phase.state,
            None if error is None else type(error).__name__,
        )  # fmt: skip


# ---- torch, as far as it is imported -------------------------------------------------------------


def _find_seam() -> Any:
    seam = getattr(sys.modules.get(_MODULE), _CLASS, None)
    if not isinstance(seam, type) or not {"enabled", _HOOK} <= set(vars(seam)):
        version = getattr(sys.modules.get("torch"), "__version__", "")
        raise Unavailable(f"torch {version} has no hook around the phases of torch.compile")
    return seam


def _find_compile_id() -> str | None:
    """Return the id of the compilation that this thread is in, as torch writes it: 1/0."""
    context = getattr(sys.modules.get("torch._guards"), "CompileContext", None)
    current = getattr(context, "current_compile_id", None)
    found = None if current is None else current()
    return None if found is None else str(found)
