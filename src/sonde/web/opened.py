"""A recording that the page looks at: opened once, asked by one at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

from sonde.analysis import timeline_sql
from sonde.analysis.window import Window, find_window
from sonde.session import Session
from sonde.store.recording import FrozenRecording, Recording
from sonde.web.stack_pieces import StackSource

TABLES = (
    "python.stack_sample python.stack python.thread python.torch_step python.torch_trace "
    "python.gc_pause python.exception python.trigger event.marker event.span event.counter "
    "event.summary event.open_span system.cpu system.memory system.process system.disk "
    "system.network system.pressure system.gpu sonde.loss sonde.overhead sonde.source "
    "python.sampling python.lock_wait python.torch_oom system.kernel_log"
)
_FRESH_S = 0.5  # tables of a live recording are opened anew after this long


class Opened:
    """The sessions of a target. Times on the page count from `base_ns`: a script has no integers
    that are large enough for nanoseconds since 1970."""

    def __init__(self, target: str, sessions: list[Session], window: Window | None = None) -> None:
        self.target, self.sessions, self.window = target, sessions, window
        first_ns = min(session.start_wall_ns for session in sessions) - 1
        self.base_ns = first_ns if window is None else window.since_ns
        self.recording = Recording(sessions)
        self._lock = threading.Lock()
        self._still: FrozenRecording | None = None
        self._opened_s = 0.0

    @property
    def is_live(self) -> bool:
        """Whether any process still runs."""
        return any(session.find_state() == "running" for session in self.sessions)

    @cached_property
    def stacks(self) -> StackSource:
        """The stacks; to be used while the recording is held."""
        return StackSource(self.recording)

    @contextmanager
    def hold(self) -> Iterator[Recording]:
        """Hand out the recording with its tables open, to one thread at a time."""
        with self._lock:
            now_s = time.monotonic()
            stale = self.is_live and now_s - self._opened_s > _FRESH_S
            if self._still is None or stale:
                self.close()
                self._still, self._opened_s = self.recording.freeze(TABLES), now_s
            yield self._still

    def close(self) -> None:
        """Close the tables."""
        still, self._still = self._still, None
        if still is not None:
            still.close()

    def find_end(self) -> int:
        """Return when the recording, or the window that is asked for, ends: from the base on."""
        if self.window is not None:
            return self.window.until_ns - self.base_ns
        ends = [sealed.end_wall_ns for one in self.sessions if (sealed := one.read_sealed())]
        if len(ends) == len(self.sessions):
            # Nothing comes after that. To look for the last row would mean reading all of a day.
            return max(ends) // 1000 * 1000 + 999 - self.base_ns
        with self.hold() as recording:
            return (
                find_window(recording, None, None, last=timeline_sql.LAST).until_ns - self.base_ns
            )

    def find_window(self, since: int, until: int) -> Window:
        """Return a window whose ends count from the base."""
        return Window(self.base_ns + since, self.base_ns + until)
