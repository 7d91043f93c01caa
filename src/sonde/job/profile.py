"""`sonde.profile`: profile a function or block, which runs and returns whatever happens to us."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType

from sonde.errors import ConfigError
from sonde.job.decorate import can_decorate, decorate
from sonde.job.profile_run import (
    ProfileSettings,
    Ticket,
    Unprofiled,
    begin,
    begin_async,
    end,
    identify_caller,
    log_end,
    release,
    wait_running,
    wait_running_async,
)
from sonde.session.run import Run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Profiled:
    """A profile of a block or a function: a context manager and a decorator."""

    def __init__(self, settings: ProfileSettings) -> None:
        self._settings = settings
        # By thread and task, because one object may be used by many.
        self._open: dict[tuple[int, int], list[Ticket | Unprofiled]] = {}

    def __enter__(self) -> Run | Unprofiled:
        return self._push(self._begin(None))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        end(self._pop(), error)

    async def __aenter__(self) -> Run | Unprofiled:
        return self._push(await self._begin_async(None))

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        end(self._pop(), error)

    def _push(self, ticket: Ticket | Unprofiled) -> Run | Unprofiled:
        self._open.setdefault(identify_caller(), []).append(ticket)
        return ticket.run

    def _pop(self) -> Ticket | Unprofiled:
        caller = identify_caller()
        mine = self._open[caller]
        ticket = mine.pop()
        if not mine:
            del self._open[caller]
        return ticket

    def _begin(self, name: str | None) -> Ticket | Unprofiled:
        ticket = begin(self._settings, name)
        try:
            if isinstance(ticket, Ticket):
                wait_running(self._settings, ticket.run)
        except BaseException:
            end(ticket)
            raise
        return ticket

    async def _begin_async(self, name: str | None) -> Ticket | Unprofiled:
        ticket = await begin_async(self._settings, name)
        try:
            if isinstance(ticket, Ticket):
                await wait_running_async(self._settings, ticket.run)
        except BaseException:
            end(ticket)
            raise
        return ticket

    def __call__(self, function: Any) -> Any:
        """Return the function, profiled at each call; its attribute `last_run` is the last run."""
        if isinstance(function, type) or not can_decorate(function):
            raise ConfigError(f"{function!r} is not a function; decorate the methods of a class")
        wrapped = decorate(function, self)
        getattr(wrapped, "__func__", wrapped).last_run = None
        return wrapped

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        name = _name(function)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            ticket = self._begin(name)
            _keep(wrapper, ticket)
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                end(ticket, error)
                raise
            end(ticket)
            return result

        return wrapper

    def wrap_coroutine(self, function: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
        name = _name(function)

        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            ticket = await self._begin_async(name)
            _keep(wrapper, ticket)
            try:
                result = await function(*args, **kwargs)
            except BaseException as error:
                end(ticket, error)
                raise
            end(ticket)
            return result

        return wrapper

    def wrap_generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        name = _name(function)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            ticket = self._begin(name)
            _keep(wrapper, ticket)
            try:
                result = yield from function(*args, **kwargs)
            except BaseException as error:
                end(ticket, error)
                raise
            end(ticket)
            return result

        return wrapper

    def wrap_async_generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        name = _name(function)

        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            ticket = await self._begin_async(name)
            _keep(wrapper, ticket)
            try:
                generator = function(*args, **kwargs)
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


def _keep(wrapper: Any, ticket: Ticket | Unprofiled) -> None:
    if isinstance(ticket, Ticket) or wrapper.last_run is None:
        wrapper.last_run = ticket.run


def _close(run: Run) -> None:
    """Let go of a run that its caller has stopped, once."""
    run.on_end = None
    release(run)
    log_end(run)


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", None) or repr(function))


class ProfileApi:
    """`sonde.profile`: a decorator, a context manager, and `start()`."""

    def __call__(self, function: Any = None, **settings: Any) -> Any:
        """`@sonde.profile`, `@sonde.profile(tags="load")`, `with sonde.profile() as run:`.

        every: time between two samples. max_duration: when sampling ends; the work goes on.
        sources: more sources to record meanwhile, such as "call". tags: runs that share a tag can
        be merged. on_conflict: what to do if another run is in progress in this process: "run" the
        work without a profile, with one warning; "error" raises RunActive before the work; "wait"
        waits for up to wait_timeout. stop_at_error: raise NotProfiled before the work if the
        profile cannot begin. max_frames: how many frames of a stack to keep, the innermost.
        environment: variables of the environment to record with the run. user: who started it."""
        profiled = Profiled(ProfileSettings(**settings))
        return profiled if function is None else profiled(function)

    def start(self, **settings: Any) -> Run | Unprofiled:
        """Begin a run now and return at once: `run.wait_running()`, `run.stop()`, `run.result()`.

        It ends by itself after max_duration."""
        ticket = begin(ProfileSettings(**settings), None)
        if isinstance(ticket, Ticket):
            ticket.is_used = True  # ending the run is up to the caller now
            ticket.run.on_end = _close
        return ticket.run


profile = ProfileApi()
