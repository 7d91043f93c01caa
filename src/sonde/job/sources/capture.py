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
from sonde.session.files import read_checked
from sonde.session.writer import SessionWriter

ON = True
NEEDS = ("torch",)

_PIECE = 2**20
_TICK_S = 0.1
_NEVER_NS = 2**62
_HIDDEN = ".tmp"


class Window:
    """A window under way: what was asked, and how far it is."""

    def __init__(self, session: SessionWriter, about: dict[str, object]) -> None:
        self._session, self.about, self.pid = session, about, os.getpid()
        self.id = str(about["id"])
        self.steps = None if about["steps"] is None else int(str(about["steps"]))
        self.timeout_ns = round(float(str(about["timeout_s"])) * 1e9)
        self.duration_ns = round(float(str(about["duration_s"] or 0)) * 1e9)
        self.deadline_ns = int(str(about["deadline_ns"]))
        # The step to begin with. With several ranks the tool says which, when it has heard of all.
        self.first: int | None = 0 if about["ranks"] == 1 else None
        self.bounds: list[list[int]] = []  # number and beginning of each step
        self.end_ns = _NEVER_NS  # when what is wanted was over
        self.given_up: str | None = None  # why its thread is to end it

    def path(self, suffix: str) -> str:
        return captures.name_file(self._session.folder, self.id, suffix)

    def tell(self, state: str, **more: object) -> bool:
        """Write down what became of it; False if that cannot be."""
        self.about.update(state=state, **more)
        try:
            captures.write_about(self._session.folder, self.about)
        except OSError as error:
            self._session.log(f"{self.id} is {state}, but that cannot be written: {error.strerror}")
            return False
        return True

    def is_due(self, now_ns: int) -> bool:
        """Is there something to do that does not wait for a step?"""
        is_timed = self.steps is None and self.first is not None
        has_begun = "begin_ns" in self.about
        return (is_timed and not has_begun) or now_ns >= min(self.end_ns, self.deadline_ns)


class Source:
    """Looks for windows when the tool rings; between windows nothing of it is in the program."""

    def __init__(self, context: SourceContext) -> None:
        # Kept: the context has none while the recording stops.
        self._context, self._session = context, context.session
        self._window: Window | None = None
        self._seen: set[str] = set()
        self._kineto = Kineto(context.guard(self._displace))
        self._on_step = context.guard(self._step)
        self._wake: LockType | None = None  # released when the timer is to end

    def start(self) -> None:
        """Nothing to do until somebody asks."""

    def stop(self) -> None:
        window = self._window
        if window is None:
            return
        if window.pid != os.getpid():  # a forked child: it is the parent's
            self._wake = None
            self._set_window(None)
            self._kineto.forget()
            steps.unsubscribe(self._on_step)
        elif self._is_ours() and window.end_ns <= _core.clock_ns():
            self._finish(window)
        else:
            self._fail("the recording ended meanwhile")

    def configure(self) -> None:
        """In the main thread, when somebody rings: take up what is asked for."""
        folder = self._session.folder
        for trace_id in captures.list_ids(folder):
            if trace_id not in self._seen:
                self._seen.add(trace_id)
                try:
                    about = captures.read_about(folder, trace_id)
                except Damaged as error:
                    self._session.log(str(error))
                    continue
                if about["state"] == captures.ASKED:
                    self._take(Window(self._session, about))
        if self._window is not None:
            self._go_on(self._window)

    def _take(self, window: Window) -> None:
        if self._window is not None:
            window.tell(FAILED, why=f"{self._window.id} is under way in this process")
            return
        try:
            find_profiler()
        except Unavailable as error:
            window.tell(FAILED, why=str(error))
            return
        window.tell(WAITING, step=steps.number)
        self._set_window(window)
        if window.steps is not None:
            steps.subscribe(self._on_step)
        self._wake = _start_timer(window, self._context.guard(self._ring))

    def _set_window(self, window: Window | None) -> None:
        self._window = window
        steps.whole = window is not None  # its operators are to find their modules

    def _ring(self) -> None:
        """In the timer's thread: have the main one look, at its next safe point."""
        if self._window is not None:
            _core.control_ask(self._session.page)

    def _go_on(self, window: Window) -> None:
        """In the main thread: do what is due, or was said by the tool."""
        if window.first is None:
            window.first = _read_first(window)
        now_ns = _core.clock_ns()
        is_late, is_stopped = now_ns >= window.deadline_ns, os.path.exists(window.path(STOP))
        if is_in_backward():
            return
        if is_stopped:
            self._fail("it was cancelled")
        elif self._kineto.is_on:
            is_over = now_ns >= window.end_ns and self._kineto.is_settled()
            if self._is_ours() and (is_over or is_late):
                self._finish(window)
        elif is_late:
            self._fail(_say_late(window))
        elif window.steps is None and window.first is not None:
            self._begin(window)

    def _is_ours(self) -> bool:
        """Is the profiler on in this very thread?"""
        return self._kineto.is_on and self._kineto.thread == get_ident()

    # ---- at the end of a step, in the thread that trains -----------------------------------------

    def _step(self, step: Step) -> None:
        window = self._window
        if window is None or is_in_backward():
            return
        if self._is_ours():
            self._count(window, step)
        elif self._kineto.is_on or window.first is None or steps.number < window.first:
            return
        elif step.end_ns >= window.deadline_ns:
            self._fail(_say_late(window))
        else:
            self._begin(window)

    def _count(self, window: Window, step: Step) -> None:
        if window.given_up is not None:
            self._fail(window.given_up)
            return
        if window.end_ns == _NEVER_NS:
            window.bounds.append([steps.number, step.end_ns])
            if window.steps is not None and len(window.bounds) > window.steps:
                window.end_ns = step.end_ns
                self._kineto.mark_end()
        # A device is behind its program: kernels of the last step may not have run yet. Until they
        # have, more steps are recorded than are wanted; readers leave them out.
        is_over = window.end_ns <= step.end_ns and self._kineto.is_settled()
        if is_over or step.end_ns >= window.deadline_ns:
            self._finish(window)

    def _begin(self, window: Window) -> None:
        _core.undisturbed(lambda: self._start_profiler(window))

    def _start_profiler(self, window: Window) -> None:
        about, before_ns = window.about, _core.clock_ns()
        anchor = find_anchor()
        try:
            self._kineto.begin(
                shapes=bool(about["shapes"]), memory=bool(about["memory"]),
                stacks=bool(about["stacks"]),
            )  # fmt: skip
        except TROUBLE as error:
            self._fail(f"torch's profiler did not start: {error}")
            return
        except Unavailable as error:
            self._fail(str(error))
            return
        begin_ns = _core.clock_ns()
        window.deadline_ns = begin_ns + window.duration_ns + window.timeout_ns
        if window.steps is None:
            window.end_ns = begin_ns + window.duration_ns
        else:
            window.bounds.append([steps.number, begin_ns])
        is_told = window.tell(
            RECORDING, begin_ns=begin_ns, anchors=[anchor], start_ns=begin_ns - before_ns,
            thread=get_native_id(), device=self._kineto.device,
            torch=str(getattr(sys.modules.get("torch"), "__version__", "")),
        )  # fmt: skip
        if not is_told:
            self._fail("its folder cannot be written to")

    def _finish(self, window: Window) -> None:
        _core.undisturbed(lambda: self._stop_profiler(window))

    def _stop_profiler(self, window: Window) -> None:
        begin_ns, anchor = _core.clock_ns(), find_anchor()
        window.about["anchors"] = [*_list(window.about["anchors"]), anchor]
        if window.steps is not None and window.end_ns == _NEVER_NS:
            came = max(0, len(window.bounds) - 1)
            window.about["why"] = f"the time was up after {came} of {window.steps} steps"
        try:
            self._kineto.end()
            stopped_ns = _core.clock_ns()
            window.tell(WRITING, end_ns=min(window.end_ns, begin_ns), bounds=window.bounds)
            # Torch holds the GIL for this, whichever thread it is in: so it is done at once.
            self._kineto.save(window.path(_HIDDEN))
            os.rename(window.path(_HIDDEN), window.path(RAW))
        except TROUBLE as error:
            self._fail(f"the trace was not written: {getattr(error, 'strerror', None) or error}")
            return
        self._leave()
        window.tell(
            PACKING, stop_ns=stopped_ns - begin_ns, save_ns=_core.clock_ns() - stopped_ns,
            file=os.path.basename(window.path(RAW)), bytes=os.path.getsize(window.path(RAW)),
        )  # fmt: skip
        start_new_thread(self._context.guard(_pack), (window,))

    # ---- ends ------------------------------------------------------------------------------------

    def _displace(self) -> None:
        """The program starts a profiler of its own: ours goes, and says so."""
        self._fail("the program started its own torch.profiler meanwhile")

    def _fail(self, why: str) -> None:
        window = self._window
        if window is None:
            return
        if self._kineto.is_on and not self._is_ours():
            window.given_up = why  # only its own thread can end it, at its next step
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
            _remove(window.path(suffix))
        window.tell(FAILED, why=why)

    def _leave(self) -> None:
        """Take out all that was put into the program."""
        self._set_window(None)
        steps.unsubscribe(self._on_step)
        wake, self._wake = self._wake, None
        if wake is not None:
            wake.release()


# ---- threads that live as long as a window -------------------------------------------------------


def _start_timer(window: Window, ring: Callable[[], object]) -> LockType:
    """Have `ring` called when something is due; it ends when what is returned is released."""
    wake = allocate_lock()
    wake.acquire()

    def wait() -> None:
        while not wake.acquire(timeout=_TICK_S):
            if window.is_due(_core.clock_ns()):
                ring()

    start_new_thread(wait, ())
    return wake


def _pack(window: Window) -> None:
    """Compress the trace; where that cannot be, it stays as it is."""
    import zlib  # which lets others have the GIL meanwhile

    raw, hidden = window.path(RAW), window.path(PACKED + _HIDDEN)
    begin_ns, packer = _core.clock_ns(), zlib.compressobj(3, wbits=31)
    try:
        os.setpriority(os.PRIO_PROCESS, get_native_id(), 19)  # on Linux: of this thread alone
        with open(raw, "rb") as source, open(hidden, "wb", opener=_open_private) as file:
            while piece := source.read(_PIECE):
                file.write(packer.compress(piece))
            file.write(packer.flush())
        os.rename(hidden, window.path(PACKED))
    except OSError as error:
        _remove(hidden)
        window.tell(DONE, why=f"it is not compressed: {error.strerror}")
        return
    path = window.path(PACKED)
    window.tell(
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


def _say_late(window: Window) -> str:
    what = "there was no safe point" if window.steps is None else "no step ended"
    return f"{what} in {window.about['timeout_s']:g} s"


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _read_first(window: Window) -> int | None:
    """The step that all ranks begin with, once the tool has said it."""
    try:
        first = read_checked(window.path(GO)).get("first_step")
    except (OSError, Damaged):
        return None
    return first if isinstance(first, int) else None
