"""The functions of mxnet.profiler under their own names: they check arguments and pass them on."""

from __future__ import annotations

from collections.abc import Callable
from warnings import warn

from sonde.errors import ConfigError
from sonde.job import event_mirrors
from sonde.job.mxnet import ranks, table
from sonde.job.mxnet.settings import FILE, MxnetSettings, read_process, read_switch
from sonde.job.mxnet.state import state as _state

_STATES = ("stop", "run")


def set_config(**settings: object) -> None:
    """Say what is profiled and where it goes; docs/profiler.md lists all names.

    Nothing is recorded until set_state('run'). A file that is there stays until there is a new one
    to take its place."""
    checked = MxnetSettings(settings)
    if checked.process == "server":
        ranks.tell("configure", {**settings, "profile_process": "worker"}, checked.path)
    else:
        _state.configure(checked)


def set_state(state: str = "stop", profile_process: str = "worker") -> None:
    """'run' or 'stop' the profile; what there is stays when it stops."""
    if state not in _STATES:
        raise ConfigError(f"state={state!r}: one of {', '.join(_STATES)}")
    _steer("run" if state == "run" else "halt", profile_process)


def pause(profile_process: str = "worker") -> None:
    """Leave out what happens until resume()."""
    _steer("halt", profile_process)
    if profile_process == "worker":
        event_mirrors.pause()


def resume(profile_process: str = "worker") -> None:
    """Record again after pause()."""
    _steer("resume", profile_process)
    if profile_process == "worker":
        event_mirrors.resume()


def dump(finished: bool = True, profile_process: str = "worker") -> None:
    """Write the trace file and wait for it; `finished` ends the profile, else it goes on."""
    is_last = read_switch("finished", finished)
    if read_process("profile_process", profile_process) == "server":
        ranks.tell("dump", {"finished": is_last})
    else:
        _state.dump(is_last)


def dumps(
    reset: bool = False, format: str = "table", sort_by: str = "total", ascending: bool = False
) -> str:
    """Return the sums of all that was profiled, as text; empty unless `aggregate_stats` was set.

    Reading changes nothing; `reset` starts the sums anew."""
    is_reset, is_up = read_switch("reset", reset), read_switch("ascending", ascending)
    if format not in table.FORMATS:
        raise ConfigError(f"format={format!r}: one of {', '.join(table.FORMATS)}")
    if sort_by not in table.SORTS:
        raise ConfigError(f"sort_by={sort_by!r}: one of {', '.join(table.SORTS)}")
    text = _write_sums(format, sort_by, is_up) if _state.settings.aggregates else ""
    if is_reset:
        _state.reset_sums()
    return text


def _write_sums(format: str, sort_by: str, ascending: bool) -> str:
    found = table.collect(_state.read_sums(), _state.read_memory())
    sums = table.order(found, sort_by, ascending)
    return table.write_table(sums) if format == "table" else table.write_json(sums)


def _steer(what: str, profile_process: str) -> None:
    if read_process("profile_process", profile_process) == "server":
        ranks.tell(what, {})
        return
    calls: dict[str, Callable[[], None]] = {
        "run": _state.run, "halt": _state.halt, "resume": _state.resume,
    }  # fmt: skip
    calls[what]()


# ---- what the original keeps for old programs ----------------------------------------------------


def profiler_set_config(mode: str = "symbolic", filename: str = FILE) -> None:
    """Deprecated: set_config()."""
    _deprecate("profiler_set_config", "set_config")
    set_config(**{f"profile_{mode}": True, "filename": filename})


def profiler_set_state(state: str = "stop") -> None:
    """Deprecated: set_state()."""
    _deprecate("profiler_set_state", "set_state")
    set_state(state)


def dump_profile() -> None:
    """Deprecated: dump()."""
    _deprecate("dump_profile", "dump")
    dump(True)


def set_kvstore_handle(handle: object) -> None:
    """Do nothing: 'server' is found by the name of the job."""


def _deprecate(old: str, new: str) -> None:
    warn(f"profiler.{old}() is deprecated; use {new}()", DeprecationWarning, stacklevel=3)
