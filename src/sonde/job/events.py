"""Mark your own code: spans, counters and markers."""

from __future__ import annotations

from collections.abc import Callable

from sonde.errors import is_in_subinterpreter
from sonde.job.decorate import can_decorate
from sonde.job.decorate import decorate as wrap_function

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

try:
    from sonde import _core
except ImportError as error:
    if not is_in_subinterpreter(error):
        raise
    from sonde.job.subinterpreter import load_core

    _core = load_core()  # it has all that this module uses

span = _core.span
mark = _core.mark

_counters: dict[str, _core.Count] = {}


def counter(name: str, value: float | None = None) -> _core.Count:
    """Return the counter with this name; set it to `value` if one is given:

    sonde.counter("queue", len(queue))
    sonde.counter("requests").increment()

    Any number will do: negative, fractional, larger than 64 bits."""
    found = _counters.get(name)
    if found is None:
        found = _counters.setdefault(name, _core.Count(name))
    if value is not None:
        found.set_value(value)
    return found


def decorate(region: _core.Region, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is in the region whenever it runs; the core calls this.

    For a generator, each stretch between two values is a span of its own: the time its caller
    spends on the values does not count."""
    if not can_decorate(function):
        raise TypeError(f"a region decorates a function, not {type(function).__name__}")
    return wrap_function(function, _Wraps(region))  # type: ignore[no-any-return]


class _Wraps:
    """Wraps functions in a region."""

    def __init__(self, region: _core.Region) -> None:
        self._region = region

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        region = self._region

        def work(*args: object, **kwargs: object) -> object:
            with region:
                return function(*args, **kwargs)

        return work

    def wrap_coroutine(self, function: Callable[..., Any]) -> Callable[..., Any]:
        region = self._region

        async def work(*args: object, **kwargs: object) -> object:
            with region:
                return await function(*args, **kwargs)

        return work

    def wrap_generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        region = self._region

        def work(*args: object, **kwargs: object) -> Any:
            return (yield from _Stretches(region, function(*args, **kwargs)))

        return work

    def wrap_async_generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        region = self._region

        async def work(*args: object, **kwargs: object) -> Any:
            generator = function(*args, **kwargs)
            call, given = generator.asend, None
            try:
                while True:
                    with region:
                        try:
                            value = await call(given)
                        except StopAsyncIteration:
                            return
                    try:
                        given = yield value
                        call = generator.asend
                    except GeneratorExit:
                        raise
                    except BaseException as error:  # the caller threw it in: pass it on
                        given, call = error, generator.athrow
            finally:
                await generator.aclose()

        return work


class _Stretches:
    """A generator that is in a region whenever it runs; use it with `yield from`."""

    def __init__(self, region: _core.Region, generator: Any) -> None:
        self._region, self._generator = region, generator

    def __iter__(self) -> _Stretches:
        return self

    def __next__(self) -> object:
        return self.send(None)

    def send(self, value: object) -> object:
        self._region.start()
        try:
            given = self._generator.send(value)
        except StopIteration:
            self._region.stop()  # the generator has ended, which is not an error
            raise
        except BaseException as error:
            self._region.__exit__(type(error), error, None)
            raise
        self._region.stop()
        return given

    def throw(self, *error: Any) -> object:
        with self._region:
            return self._generator.throw(*error)

    def close(self) -> None:
        with self._region:
            self._generator.close()
