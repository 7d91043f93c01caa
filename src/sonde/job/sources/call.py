"""Every call of every function: exact counts and times."""

from __future__ import annotations

import os

from sonde import _core, plugins
from sonde.errors import Unavailable
from sonde.job.source_context import SourceContext
from sonde.tables.call import Call, CallPublication

ON = False
NEEDS = ()

EVERY_NS = 10_000_000_000


class Source:
    """Counts and times calls in C; writes rows every 10 s, on request, and at the end."""

    def __init__(self, context: SourceContext) -> None:
        self._context = context
        rows, publications = context.writer(Call), context.writer(CallPublication)
        package = plugins.PACKAGE
        self._tracer = _core.CallTracer(rows, publications, EVERY_NS, os.path.join(package, ""))

    def start(self) -> None:
        try:
            self._tracer.start()
        except RuntimeError as error:
            raise Unavailable(f"calls cannot be counted: {error}") from None
        self._context.detail = self._describe()

    def stop(self) -> None:
        self._report_change()
        self._tracer.stop()

    def publish(self) -> None:
        """Write now what has changed since the last time."""
        self._report_change()
        self._tracer.publish()

    def _report_change(self) -> None:
        """Record that the program has taken our place in a thread, if it has."""
        detail = self._describe()
        if detail != self._context.detail:
            self._context.report(detail)

    def _describe(self) -> str | None:
        left_alone = self._tracer.left_alone
        return (
            f"except in {left_alone} thread(s) with their own profile function"
            if left_alone
            else None
        )
