"""A bus of events looks up which arguments a handler wants, for each event.

As in frameworks that hand services to functions by their annotations."""

from __future__ import annotations

RULE, CAUSE = "costly_calls", "Signatures"
LINE = "find_wanted"
TWIN = True

if __name__ == "__main__":
    import functools
    import inspect
    import typing
    from collections.abc import Callable

    from loop import FIXED, until_over

    class Store:
        def __init__(self) -> None:
            self.seen = 0

    def note(store: Store, amount: int) -> None:
        store.seen += amount

    def find_wanted(handler: Callable[..., object]) -> list[str]:
        hints = typing.get_type_hints(handler)
        names = inspect.signature(handler).parameters
        return [name for name in names if hints[name] is Store]

    if FIXED:
        find_wanted = functools.lru_cache(find_wanted)
    store = Store()
    for step in until_over():
        note(**dict.fromkeys(find_wanted(note), store), amount=step % 3)
