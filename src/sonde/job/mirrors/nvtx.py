"""NVIDIA Nsight Systems and other NVTX tools: ranges, marks and counters."""

from __future__ import annotations

from functools import partial

from sonde.job.mirrors._handles import HandleTable
from sonde.job.mirrors._order import Nesting
from sonde.job.mirrors._plain import to_float
from sonde.job.source_context import SourceContext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Mirror:
    """Passes events on to NVTX. Our kinds become categories there. Events without a domain go to
    NVTX's default domain, where PyTorch's own ranges are."""

    def __init__(self, _context: SourceContext) -> None:
        import nvtx

        self._find_domain = nvtx.get_domain
        self._nesting = Nesting()
        self._regions = HandleTable(self._make_region)
        self._markers = HandleTable(self._make_marker)
        self._counters = HandleTable(self._make_counter)

    def begin(self, domain: str | None, name: str, kind: str, number: int, _value: object) -> None:
        key = (domain, name, kind)
        self._nesting.begin(number, key, *self._regions[key])

    def end(self, _domain: object, _name: str, _kind: str, number: int, _value: object) -> None:
        self._nesting.end(number)

    def count(self, domain: str | None, name: str, kind: str, _number: int, value: Any) -> None:
        self._counters[domain, name, kind](to_float(value))

    def mark(self, domain: str | None, name: str, _kind: str, _number: int, _value: object) -> None:
        self._markers[domain, name, "marker"]()

    def stop(self) -> None:
        self._nesting.end_all()

    def _make_region(self, domain: str | None, name: str, kind: str) -> tuple[Any, Any, Any]:
        """Return the functions that begin and end a region of this name if it nests, and the one
        that begins it if it may not nest."""
        place = self._find_domain(domain)
        handle = place.get_event_attributes(message=name, category=kind)
        return partial(place.push_range, handle), place.pop_range, partial(_begin, place, handle)

    def _make_marker(self, domain: str | None, name: str, kind: str) -> Callable[[], object]:
        place = self._find_domain(domain)
        return partial(place.mark, place.get_event_attributes(message=name, category=kind))

    def _make_counter(self, domain: str | None, name: str, _kind: str) -> Callable[[Any], object]:
        place = self._find_domain(domain)
        if hasattr(place, "get_counter"):
            counter = place.get_counter(name, float)  # a float holds large and negative numbers
            return counter.sample  # type: ignore[no-any-return]
        # An older nvtx has no counters: use a mark that carries the value.
        return lambda value: place.mark(message=name, category="counter", payload=value)


def _begin(place: Any, handle: Any) -> Any:
    return partial(place.end_range, place.start_range(handle))
