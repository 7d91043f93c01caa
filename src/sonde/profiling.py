"""`sonde.profile`: one function or block, profiled. The work runs and returns, whatever we do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import update_wrapper
from types import TracebackType

from sonde.bracket import (
    Settings,
    Ticket,
    Unprofiled,
    begin,
    end,
    wait_running,
    wait_running_softly,
)
from sonde.errors import ConfigError
from sonde.run import Run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# How a function says what it is, as inspect would tell, without importing that.
_GENERATOR, _COROUTINE, _ASYNC_GENERATOR = 0x20, 0x80 | 0x100, 0x200


class Profiled:
    """A block or a function that is profiled: `with` it, or decorate with it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._open: list[Ticket | Unprofiled] = []

    def __enter__(self) -> Run | Unprofiled:
        self._open.append(self._begin(None))
        return self._open[-1].run

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        end(self._open.pop(), error)

    async def __aenter__(self) -> Run | Unprofiled:
        self._open.append(await self._begin_softly(None))
        return self._open[-1].run

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        end(self._open.pop(), error)

    def _begin(self, name: str | None) -> Ticket | Unprofiled:
        ticket = begin(self._settings, name)
        if isinstance(ticket, Ticket):
            wait_running(self._settings, ticket.run)
        return ticket

    async def _begin_softly(self, name: str | None) -> Ticket | Unprofiled:
        ticket = begin(self._settings, name)
        if isinstance(ticket, Ticket):
            await wait_running_softly(self._settings, ticket.run)
        return ticket

    def __call__(self, function: Any) -> Any:
        """The function, profiled whenever it is called; `function.last_run` is the last run."""
        if isinstance(function, (staticmethod, classmethod)):
            return type(function)(self(function.__func__))
        if isinstance(function, type) or not callable(function):
            raise ConfigError(f"{function!r} is not a function; decorate the methods of a class")
        flags = getattr(getattr(function, "__code__", None), "co_flags", 0)
        for mark, wrap in (
            (_ASYNC_GENERATOR, self._wrap_async_generator),
            (_COROUTINE, self._wrap_coroutine),
            (_GENERATOR, self._wrap_generator),
        ):
            if flags & mark:
                return _dress(wrap(function), function)
        return _dress(self._wrap(function), function)

    def _wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        name = _name(function)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            ticket = self._begin(name)
            wrapper.last_run = ticket.run  # type: ignore[attr-defined]
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                end(ticket, error)
                raise
            end(ticket)
            return result

        return wrapper

    def _wrap_coroutine(self, function: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
        name = _name(function)

        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            ticket = await self._begin_softly(name)
            wrapper.last_run = ticket.run  # type: ignore[attr-defined]
            try:
                result = await function(*args, **kwargs)
            except BaseException as error:
                end(ticket, error)
                raise
            end(ticket)
            return result

        return wrapper

    def _wrap_generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        name = _name(function)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            ticket = self._begin(name)
            wrapper.last_run = ticket.run  # type: ignore[attr-defined]
            try:
                result = yield from function(*args, **kwargs)
            except BaseException as error:
                end(ticket, error)
                raise
            end(ticket)
            return result

        return wrapper

    def _wrap_async_generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        name = _name(function)

        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            ticket = await self._begin_softly(name)
            wrapper.last_run = ticket.run  # type: ignore[attr-defined]
            generator = function(*args, **kwargs)
            try:
                step = generator.__anext__()
                while True:
                    item = await step
                    try:
                        sent = yield item
                    except GeneratorExit:
                        await generator.aclose()
                        raise
                    except BaseException as error:
                        step = generator.athrow(error)
                    else:
                        step = generator.asend(sent)
            except StopAsyncIteration:
                end(ticket)
            except BaseException as error:
                end(ticket, error)
                raise

        return wrapper


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", None) or repr(function))


def _dress(wrapper: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    update_wrapper(wrapper, function)
    wrapper.last_run = None  # type: ignore[attr-defined]
    return wrapper


class Profile:
    """`sonde.profile`: a decorator, a context manager, and `start()`."""

    def __call__(self, function: Any = None, **settings: Any) -> Any:
        """`@sonde.profile`, `@sonde.profile(tags="load")`, `with sonde.profile() as run:`.

        every: time between two samples. max_duration: then sampling ends, not the work. sources:
        more to record meanwhile, such as "call". tags: runs with one tag can be merged.
        on_conflict, where another run is under way in this process: "run" (the work, without a
        profile; one warning), "error" (RunActive, before the work) or "wait" (wait_timeout).
        stop_at_error: NotProfiled, before the work, if the profile cannot begin."""
        profiled = Profiled(Settings(**settings))
        return profiled if function is None else profiled(function)

    def start(self, **settings: Any) -> Run | Unprofiled:
        """Begin a run now and return at once: `run.wait_running()`, `run.stop()`, `run.result()`.

        It ends by itself after max_duration."""
        ticket = begin(Settings(**settings), None)
        if isinstance(ticket, Ticket):
            ticket.is_used = True  # it is the caller's now
        return ticket.run


profile = Profile()
