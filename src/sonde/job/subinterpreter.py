"""What the names of `sonde` do in a subinterpreter, which cannot load the core: nothing.
Nor do they after a filter of system calls that a recorded program has installed.

The stacks of its threads are recorded, because the sampler sees all interpreters of the process."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_WHY = "this is a subinterpreter: its stacks are recorded with the process, its events are not"


class Nothing:
    """Can be called, entered, decorate a function, and be added to."""

    id = name = domain = value = None

    def __call__(self, *args: Any, **kwargs: object) -> Any:
        decorates = len(args) == 1 and not kwargs and callable(args[0])
        return args[0] if decorates else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def __iadd__(self, other: object) -> Any:
        return self

    __isub__ = __iadd__


class NoRecorder:
    """Stands in for the recorder."""

    def start(self, _settings: dict[str, object]) -> None:
        sys.stderr.write(f"sonde: not recording: {_WHY}\n")

    def stop(self) -> None:
        pass

    def leave_if_filtered(self) -> bool:
        return False

    def set_on(self, on: bool) -> None:
        pass

    def open_table(self, _row: type, _table: str) -> Any:
        return lambda *_values: None
