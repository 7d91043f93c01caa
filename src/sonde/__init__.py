"""sonde: an always-on profiler and flight recorder for long-running Python and AI jobs.

    import sonde
    sonde.start()                                   # record this process
    sonde.open(pid).query("SELECT * FROM python.gc_pause")

See `sonde --help` for what can be done from outside.
"""

from __future__ import annotations

from sonde.errors import Error
from sonde.errors import SchemaError as _SchemaError
from sonde.job.recorder import RESERVED as _RESERVED
from sonde.job.recorder import recorder as _recorder
from sonde.session.schema import column, f64, i8, i16, i32, i64, name_table, text, u8, u16, u32, u64

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sonde import profiler
    from sonde.advice.judge import advise
    from sonde.job.events import counter, mark, span
    from sonde.job.profile import profile
    from sonde.job.source_switch import disable_torch_profiling, enable_torch_profiling
    from sonde.job.torch.steps import step
    from sonde.store.recording import Recording

__version__ = "0.1.0"
__all__ = [
    "Error", "advise", "column", "counter", "disable_torch_profiling", "enable_torch_profiling",
    "f64", "i8", "i16", "i32", "i64", "mark", "open", "pause", "profile", "profiler", "resume",
    "snapshot", "span", "start", "step", "stop", "table", "text", "u8", "u16", "u32", "u64",
]  # fmt: skip

# Made when they are first used: a job that uses none pays nothing for them.
_LATE = {
    "advise": "advice.judge", "profile": "job.profile", "step": "job.torch.steps",
    "enable_torch_profiling": "job.source_switch", "disable_torch_profiling": "job.source_switch",
    "counter": "job.events", "mark": "job.events", "span": "job.events",
}  # fmt: skip

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _LATE and name != "profiler":
            raise AttributeError(f"module 'sonde' has no attribute {name!r}")
        from importlib import import_module

        if name == "profiler":
            return import_module("sonde.profiler")
        found = globals()[name] = getattr(import_module(f"sonde.{_LATE[name]}"), name)
        return found


def start(**settings: object) -> str | None:
    """Record this process from now on; the session's folder.

    Settings are those of `sonde config`, with `_` for `.`: `start(ring_bytes="16MiB")`.
    A second call changes nothing. If recording is not possible, one line on stderr says why,
    and None is returned: the program runs on."""
    from sonde import settings as config

    known = {name.replace(".", "_"): name for name in config.list_keys()}
    given = {known.get(name, name): value for name, value in settings.items()}
    return _recorder.start(given)


def stop() -> None:
    """End the recording; what was recorded stays."""
    _recorder.stop()


def pause() -> None:
    """Record no rows until `resume()`; costs next to nothing meanwhile."""
    _recorder.set_on(False)


def resume() -> None:
    """Record rows again."""
    _recorder.set_on(True)


def snapshot(*, cumulative: bool = False) -> str | None:
    """Write the profile of this process since the last snapshot (or since its start), now; the
    file, for pstats, snakeviz and others. None if it is not being recorded."""
    if _recorder.session is None:
        return None
    from sonde.session import Session, snapshots

    files = snapshots.take(Session(_recorder.session.folder))
    return files["total" if cumulative else "delta"]


def table(row: type, name: str | None = None) -> Callable[..., None]:
    """A table of your own: `emit = sonde.table(Batch)`, then `emit(step, loss)` writes a row.

    `row` is a dataclass, or any class with annotated columns (int, float, str, bool or sonde's
    exact kinds; `| None` where a value may be missing). The table is `job.batch` unless named.
    `emit` may be made before `start()` and works across stop, start and fork; it never raises:
    a value that does not fit is counted in `sonde.loss`."""
    name = name or name_table(row, "job")
    if name.partition(".")[0] in _RESERVED:
        raise _SchemaError(f"{name}: that schema is taken; use job.{name.rpartition('.')[2]}, say")
    return _recorder.open_table(row, name)


def open(target: int | str | Sequence[int | str]) -> Recording:
    """What was recorded: of a pid, a session folder or id, a job (all its ranks), or several."""
    from sonde.store.recording import open_recording

    return open_recording(target)
