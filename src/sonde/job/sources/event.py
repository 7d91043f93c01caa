"""Spans, counters and markers that the program sets itself."""

from __future__ import annotations

import os
from _thread import allocate_lock

from sonde import _core
from sonde.job.event_mirrors import Mirrors
from sonde.job.source_context import SourceContext
from sonde.session.files import EVENT_TOTALS
from sonde.session.ring import create_file
from sonde.tables.event import Attribute, Counter, Marker, Span

ON = True
NEEDS = ()


class Source:
    """Makes `_core`'s regions, counters and markers write to this session."""

    def __init__(self, context: SourceContext) -> None:
        self._context = context
        self._lock, self._is_open = allocate_lock(), False
        self._span, self._counter = context.writer(Span), context.writer(Counter)
        self._marker, self._attribute = context.writer(Marker), context.writer(Attribute)
        self._mirrors = Mirrors(context)

    def start(self) -> None:
        session = self._context.session
        opener = self._context.guard(self._open)
        _core.events_attach(
            self._span, self._counter, self._marker, self._attribute, session.text, session.page,
            lambda: _core.undisturbed(opener),
        )  # fmt: skip
        self.configure()

    def configure(self) -> None:
        self._mirrors.configure()

    def stop(self) -> None:
        self._mirrors.stop()
        _core.events_detach()

    def _open(self) -> None:
        """Create the file of sums and open regions, at the first event."""
        with self._lock:
            if self._is_open:
                return  # another thread had the first event
            if not self._context.may_create_files():
                _core.events_detach()
                return
            path = os.path.join(self._context.session.folder, EVENT_TOTALS)
            if os.path.exists(path):
                os.unlink(path)  # left from before this source was switched off
            fd = create_file(path, _core.TOTALS_BYTES)
            try:
                totals = _core.Map(fd, True)
            finally:
                os.close(fd)
            _core.events_totals(totals)
            self._is_open = True
