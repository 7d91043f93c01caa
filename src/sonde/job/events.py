"""Mark your own code: spans, counters and markers."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

from sonde import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

span = _core.span
mark = _core.mark

_counters: dict[str, _core.Count] = {}


def counter(name: str, value: float | None = None) -> _core.Count:
    """The counter of this name, set to `value` if there is one:

    sonde.counter("queue", len(queue))
    sonde.counter("requests").increment()

    Any number will do: negative, larger than 64 bits, not whole."""
    found = _counters.get(name)
    if found is None:
        found = _counters.setdefault(name, _core.Count(name))
    if value is not None:
        found.set_value(value)
    return found


# What a function is, by the flags of its code: `inspect` takes 8 ms to import in the job.
_GENERATOR, _COROUTINE, _ASYNC_GENERATOR = 0x20, 0x80, 0x200


def decorate(region: _core.Region, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is a region each time it runs. Of a generator, each stretch between two
    values is one: what its caller does with them is not its time."""
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(decorate(region, function.__func__))
    if not callable(function):
        raise TypeError(f"a region decorates a function, not {type(function).__name__}")
    flags = getattr(getattr(function, "__code__", None), "co_flags", 0)
    if flags & _ASYNC_GENERATOR:
        return _decorate_async_generator(region, function)
    if flags & _GENERATOR:
        return _decorate_generator(region, function)
    if flags & _COROUTINE:

        @wraps(function)
        async def work_async(*args: object, **kwargs: object) -> object:
            with region:
                return await function(*args, **kwargs)

        return work_async

    @wraps(function)
    def work(*args: object, **kwargs: object) -> object:
        with region:
            return function(*args, **kwargs)

    return work


def _decorate_generator(region: _core.Region, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def work(*args: object, **kwargs: object) -> Any:
        return (yield from _Stretches(region, function(*args, **kwargs)))

    return work


class _Stretches:
    """A generator, in a region whenever it runs. `yield from` hands it all that is sent."""

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
            self._region.stop()  # its end, not an error
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


def _decorate_async_generator(
    region: _core.Region, function: Callable[..., Any]
) -> Callable[..., Any]:
    @wraps(function)
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
                except BaseException as error:  # the caller's, thrown in: handed on
                    given, call = error, generator.athrow
        finally:
            await generator.aclose()

    return work
