"""NVIDIA Nsight Systems and other NVTX tools: ranges, marks and counters."""

from __future__ import annotations

from functools import partial

from sonde.host import Host
from sonde.mirrors._names import Made
from sonde.mirrors._nesting import Nesting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Mirror:
    """A kind of ours is a category there. What has no domain is in NVTX's default one, where
    PyTorch's own ranges are."""

    def __init__(self, _host: Host) -> None:
        import nvtx

        self._find_domain = nvtx.get_domain
        self._nesting = Nesting()
        self._made = Made(self._make)
        self._counters = Made(self._make_counter)

    def begin(self, domain: str | None, name: str, kind: str, number: int, _value: object) -> None:
        key = (domain, name, kind)
        place, handle = self._made[key]
        nesting = self._nesting
        if nesting.is_loose(key):
            nesting.add_loose(number, key, partial(place.end_range, place.start_range(handle)))
        else:
            nesting.settle()
            place.push_range(handle)
            nesting.add_nested(number, key, place.pop_range)

    def end(self, _domain: object, _name: str, _kind: str, number: int, _value: object) -> None:
        self._nesting.end(number)

    def count(self, domain: str | None, name: str, kind: str, _number: int, value: Any) -> None:
        self._counters[domain, name, kind](value)

    def mark(self, domain: str | None, name: str, _kind: str, _number: int, _value: object) -> None:
        place, handle = self._made[domain, name, "marker"]
        place.mark(handle)

    def stop(self) -> None:
        self._nesting.end_all()

    def _make(self, domain: str | None, name: str, kind: str) -> tuple[Any, Any]:
        place = self._find_domain(domain)
        return place, place.get_event_attributes(message=name, category=kind)

    def _make_counter(self, domain: str | None, name: str, _kind: str) -> Callable[[Any], object]:
        place = self._find_domain(domain)
        if hasattr(place, "get_counter"):
            counter = place.get_counter(name, float)  # whole numbers of any size, and below zero
            return counter.sample  # type: ignore[no-any-return]
        # An older nvtx has none: a mark that carries the value.
        return lambda value: place.mark(message=name, category="counter", payload=float(value))
