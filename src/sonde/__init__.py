"""sonde: an always-on profiler and flight recorder for long-running Python and AI jobs.

    import sonde
    sonde.start()                                   # record this process
    sonde.open(pid).query("SELECT * FROM python.gc_pause")

See `sonde --help` for what can be done from outside, and docs/api.md for what stays as it is.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from sonde import profiler
    from sonde.advice.finding import Advice
    from sonde.advice.judge import advise
    from sonde.analysis.modules import modules
    from sonde.analysis.profile_process import ProfileOptions, profile_process
    from sonde.errors import Error
    from sonde.export.run_profile import export_result
    from sonde.job.events import counter, mark, span
    from sonde.job.profile import profile
    from sonde.job.source_switch import disable_torch_profiling, enable_torch_profiling
    from sonde.job.torch.steps import step
    from sonde.session.folder import Session
    from sonde.session.run import Run
    from sonde.session.run_result import Result
    from sonde.session.schema import column, f64, i8, i16, i32, i64, text, u8, u16, u32, u64
    from sonde.store.recording import Recording

__version__ = "0.1.0"
__all__ = [
    "Advice",
    "Error",
    "ProfileOptions",
    "Recording",
    "Result",
    "Run",
    "Session",
    "advise",
    "column",
    "counter",
    "disable_torch_profiling",
    "enable_torch_profiling",
    "export_result",
    "f64",
    "i8",
    "i16",
    "i32",
    "i64",
    "mark",
    "modules",
    "open",
    "pause",
    "profile",
    "profile_process",
    "profiler",
    "resume",
    "session",
    "snapshot",
    "span",
    "start",
    "step",
    "stop",
    "table",
    "text",
    "u8",
    "u16",
    "u32",
    "u64",
]  # fmt: skip

# Where each name is. Loaded when it is first used: a program pays for what it uses, and neither
# half of sonde loads the other.
_PLACES = {
    "Advice": "advice.finding", "Error": "errors",
    "ProfileOptions": "analysis.profile_process", "profile_process": "analysis.profile_process",
    "Recording": "store.recording",
    "Result": "session.run_result", "Run": "session.run", "Session": "session.folder",
    "advise": "advice.judge", "counter": "job.events", "disable_torch_profiling":
    "job.source_switch", "enable_torch_profiling": "job.source_switch",
    "export_result": "export.run_profile", "mark": "job.events",
    "modules": "analysis.modules", "profile": "job.profile",
    "span": "job.events", "step": "job.torch.steps",
    "load_ipython_extension": "integrations.notebook",
    **dict.fromkeys(
        ("column", "f64", "i8", "i16", "i32", "i64", "text", "u8", "u16", "u32", "u64"),
        "session.schema",
    ),
}  # fmt: skip

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        # Called for modules as well, by `from sonde import environ`.
        if name == "session":
            return _import("session")
        if name == "profiler":
            _begin_late()
            return _find_stand_in("profiler") or _import("profiler")
        if name not in _PLACES:
            raise AttributeError(f"module 'sonde' has no attribute {name!r}")
        if _PLACES[name].startswith("job."):
            _begin_late()
            if stand_in := _find_stand_in(_PLACES[name]):
                return stand_in
        try:
            module = _import(_PLACES[name])
        except ModuleNotFoundError as error:
            from sonde.errors import explain_missing

            raise explain_missing(error, f"sonde.{name}") from None
        except ImportError as error:
            from sonde.errors import is_in_subinterpreter

            if not _PLACES[name].startswith("job.") or not is_in_subinterpreter(error):
                raise
            from sonde.job.subinterpreter import stand_in_for

            globals()[name] = stand_in_for(name)
            return globals()[name]
        found = globals()[name] = getattr(module, name)
        return found

    def _find_stand_in(module: str) -> object:
        """Return what does nothing if to import this module may end the program; else None."""
        native_state = sys.modules.get("sonde.job.native_state")  # loaded if it is recorded
        if native_state is None or f"sonde.{module}" in sys.modules:
            return None
        return native_state.find_stand_in()

    def _import(name: str) -> object:
        __import__(f"sonde.{name}")  # `importlib` would be one more import in the job
        return sys.modules[f"sonde.{name}"]

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


def _begin_late() -> None:
    """Begin the recording now if this process waits with it: there is something to record."""
    delay = sys.modules.get("sonde._delay")
    if delay is not None:
        delay.begin()


def _find_recorder() -> "Any":
    try:
        from sonde.job.recorder import recorder
    except ImportError as error:
        from sonde import errors

        if not errors.is_in_subinterpreter(error):
            raise
        from sonde.job.subinterpreter import NoRecorder

        return NoRecorder()
    _begin_late()
    return recorder


def start(**settings: object) -> str | None:
    """Record this process from now on; return the session's folder.

    Settings are those of `sonde config`, with `_` for `.`: `start(ring_bytes="16MiB")`.
    A second call changes nothing. If recording is not possible, one line on stderr says why,
    and None is returned: the program runs on."""
    from sonde import settings as config

    recorder = _find_recorder()
    known = {name.replace(".", "_"): name for name in config.list_keys()}
    given = {known.get(name, name): value for name, value in settings.items()}
    folder: str | None = recorder.start(given)
    return folder


def stop() -> None:
    """End the recording; what was recorded stays."""
    _find_recorder().stop()


def pause() -> None:
    """Record no rows until `resume()`; this costs next to nothing meanwhile."""
    _find_recorder().set_on(False)


def resume() -> None:
    """Record rows again."""
    _find_recorder().set_on(True)


if TYPE_CHECKING:
    # At run time it is the package `sonde.session`, which can be called: see there.
    def session() -> Session | None:
        """Return the session that this process is being recorded into; None if it is not."""


def snapshot(*, cumulative: bool = False) -> str | None:
    """Write the profile of this process since the last snapshot (or since its start) now.

    Returns the file, for pstats, snakeviz and others; None if the process is not being recorded."""
    import sonde.session as package

    _find_recorder().leave_if_filtered()
    found: Session | None = package()  # type: ignore[operator]
    if found is None:
        return None
    from sonde.session import snapshots

    return snapshots.take(found)["total" if cumulative else "delta"]


def table(row: type, name: str | None = None) -> "Callable[..., None]":
    """Make a table of your own: `emit = sonde.table(Batch)`, then `emit(step, loss)` writes a row.

    `row` is a dataclass, or any class with annotated columns (int, float, str, bool or sonde's
    exact kinds; `| None` where a value may be missing). The table is `job.batch` unless named.
    `emit` may be made before `start()` and works across stop, start and fork; it never raises:
    a value that does not fit is counted in `sonde.loss`."""
    from sonde.session.schema import name_user_table

    emit: Callable[..., None] = _find_recorder().open_table(row, name_user_table(row, name))
    return emit


def open(target: "int | str | Session | Sequence[int | str | Session]") -> "Recording":
    """Open what was recorded of a pid, a session folder or id, a session, a whole job, or several
    of them.

    Its first query warns if names are missing because a table had no room for them."""
    from sonde.session import Session

    try:
        from sonde.store.recording import open_recording
    except ModuleNotFoundError as error:
        from sonde.errors import explain_missing

        raise explain_missing(error, "sonde.open") from None
    words = [target] if isinstance(target, int | str | Session) else target
    names = [one.folder if isinstance(one, Session) else one for one in words]
    return open_recording(names, warns=True)
