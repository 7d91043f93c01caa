"""One way to wrap every kind of function, for sonde.profile and sonde.span alike."""

from __future__ import annotations

import asyncio
import inspect
import types
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import sonde


@pytest.fixture(params=["profile", "span"])
def decorate(request) -> Callable[[Any], Any]:
    sonde.start(collector=False)
    return sonde.profile(max_duration=5) if request.param == "profile" else sonde.span("work")


def plain(value: int) -> int:
    return value + 1


async def coroutine(value: int) -> int:
    await asyncio.sleep(0)
    return value + 1


@types.coroutine
def old_coroutine(value: int):
    yield  # as asyncio.sleep(0) does
    return value + 1


def generator(value: int):
    sent = yield value
    try:
        yield sent
    except KeyError as error:
        yield error.args[0]
    return value + 1


async def async_generator(value: int):
    sent = yield value
    try:
        yield sent
    except KeyError as error:
        yield error.args[0]


class Callables:
    """Functions that are found behind something else."""

    async def __call__(self, value: int) -> int:
        return await coroutine(value)


@pytest.mark.parametrize("function", [plain, coroutine, generator, async_generator])
def test_a_decorated_function_is_of_the_same_kind(decorate, function) -> None:
    wrapped = decorate(function)
    for is_kind in (
        inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction,
    ):  # fmt: skip
        assert is_kind(wrapped) == is_kind(function)
    assert wrapped.__name__ == function.__name__ and wrapped.__wrapped__ is function


def test_a_function_returns_what_it_returned(decorate) -> None:
    assert decorate(plain)(1) == 2
    assert decorate(partial(plain, 1))() == 2


@pytest.mark.parametrize(
    "function",
    [coroutine, old_coroutine, partial(coroutine), Callables()],
    ids=["coroutine", "old coroutine", "partial", "callable"],
)
def test_whatever_can_be_awaited_is_awaited(decorate, function) -> None:
    async def main() -> int:
        return await decorate(function)(1)

    assert asyncio.run(main()) == 2


def test_a_generator_is_sent_thrown_and_closed_as_before(decorate) -> None:
    steps = decorate(generator)(1)
    assert [next(steps), steps.send("sent"), steps.throw(KeyError("thrown"))] == [
        1, "sent", "thrown",
    ]  # fmt: skip
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert end.value.value == 2
    decorate(generator)(1).close()


def test_an_async_generator_is_sent_thrown_and_closed_as_before(decorate) -> None:
    async def main() -> list[object]:
        steps = decorate(async_generator)(1)
        seen = [
            await steps.__anext__(), await steps.asend("sent"), await steps.athrow(KeyError("in")),
        ]  # fmt: skip
        seen += [one async for one in steps]
        other = decorate(async_generator)(1)
        await other.__anext__()
        await other.aclose()
        return seen

    assert asyncio.run(main()) == [1, "sent", "in"]


def test_static_and_class_methods_stay_methods(decorate) -> None:
    class Work:
        @decorate
        @staticmethod
        def add(value: int) -> int:
            return value + 1

        @decorate
        @classmethod
        def name(cls) -> str:
            return cls.__name__

    assert Work.add(1) == 2 and Work().add(1) == 2 and Work.name() == "Work"


def test_what_cannot_be_called_is_refused(decorate) -> None:
    with pytest.raises((TypeError, sonde.Error), match="function"):
        decorate(3)


def test_a_function_that_is_profiled_twice_has_a_last_run_for_each() -> None:
    sonde.start(collector=False)
    inner = sonde.profile(plain)
    inner(1)
    assert inner.last_run is not None and sonde.profile(inner).last_run is None
