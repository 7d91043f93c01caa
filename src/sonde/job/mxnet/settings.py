"""The settings of `set_config`: names, defaults, and what each puts into the trace."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping

from sonde import settings
from sonde.errors import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NOWHERE = "/dev/null"
PROCESSES = ("worker", "server")
FILE, PREFIX = "profile.json", "gpu_memory_profile"


def read_switch(name: str, raw: object) -> bool:
    """Return a boolean, given one or a word for one."""
    if isinstance(raw, bool):
        return raw
    try:
        return settings.parse_switch(str(raw))
    except KeyError:
        raise ConfigError(f"{name}={raw!r} is neither True nor False") from None


def _read_period(name: str, raw: object) -> float:
    try:
        period_s = float(raw)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        period_s = -1.0
    if not 0 < period_s < float("inf"):
        raise ConfigError(f"{name}={raw!r} must be a number of seconds greater than 0")
    return period_s


def read_process(name: str, raw: object) -> str:
    """Return `worker` or `server`."""
    if raw not in PROCESSES:
        raise ConfigError(f"{name}={raw!r} must be one of {', '.join(PROCESSES)}")
    return str(raw)


def _read_file(name: str, raw: object) -> str:
    if not isinstance(raw, (str, os.PathLike)) or not os.fspath(raw):
        raise ConfigError(f"{name}={raw!r} is not a file name")
    # Made absolute now: the program may change its working directory before the file is written.
    return os.path.abspath(os.fsdecode(raw))


# In the order of the original's documentation.
_KEYS: dict[str, tuple[Callable[[str, Any], Any], object]] = {
    "filename": (_read_file, FILE),
    "gpu_memory_profile_filename_prefix": (_read_file, PREFIX),
    "profile_all": (read_switch, False),
    "profile_symbolic": (read_switch, True),
    "profile_imperative": (read_switch, True),
    "profile_memory": (read_switch, True),
    "profile_api": (read_switch, True),
    "continuous_dump": (read_switch, True),
    "dump_period": (_read_period, 1.0),
    "aggregate_stats": (read_switch, False),
    "profile_process": (read_process, "worker"),
}


class MxnetSettings:
    """One configuration, checked."""

    def __init__(self, given: Mapping[str, object]) -> None:
        unknown = [name for name in given if name not in _KEYS]
        if unknown:
            names = ", ".join(_KEYS)
            raise ConfigError(f"there is no setting {unknown[0]}; the settings are {names}")
        self.given = dict(given)
        self._values = {
            name: read(name, given.get(name, default)) for name, (read, default) in _KEYS.items()
        }

    @property
    def path(self) -> str:
        """The trace file."""
        return str(self._values["filename"])

    @property
    def memory_prefix(self) -> str:
        """The prefix of the names of GPU memory files."""
        return str(self._values["gpu_memory_profile_filename_prefix"])

    @property
    def process(self) -> str:
        """The processes it applies to: `worker` is this process, `server` the other ranks."""
        return str(self._values["profile_process"])

    @property
    def period_s(self) -> float | None:
        """Time between two refreshes of the file; None if it is written only when asked for."""
        return float(self._values["dump_period"]) if self._values["continuous_dump"] else None

    @property
    def aggregates(self) -> bool:
        """Whether the table of dumps() is wanted."""
        return bool(self._values["aggregate_stats"])

    @property
    def parts(self) -> list[str]:
        """What goes into the trace besides the program's own events."""
        wanted = {
            "stacks": self._is_on("profile_api"),
            "torch": self._is_on("profile_symbolic") or self._is_on("profile_imperative"),
            "memory": self._is_on("profile_memory"),
            "system": bool(self._values["profile_all"]),
        }
        return [name for name, is_wanted in wanted.items() if is_wanted]

    def _is_on(self, name: str) -> bool:
        return bool(self._values["profile_all"] or self._values[name])

    def make_recording(self) -> dict[str, object]:
        """Return the settings of a recording that is started for this profile."""
        is_torch = "torch" in self.parts
        return {
            "source.stack": "stacks" in self.parts,
            "source.torch": is_torch,
            "source.operator": is_torch,
            "source.collective": is_torch,
        }

    def check_path(self) -> None:
        """Raise now if the trace file cannot be written, before any data is lost."""
        path = self.path
        if path == NOWHERE:
            return
        folder = os.path.dirname(path)
        if not os.path.isdir(folder):
            raise ConfigError(f"filename: there is no folder {folder}; create it first")
        if os.path.lexists(path) and not stat.S_ISREG(_read_mode(path)):
            raise ConfigError(f"filename: {path} exists and is not a regular file")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ConfigError(f"filename: you have no permission to write to {folder}")


def _read_mode(path: str) -> int:
    try:
        return os.stat(path).st_mode
    except OSError:
        return 0
