"""OpenTelemetry: regions are spans, markers are events of spans, counters are gauges."""

from __future__ import annotations

import sys
from _thread import _local
from _weakref import ref

from sonde.job.mirrors._handles import HandleTable
from sonde.job.mirrors._plain import clean, to_float
from sonde.job.source_context import SourceContext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_SCOPE = "sonde"  # the instrumentation scope of events that have no domain
_MAX_NAME = 255  # characters in an instrument's name


class _Region:
    """An open span, and the context to return to when it ends."""

    __slots__ = ("before", "context", "ended", "span")

    def __init__(self, span: Any, before: Any) -> None:
        self.span, self.before, self.ended = span, before, False
        self.context: Callable[[], Any] = (
            _nothing  # a weak reference, because the context holds this region
        )


class Mirror:
    """Passes events on to the provider that the program has set, inside the program's own spans.

    A region is the current span of its thread or asyncio task until it ends. OpenTelemetry would
    restore the outer context with a token, which logs an error when a region ends in another
    context than the one it began in. So the outer context is kept here, and restored only where
    nothing else has become current."""

    def __init__(self, _context: SourceContext) -> None:
        from opentelemetry import context, metrics, trace

        self._context, self._trace = context, trace
        self._key = context.create_key("sonde")
        self._open: dict[int, _Region] = {}
        self._tracers = HandleTable(lambda _domain, name, _kind: trace.get_tracer(name))
        self._gauges = HandleTable(lambda domain, name, _kind: _make_gauge(metrics, domain, name))
        self._here = _local()

    def begin(self, domain: str | None, name: str, kind: str, number: int, value: Any) -> None:
        # A span processor may use regions of its own, which would recurse without end.
        if getattr(self._here, "busy", False):
            return
        self._here.busy = True
        try:
            before = self._find_open()
            parent, attributes = value or (0, {})
            around = self._open[parent].context() if parent in self._open else None
            span = self._start(around or before, domain, name, kind, number, attributes)
            region = self._open[number] = _Region(span, before)
            inside = self._context.set_value(self._key, region, before)
            inside = self._trace.set_span_in_context(span, inside)
            region.context = ref(inside)
            self._context.attach(inside)
        finally:
            self._here.busy = False

    def end(self, _domain: object, _name: str, _kind: str, number: int, value: Any) -> None:
        region = self._open.pop(number, None)
        if region is None:
            return
        region.ended = True
        before = self._find_open()
        if before is not self._context.get_current():
            self._context.attach(before)
        if value is not None:
            self._set_error(region.span, value)
        region.span.end()

    def mark(self, domain: str | None, name: str, _kind: str, number: int, value: Any) -> None:
        before = self._find_open()
        span = self._trace.get_current_span(before)
        if span.is_recording():
            scope = {} if value is None else {"sonde.scope": value}
            span.add_event(clean(name), {"sonde.domain": domain or "", **scope})
        else:
            self._start(before, domain, name, "marker", number, {}).end()

    def count(self, domain: str | None, name: str, kind: str, _number: int, value: Any) -> None:
        is_whole = isinstance(value, int) and -(2**63) <= value < 2**63
        self._gauges[domain, name, kind].set(value if is_whole else to_float(value))

    def stop(self) -> None:
        for number in list(self._open):
            self.end(None, "", "", number, None)

    def _start(
        self, parent: Any, domain: str | None, name: str, kind: str, number: int, attributes: Any
    ) -> Any:
        tracer = self._tracers[None, domain or _SCOPE, ""]
        converted = {clean(key): _convert(value) for key, value in attributes.items()}
        converted |= {"sonde.kind": kind, "sonde.id": number}
        return tracer.start_span(clean(name), context=parent, attributes=converted)

    def _set_error(self, span: Any, why: str) -> None:
        """Mark the span as failed. `why` names the exception that ended its region, which is still
        propagating."""
        error = sys.exc_info()[1]
        if error is not None and type(error).__name__ == why:
            span.record_exception(error)
            why = f"{why}: {error}"
        span.set_status(self._trace.StatusCode.ERROR, clean(why))

    def _find_open(self) -> Any:
        """Return the current context, without the regions that have ended elsewhere."""
        context = self._context.get_current()
        while True:
            region = context.get(self._key)
            if region is None or not region.ended or region.context() is not context:
                return context
            context = region.before


def _nothing() -> None:
    return None


def _convert(value: object) -> object:
    """Return an attribute's value in a form that OpenTelemetry accepts."""
    return value if isinstance(value, (bool, int, float)) else clean(str(value))


def _make_gauge(metrics: Any, domain: str | None, name: str) -> Any:
    """Return a gauge. An instrument's name may have only letters, digits and `_.-/`, so the full
    name goes into the description."""
    plain = "".join(char if char.isascii() and (char.isalnum() or char in "_.-/") else "_"
                    for char in name)  # fmt: skip
    if not plain[:1].isalpha():
        plain = "n" + plain
    return metrics.get_meter(domain or _SCOPE).create_gauge(plain[:_MAX_NAME], description=name)
