"""The functions of mxnet.profiler under their original names: each checks its arguments."""

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
    """Set what is profiled and which file it goes to; docs/profiler.md lists all names.

    Nothing is recorded until set_state('run'). An existing file stays until a new one replaces
    it."""
    checked = MxnetSettings(settings)
    if checked.process == "server":
        ranks.send_request("configure", {**settings, "profile_process": "worker"}, checked.path)
    else:
        _state.configure(checked)


def set_state(state: str = "stop", profile_process: str = "worker") -> None:
    """Run or stop the profile; what was recorded is kept when it stops."""
    if state not in _STATES:
        raise ConfigError(f"state={state!r} must be one of {', '.join(_STATES)}")
    _steer("run" if state == "run" else "halt", profile_process)


def pause(profile_process: str = "worker") -> None:
    """Record nothing until resume()."""
    _steer("halt", profile_process)
    if profile_process == "worker":
        event_mirrors.pause()


def resume(profile_process: str = "worker") -> None:
    """Record again after pause()."""
    _steer("resume", profile_process)
    if profile_process == "worker":
        event_mirrors.resume()


def dump(finished: bool = True, profile_process: str = "worker") -> None:
    """Write the trace file and wait for it; end the profile if `finished`."""
    is_last = read_switch("finished", finished)
    if read_process("profile_process", profile_process) == "server":
        ranks.send_request("dump", {"finished": is_last})
    else:
        _state.dump(is_last)


def dumps(
    reset: bool = False, format: str = "table", sort_by: str = "total", ascending: bool = False
) -> str:
    """Return the sums of everything profiled, as text; empty unless `aggregate_stats` was set.

    Reading changes nothing unless `reset` is given: it clears the sums."""
    is_reset, is_up = read_switch("reset", reset), read_switch("ascending", ascending)
    if format not in table.FORMATS:
        raise ConfigError(f"format={format!r} must be one of {', '.join(table.FORMATS)}")
    if sort_by not in table.SORTS:
        raise ConfigError(f"sort_by={sort_by!r} must be one of {', '.join(table.SORTS)}")
    text = _write_sums(format, sort_by, is_up) if _state.settings.aggregates else ""
    if is_reset:
        _state.reset_sums()
    return text


def _write_sums(format: str, sort_by: str, ascending: bool) -> str:
    sums = table.order(table.collect(*_state.read_sums()), sort_by, ascending)
    return table.write_table(sums) if format == "table" else table.write_json(sums)


def _steer(what: str, profile_process: str) -> None:
    if read_process("profile_process", profile_process) == "server":
        ranks.send_request(what, {})
        return
    calls: dict[str, Callable[[], None]] = {
        "run": _state.run, "halt": _state.halt, "resume": _state.resume,
    }  # fmt: skip
    calls[what]()


# ---- deprecated functions of the original --------------------------------------------------------


def profiler_set_config(mode: str = "symbolic", filename: str = FILE) -> None:
    """Deprecated: use set_config()."""
    _deprecate("profiler_set_config", "set_config")
    set_config(**{f"profile_{mode}": True, "filename": filename})


def profiler_set_state(state: str = "stop") -> None:
    """Deprecated: use set_state()."""
    _deprecate("profiler_set_state", "set_state")
    set_state(state)


def dump_profile() -> None:
    """Deprecated: use dump()."""
    _deprecate("dump_profile", "dump")
    dump(True)


def set_kvstore_handle(handle: object) -> None:
    """Do nothing: 'server' processes are found by the name of the job."""


def _deprecate(old: str, new: str) -> None:
    warn(f"profiler.{old}() is deprecated; use {new}()", DeprecationWarning, stacklevel=3)
