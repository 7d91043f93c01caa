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
    TROUBLE,
    Kineto,
    find_anchor,
    find_profiler,
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
    """A capture under way: what was asked, and how far it is."""

    def __init__(self, session: SessionWriter, about: CaptureAbout) -> None:
        self._session, self.about, self.pid = session, about, os.getpid()
        self.id, self.steps, self.deadline_ns = about.id, about.steps, about.deadline_ns
        self.timeout_ns = round(about.timeout_s * 1e9)
        self.duration_ns = round((about.duration_s or 0.0) * 1e9)
        # The step to begin with. With several ranks the tool says which, when it has heard of all.
        self.first: int | None = 0 if about.ranks == 1 else None
        self.bounds: list[tuple[int, int]] = []  # number and beginning of each step
        self.end_ns = _NEVER_NS  # when what is wanted was over
        self.given_up: str | None = None  # why its thread is to end it

    def path(self, suffix: str) -> str:
        return captures.name_file(self._session.folder, self.id, suffix)

    def tell(self, state: str, **more: object) -> bool:
        """Write down what became of it; False if that cannot be."""
        self.about = self.about.replace(state=state, **more)
        try:
            captures.write_about(self._session.folder, self.about)
        except OSError as error:
            self._session.log(f"{self.id} is {state}, but that cannot be written: {error.strerror}")
            return False
        return True

    def is_due(self, now_ns: int) -> bool:
        """Is there something to do that does not wait for a step?"""
        is_timed = self.steps is None and self.first is not None
        has_begun = self.about.begin_ns is not None
        return (is_timed and not has_begun) or now_ns >= min(self.end_ns, self.deadline_ns)


class Source:
    """Looks for captures when the tool rings; between captures nothing of it is in the program."""

    def __init__(self, context: SourceContext) -> None:
        # Kept: the context has none while the recording stops.
        self._context, self._session = context, context.session
        self._capture: ActiveCapture | None = None
        self._seen: set[str] = set()
        self._kineto = Kineto(context.guard(self._displace))
        self._on_step = context.guard(self._step)
        self._wake: LockType | None = None  # released when the timer is to end

    def start(self) -> None:
        """Nothing to do until somebody asks."""

    def stop(self) -> None:
        capture = self._capture
        if capture is None:
            return
        if capture.pid != os.getpid():  # a forked child: it is the parent's
            self._wake = None
            self._set_capture(None)
            self._kineto.forget()
            steps.unsubscribe(self._on_step)
        elif self._is_ours() and capture.end_ns <= _core.clock_ns():
            self._finish(capture)
        else:
            self._fail("the recording ended meanwhile")

    def configure(self) -> None:
        """In the main thread, when somebody rings: take up what is asked for."""
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
            capture.tell(FAILED, why=f"{self._capture.id} is under way in this process")
            return
        try:
            find_profiler()
        except Unavailable as error:
            capture.tell(FAILED, why=str(error))
            return
        capture.tell(WAITING, step=steps.number)
        self._set_capture(capture)
        if capture.steps is not None:
            steps.subscribe(self._on_step)
        self._wake = _start_timer(capture, self._context.guard(self._ring))

    def _set_capture(self, capture: ActiveCapture | None) -> None:
        self._capture = capture
        steps.whole = capture is not None  # its operators are to find their modules

    def _ring(self) -> None:
        """In the timer's thread: have the main one look, at its next safe point."""
        if self._capture is not None:
            _core.control_ask(self._session.page)

    def _go_on(self, capture: ActiveCapture) -> None:
        """In the main thread: do what is due, or was said by the tool."""
        if capture.first is None:
            capture.first = _read_first(capture)
        now_ns = _core.clock_ns()
        is_late, is_stopped = now_ns >= capture.deadline_ns, os.path.exists(capture.path(STOP))
        if is_in_backward():
            return
        if is_stopped:
            self._fail("it was cancelled")
        elif self._kineto.is_on:
            is_over = now_ns >= capture.end_ns and self._kineto.is_settled()
            if self._is_ours() and (is_over or is_late):
                self._finish(capture)
        elif is_late:
            self._fail(_say_late(capture))
        elif capture.steps is None and capture.first is not None:
            self._begin(capture)

    def _is_ours(self) -> bool:
        """Is the profiler on in this very thread?"""
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
            self._fail(_say_late(capture))
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
        # A device is behind its program: kernels of the last step may not have run yet. Until they
        # have, more steps are recorded than are wanted; readers leave them out.
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
        except TROUBLE as error:
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
        is_told = capture.tell(
            RECORDING, begin_ns=begin_ns, anchors=[anchor], start_ns=begin_ns - before_ns,
            thread=get_native_id(), device=self._kineto.device,
            torch=str(getattr(sys.modules.get("torch"), "__version__", "")),
        )  # fmt: skip
        if not is_told:
            self._fail("its folder cannot be written to")

    def _finish(self, capture: ActiveCapture) -> None:
        _core.undisturbed(lambda: self._stop_profiler(capture))

    def _stop_profiler(self, capture: ActiveCapture) -> None:
        begin_ns, anchor = _core.clock_ns(), find_anchor()
        capture.about.anchors = [*(capture.about.anchors or []), anchor]
        if capture.steps is not None and capture.end_ns == _NEVER_NS:
            came = max(0, len(capture.bounds) - 1)
            capture.about.why = f"the time was up after {came} of {capture.steps} steps"
        try:
            self._kineto.end()
            stopped_ns = _core.clock_ns()
            capture.tell(WRITING, end_ns=min(capture.end_ns, begin_ns), bounds=capture.bounds)
            # Torch holds the GIL for this, whichever thread it is in: so it is done at once.
            self._kineto.save(capture.path(_HIDDEN))
            os.rename(capture.path(_HIDDEN), capture.path(RAW))
        except TROUBLE as error:
            self._fail(f"the trace was not written: {getattr(error, 'strerror', None) or error}")
            return
        self._leave()
        capture.tell(
            PACKING, stop_ns=stopped_ns - begin_ns, save_ns=_core.clock_ns() - stopped_ns,
            file=os.path.basename(capture.path(RAW)), bytes=os.path.getsize(capture.path(RAW)),
        )  # fmt: skip
        start_new_thread(self._context.guard(_pack), (capture,))

    # ---- ends ------------------------------------------------------------------------------------

    def _displace(self) -> None:
        """The program starts a profiler of its own: ours goes, and says so."""
        self._fail("the program started its own torch.profiler meanwhile")

    def _fail(self, why: str) -> None:
        capture = self._capture
        if capture is None:
            return
        if self._kineto.is_on and not self._is_ours():
            capture.given_up = why  # only its own thread can end it, at its next step
            return
        if self._kineto.is_on:
            try:
                _core.undisturbed(self._kineto.end)
            except TROUBLE as error:
                why = f"{why}; torch's profiler did not stop: {error}"
        self._kineto.drop()
        self._leave()
        # Before the word: on a full disk there would be no room for it.
        for suffix in (_HIDDEN, _HIDDEN * 2, RAW):  # torch, too, writes beside the place first
            _remove(capture.path(suffix))
        capture.tell(FAILED, why=why)

    def _leave(self) -> None:
        """Take out all that was put into the program."""
        self._set_capture(None)
        steps.unsubscribe(self._on_step)
        wake, self._wake = self._wake, None
        if wake is not None:
            wake.release()


# ---- threads that live as long as a capture ------------------------------------------------------


def _start_timer(capture: ActiveCapture, ring: Callable[[], object]) -> LockType:
    """Have `ring` called when something is due; it ends when what is returned is released."""
    wake = allocate_lock()
    wake.acquire()

    def wait() -> None:
        while not wake.acquire(timeout=_TICK_S):
            if capture.is_due(_core.clock_ns()):
                ring()

    start_new_thread(wait, ())
    return wake


def _pack(capture: ActiveCapture) -> None:
    """Compress the trace; where that cannot be, it stays as it is."""
    import zlib  # which lets others have the GIL meanwhile

    raw, hidden = capture.path(RAW), capture.path(PACKED + _HIDDEN)
    begin_ns, packer = _core.clock_ns(), zlib.compressobj(3, wbits=31)
    try:
        os.setpriority(os.PRIO_PROCESS, get_native_id(), 19)  # on Linux: of this thread alone
        with open(raw, "rb") as source, open(hidden, "wb", opener=_open_private) as file:
            while piece := source.read(_PIECE):
                file.write(packer.compress(piece))
            file.write(packer.flush())
        os.rename(hidden, capture.path(PACKED))
    except OSError as error:
        _remove(hidden)
        capture.tell(DONE, why=f"it is not compressed: {error.strerror}")
        return
    path = capture.path(PACKED)
    capture.tell(
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


def _say_late(capture: ActiveCapture) -> str:
    what = "there was no safe point" if capture.steps is None else "no step ended"
    return f"{what} in {capture.about.timeout_s:g} s"


def _read_first(capture: ActiveCapture) -> int | None:
    """The step that all ranks begin with, once the tool has said it."""
    try:
        return CaptureGo.read(capture.path(GO)).first_step
    except (FileNotFoundError, Damaged):
        return None
