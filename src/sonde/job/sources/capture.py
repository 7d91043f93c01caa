"""A few steps recorded with torch's own profiler, when `sonde capture` asks for them."""

from __future__ import annotations

import os
import sys
from _thread import LockType, allocate_lock, get_ident, get_native_id, start_new_thread
from collections.abc import Callable

from sonde import _core
from sonde.errors import Damaged, Unavailable
from sonde.job.source_context import SourceContext
from sonde.job.torch.kineto_driver import (
    TORCH_ERRORS,
    Kineto,
    find_anchor,
    find_profiler,
    guests,
    is_in_backward,
)
from sonde.job.torch.steps import Step, steps
from sonde.session import captures
from sonde.session.captures import (
    DONE,
    FAILED,
    GO,
    PACKED,
    PACKING,
    RAW,
    RECORDING,
    STOP,
    WAITING,
    WRITING,
)
from sonde.session.torch_records import CaptureAbout, CaptureGo
from sonde.session.writer import SessionWriter

ON = True
NEEDS = ("torch",)

_PIECE = 2**20
_TICK_S = 0.1
_NEVER_NS = 2**62
_HIDDEN = ".tmp"


class ActiveCapture:
    """A capture in progress: what was requested, and how far it has got."""

    def __init__(self, session: SessionWriter, about: CaptureAbout) -> None:
        self._session, self.about, self.pid = session, about, os.getpid()
        self.id, self.steps, self.deadline_ns = about.id, about.steps, about.deadline_ns
        self.timeout_ns = round(about.timeout_s * 1e9)
        self.duration_ns = round((about.duration_s or 0.0) * 1e9)
        # The step to begin with. With several ranks, the tool chooses it when all are waiting.
        self.first: int | None = 0 if about.ranks == 1 else None
        self.bounds: list[tuple[int, int]] = []  # number and start of each step
        self.end_ns = _NEVER_NS  # when the requested steps or time ended
        self.given_up: str | None = None  # why its thread must end it

    def path(self, suffix: str) -> str:
        return captures.name_file(self._session.folder, self.id, suffix)

    def set_state(self, state: str, **more: object) -> bool:
        """Write the new state to the capture's file; return False if that fails."""
        self.about = self.about.replace(state=state, **more)
        try:
            captures.write_about(self._session.folder, self.about)
        except OSError as error:
            self._session.log(f"{self.id} is {state}, but its file cannot be written: {error}")
            return False
        return True

    def is_due(self, now_ns: int) -> bool:
        """Return whether there is something to do that does not wait for a step."""
        is_timed = self.steps is None and self.first is not None
        has_begun = self.about.begin_ns is not None
        return (is_timed and not has_begun) or now_ns >= min(self.end_ns, self.deadline_ns)


class Source:
    """Looks for requests when the tool rings; between captures it has no hooks in the program."""

    def __init__(self, context: SourceContext) -> None:
        # The session is kept, because the context has none while the recording stops.
        self._context, self._session = context, context.session
        self._capture: ActiveCapture | None = None
        self._seen: set[str] = set()
        self._kineto = Kineto(context.guard(self._displace))
        self._on_step = context.guard(self._step)
        self._wake: LockType | None = None  # released to end the timer

    def start(self) -> None:
        """Do nothing until a capture is requested."""

    def stop(self) -> None:
        capture = self._capture
        if capture is None:
            return
        if capture.pid != os.getpid():  # a forked child: the capture is the parent's
            self._wake = None
            self._set_capture(None)
            self._kineto.forget()
            steps.unsubscribe(self._on_step)
        elif self._is_ours() and capture.end_ns <= _core.clock_ns():
            self._finish(capture)
        else:
            self._fail("the recording ended during the capture")

    def configure(self) -> None:
        """Take up requests; runs in the main thread when the tool rings."""
        folder = self._session.folder
        for capture_id in captures.list_ids(folder):
            if capture_id not in self._seen:
                self._seen.add(capture_id)
                try:
                    about = captures.read_about(folder, capture_id)
                except Damaged as error:
                    self._session.log(str(error))
                    continue
                if about.state == captures.ASKED:
                    self._take(ActiveCapture(self._session, about))
        if self._capture is not None:
            self._go_on(self._capture)

    def _take(self, capture: ActiveCapture) -> None:
        if self._capture is not None:
            capture.set_state(FAILED, why=f"{self._capture.id} is in progress in this process")
            return
        for give_way in guests:
            give_way()
        try:
            find_profiler()
        except Unavailable as error:
            capture.set_state(FAILED, why=str(error))
            return
        capture.set_state(WAITING, step=steps.number)
        self._set_capture(capture)
        if capture.steps is not None:
            steps.subscribe(self._on_step)
        self._wake = _start_timer(capture, self._context.guard(self._ring))

    def _set_capture(self, capture: ActiveCapture | None) -> None:
        self._capture = capture
        steps.whole = capture is not None  # so that operators can be matched with modules

    def _ring(self) -> None:
        """Have the main thread check at its next safe point; runs in the timer's thread."""
        if self._capture is not None:
            _core.control_ask(self._session.page)

    def _go_on(self, capture: ActiveCapture) -> None:
        """Do what is due or what the tool asks for; runs in the main thread."""
        if capture.first is None:
            capture.first = _read_first(capture)
        now_ns = _core.clock_ns()
        is_late, is_stopped = now_ns >= capture.deadline_ns, os.path.exists(capture.path(STOP))
        if is_in_backward():
            return
        if is_stopped:
            self._fail("the capture was cancelled")
        elif self._kineto.is_on:
            is_over = now_ns >= capture.end_ns and self._kineto.is_settled()
            if self._is_ours() and (is_over or is_late):
                self._finish(capture)
        elif is_late:
            self._fail(_explain_timeout(capture))
        elif capture.steps is None and capture.first is not None:
            self._begin(capture)

    def _is_ours(self) -> bool:
        """Return whether the profiler is on in the current thread."""
        return self._kineto.is_on and self._kineto.thread == get_ident()

    # ---- at the end of a step, in the thread that trains -----------------------------------------

    def _step(self, step: Step) -> None:
        capture = self._capture
        if capture is None or is_in_backward():
            return
        if self._is_ours():
            self._count(capture, step)
        elif self._kineto.is_on or capture.first is None or steps.number < capture.first:
            return
        elif step.end_ns >= capture.deadline_ns:
            self._fail(_explain_timeout(capture))
        else:
            self._begin(capture)

    def _count(self, capture: ActiveCapture, step: Step) -> None:
        if capture.given_up is not None:
            self._fail(capture.given_up)
            return
        if capture.end_ns == _NEVER_NS:
            capture.bounds.append((steps.number, step.end_ns))
            if capture.steps is not None and len(capture.bounds) > capture.steps:
                capture.end_ns = step.end_ns
                self._kineto.mark_end()
        # A device lags behind its program: kernels of the last step may not have run yet. Until
        # they have, more steps are recorded than requested; readers leave them out.
        is_over = capture.end_ns <= step.end_ns and self._kineto.is_settled()
        if is_over or step.end_ns >= capture.deadline_ns:
            self._finish(capture)

    def _begin(self, capture: ActiveCapture) -> None:
        _core.undisturbed(lambda: self._start_profiler(capture))

    def _start_profiler(self, capture: ActiveCapture) -> None:
        about, before_ns = capture.about, _core.clock_ns()
        anchor = find_anchor()
        try:
            self._kineto.begin(shapes=about.shapes, memory=about.memory, stacks=about.stacks)
        except TORCH_ERRORS as error:
            self._fail(f"torch's profiler did not start: {error}")
            return
        except Unavailable as error:
            self._fail(str(error))
            return
        begin_ns = _core.clock_ns()
        capture.deadline_ns = begin_ns + capture.duration_ns + capture.timeout_ns
        if capture.steps is None:
            capture.end_ns = begin_ns + capture.duration_ns
        else:
            capture.bounds.append((steps.number, begin_ns))
        is_written = capture.set_state(
            RECORDING, begin_ns=begin_ns, anchors=[anchor], start_ns=begin_ns - before_ns,
            thread=get_native_id(), device=self._kineto.device,
            torch=str(getattr(sys.modules.get("torch"), "__version__", "")),
        )  # fmt: skip
        if not is_written:
            self._fail("the folder of captures is not writable")

    def _finish(self, capture: ActiveCapture) -> None:
        _core.undisturbed(lambda: self._stop_profiler(capture))

    def _stop_profiler(self, capture: ActiveCapture) -> None:
        begin_ns, anchor = _core.clock_ns(), find_anchor()
        capture.about.anchors = [*(capture.about.anchors or []), anchor]
        if capture.steps is not None and capture.end_ns == _NEVER_NS:
            count = max(0, len(capture.bounds) - 1)
            capture.about.why = f"the time was up after {count} of {capture.steps} steps"
        try:
            self._kineto.end()
            stopped_ns = _core.clock_ns()
            capture.set_state(WRITING, end_ns=min(capture.end_ns, begin_ns), bounds=capture.bounds)
            # Torch holds the GIL for this in any thread, so another thread would gain nothing.
            self._kineto.save(capture.path(_HIDDEN))
            os.rename(capture.path(_HIDDEN), capture.path(RAW))
        except TORCH_ERRORS as error:
            why = getattr(error, "strerror", None) or error
            self._fail(f"the trace could not be written: {why}")
            return
        self._leave()
        capture.set_state(
            PACKING, stop_ns=stopped_ns - begin_ns, save_ns=_core.clock_ns() - stopped_ns,
            file=os.path.basename(capture.path(RAW)), bytes=os.path.getsize(capture.path(RAW)),
        )  # fmt: skip
        start_new_thread(self._context.guard(_pack), (capture,))

    # ---- failure ---------------------------------------------------------------------------------

    def _displace(self) -> None:
        """End the capture because the program starts a profiler of its own."""
        self._fail("the program started its own torch.profiler during the capture")

    def _fail(self, why: str) -> None:
        capture = self._capture
        if capture is None:
            return
        if self._kineto.is_on and not self._is_ours():
            capture.given_up = why  # only the profiler's own thread can end it, at its next step
            return
        if self._kineto.is_on:
            try:
                _core.undisturbed(self._kineto.end)
            except TORCH_ERRORS as error:
                why = f"{why}; torch's profiler did not stop: {error}"
        self._kineto.drop()
        self._leave()
        # Files are removed first, because on a full disk there is no room for the new state.
        for suffix in (_HIDDEN, _HIDDEN * 2, RAW):  # torch, too, writes to a temporary file first
            _remove(capture.path(suffix))
        capture.set_state(FAILED, why=why)

    def _leave(self) -> None:
        """Remove every hook from the program."""
        self._set_capture(None)
        steps.unsubscribe(self._on_step)
        wake, self._wake = self._wake, None
        if wake is not None:
            wake.release()


# ---- threads that live as long as a capture ------------------------------------------------------


def _start_timer(capture: ActiveCapture, ring: Callable[[], object]) -> LockType:
    """Start a thread that calls `ring` when something is due; releasing the lock ends it."""
    wake = allocate_lock()
    wake.acquire()

    def wait() -> None:
        while not wake.acquire(timeout=_TICK_S):
            if capture.is_due(_core.clock_ns()):
                ring()

    start_new_thread(wait, ())
    return wake


def _pack(capture: ActiveCapture) -> None:
    """Compress the trace; if that fails, leave it uncompressed."""
    import zlib  # it releases the GIL while it works

    raw, hidden = capture.path(RAW), capture.path(PACKED + _HIDDEN)
    begin_ns, packer = _core.clock_ns(), zlib.compressobj(3, wbits=31)
    try:
        os.setpriority(os.PRIO_PROCESS, get_native_id(), 19)  # on Linux: only of this thread
        with open(raw, "rb") as source, open(hidden, "wb", opener=_open_private) as file:
            while piece := source.read(_PIECE):
                file.write(packer.compress(piece))
            file.write(packer.flush())
        os.rename(hidden, capture.path(PACKED))
    except OSError as error:
        _remove(hidden)
        capture.set_state(DONE, why=f"the trace could not be compressed: {error.strerror}")
        return
    path = capture.path(PACKED)
    capture.set_state(
        DONE, file=os.path.basename(path), bytes=os.path.getsize(path),
        pack_ns=_core.clock_ns() - begin_ns,
    )  # fmt: skip
    _remove(raw)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def _explain_timeout(capture: ActiveCapture) -> str:
    what = "there was no safe point" if capture.steps is None else "no step ended"
    return f"{what} in {capture.about.timeout_s:g} s"


def _read_first(capture: ActiveCapture) -> int | None:
    """Return the step that all ranks begin with, or None until the tool has chosen it."""
    try:
        return CaptureGo.read(capture.path(GO)).first_step
    except (FileNotFoundError, Damaged):
        return None
