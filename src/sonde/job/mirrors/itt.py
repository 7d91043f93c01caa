"""Intel VTune and other ITT collectors: tasks, frames, events, counters, markers, pause."""

from __future__ import annotations

from functools import partial

from sonde.errors import Unavailable
from sonde.job.mirrors._handles import HandleTable
from sonde.job.mirrors._order import Nesting
from sonde.job.mirrors._plain import to_float
from sonde.job.source_context import SourceContext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_DOMAIN = "sonde"  # for events that have none, because ITT requires one
_ABSENT = (1, 2)  # collection states: the collector could not be loaded, or there is none
_DOUBLE = 8  # the type of a counter's values
_BIGGEST = 2.0**64 - 2**12  # a float that is less than 2**64
# ITT calls these scopes global, track group, track, task and marker.
_SCOPES = {"global": 1, "process": 2, "thread": 3, "task": 4, "marker": 5}


class Mirror:
    """Passes events on to ITT. Spans and tasks become ITT tasks. An ITT frame has a domain but no
    name, so each name of ours becomes a domain there: `domain.name`."""

    def __init__(self, _context: SourceContext) -> None:
        from pyitt import native  # the C functions: pyitt's wrappers are slower than ours

        self._native, self._static = native, _Static(native.__file__)
        if self._static.state in _ABSENT:
            raise Unavailable("no ITT collector is loaded: run the program under VTune, or name "
                              "one in INTEL_LIBITTNOTIFY64")  # fmt: skip
        self._nesting = Nesting()
        self._domains = HandleTable(lambda _domain, name, _kind: native.Domain(name))
        self._regions = HandleTable(self._make_region)
        self._counters = HandleTable(self._make_counter)
        self._markers = HandleTable(self._make_marker)

    def begin(self, domain: str | None, name: str, kind: str, number: int, _value: object) -> None:
        key = (domain, name, kind)
        self._nesting.begin(number, key, *self._regions[key])

    def end(self, _domain: object, _name: str, _kind: str, number: int, _value: object) -> None:
        self._nesting.end(number)

    def count(self, domain: str | None, name: str, kind: str, _number: int, value: Any) -> None:
        self._counters[domain, name, kind](to_float(value))

    def mark(self, domain: str | None, name: str, kind: str, _number: int, value: Any) -> None:
        self._markers[domain, name, kind](_SCOPES.get(value, _SCOPES["process"]))

    def pause(self, *_event: object) -> None:
        self._native.pause()

    def resume(self, *_event: object) -> None:
        self._native.resume()

    def stop(self) -> None:
        self._nesting.end_all()

    def _make_region(self, domain: str | None, name: str, kind: str) -> tuple[Any, Any, Any]:
        """Return the functions that begin and end a region of this name if it nests, and the one
        that begins it if it may not nest."""
        native = self._native
        if kind == "event":
            return None, None, partial(_begin_event, native.Event(name))
        if kind == "frame":
            place = self._domains[None, f"{domain}.{name}" if domain else name, ""]
            return None, None, partial(_begin_frame, native, place)
        place = self._domains[None, domain or _DOMAIN, ""]
        handle = native.StringHandle(name)
        return (partial(native.task_begin, place, handle), partial(native.task_end, place),
                partial(_begin_task, native, place, handle))  # fmt: skip

    def _make_counter(self, domain: str | None, name: str, _kind: str) -> Callable[[Any], object]:
        set_value = self._static.make_counter(domain or _DOMAIN, name)
        if set_value is None:
            # A counter of pyitt's own takes only unsigned 64-bit integers.
            plain = self._native.Counter(name, self._domains[None, domain or _DOMAIN, ""])
            return lambda value: plain.set(int(min(max(0.0, value), _BIGGEST)))
        return set_value

    def _make_marker(self, domain: str | None, name: str, _kind: str) -> Callable[[int], object]:
        mark = self._static.make_marker(domain or _DOMAIN, name)
        if mark is None:
            # Tools show an event that never ends as a moment.
            event = self._native.Event(name)
            return lambda _scope: event.begin()
        return mark


def _begin_event(event: Any) -> Any:
    event.begin()
    return event.end


def _begin_frame(native: Any, place: Any) -> Any:
    one = native.Id(place)
    native.frame_begin(place, one)
    return partial(native.frame_end, place, one)


def _begin_task(native: Any, place: Any, handle: Any) -> Any:
    one = native.Id(place)
    native.task_begin_overlapped(place, handle, one)
    return partial(native.task_end_overlapped, place, one)


class _Static:
    """ITT calls that pyitt does not wrap, made through ITT's pointers to the collector's functions,
    which are symbols of pyitt's library.

    A call that the library or the collector lacks is None here."""

    def __init__(self, path: str) -> None:
        import ctypes

        self._c, self._lib = ctypes, ctypes.PyDLL(path)  # with the GIL: these calls are short
        self.state = self._load()

    def _load(self) -> int:
        """Load the collector and return its state. The collector would not know of a domain that
        was made before it was loaded."""
        try:
            return int(self._lib["__itt_get_collection_state"]())
        except AttributeError:
            return 0

    def _find(self, name: str, result: object, *kinds: object) -> Any:
        try:
            address = self._c.c_void_p.in_dll(self._lib, f"__itt_{name}_ptr__3_0").value
        except ValueError:
            return None
        return self._c.PYFUNCTYPE(result, *kinds)(address) if address else None  # type: ignore[arg-type]

    def make_counter(self, domain: str, name: str) -> Callable[[Any], object] | None:
        c = self._c
        create = self._find("counter_create_typed", c.c_void_p, c.c_char_p, c.c_char_p, c.c_int)
        set_value = self._find("counter_set_value", None, c.c_void_p, c.POINTER(c.c_double))
        handle = create and set_value and create(name.encode(), domain.encode(), _DOUBLE)
        if not handle:
            return None
        return lambda value: set_value(handle, c.byref(c.c_double(value)))

    def make_marker(self, domain: str, name: str) -> Callable[[int], object] | None:
        c = self._c
        number = c.c_uint64 * 3

        class Id(c.Structure):  # type: ignore[name-defined,misc]
            _fields_ = (("parts", number),)

        create_domain = self._find("domain_create", c.c_void_p, c.c_char_p)
        create_name = self._find("string_handle_create", c.c_void_p, c.c_char_p)
        mark = self._find("marker", None, c.c_void_p, Id, c.c_void_p, c.c_int)
        place = create_domain and create_domain(domain.encode())
        handle = create_name and create_name(name.encode())
        if not (mark and place and handle):
            return None
        # The first field of a domain says whether a collector is interested in it.
        enabled, none = c.c_int.from_address(place), Id()
        return lambda scope: mark(place, none, handle, scope) if enabled.value else None
