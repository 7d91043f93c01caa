"""What the names of `sonde` do in a subinterpreter: `span`, `counter`, `mark`, the objects of
`sonde.profiler` and what `table` returns write to the recording of the process; `step` ends a step
of the process; the others do nothing. Nor do any after a filter of system calls that a recorded
program has installed.

The stacks of its threads are recorded, because the sampler sees all interpreters of the process."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_WHY = "this is a subinterpreter: the main interpreter decides whether the process is recorded"


def check(error: ImportError) -> None:
    """Raise the error again unless it means that this is a subinterpreter."""
    from sonde.errors import is_in_subinterpreter

    if not is_in_subinterpreter(error):
        raise error


def load_core() -> Any:
    """Load the part of the core that is made for subinterpreters; it is in the same file."""
    import _imp
    from importlib.machinery import ExtensionFileLoader, ModuleSpec, PathFinder

    name = "sonde._sub"
    if name in sys.modules:
        return sys.modules[name]
    core = PathFinder.find_spec("sonde._core", sys.modules["sonde"].__path__)
    if core is None or core.origin is None:
        raise ImportError("the file of sonde._core is not there")
    spec = ModuleSpec(name, ExtensionFileLoader(name, core.origin), origin=core.origin)
    module = _imp.create_dynamic(spec)
    _imp.exec_dynamic(module)
    # One for all of our modules: which region is the innermost one is its state.
    return sys.modules.setdefault(name, module)


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

    def open_table(self, row: type, table: str) -> Any:
        from sonde.errors import SchemaError
        from sonde.session.schema import make_schema

        schema = make_schema(row, table)
        try:
            emit = load_core().open_table(
                schema.dump(), schema.kinds, schema.optional, schema.timed
            )
        except ValueError as error:
            raise SchemaError(str(error)) from None
        return emit or (lambda *_values: None)


def stand_in_for(name: str) -> object:
    """Return what `sonde.NAME` is in a subinterpreter if its module cannot be loaded there."""
    return load_core().end_step if name == "step" else Nothing()


def refuse(what: str, result: object = None) -> Callable[..., Any]:
    """Return a function that returns `result` and does nothing but say so, and why, in one line."""

    def say(*_args: object, **_settings: object) -> object:
        sys.stderr.write(f"sonde: {what} does nothing here: {_WHY}\n")
        return result

    return say
