"""IPython and Jupyter: `%load_ext sonde`; `%%sonde` profiles a cell, `%sonde query` asks."""

from __future__ import annotations

import sys
import sysconfig
from types import FrameType
from typing import Any

import sonde

_USAGE = (
    "%sonde query TARGET SELECT …   or   %sonde advise TARGET   or   %sonde modules TARGET   or   "
    "%%sonde above a cell"
)


def load_ipython_extension(ipython: Any) -> None:
    """Add the magics; IPython calls this for `%load_ext sonde`."""
    magics = _Magics(ipython)
    ipython.register_magic_function(magics.ask, "line", "sonde")
    ipython.register_magic_function(magics.profile_cell, "cell", "sonde")


class _Magics:
    def __init__(self, ipython: Any) -> None:
        self._ipython = ipython

    def ask(self, line: str) -> Any:
        """Answer `%sonde query TARGET SQL` with a DataFrame, or with an Arrow table where there is
        no pandas; and `%sonde advise TARGET` and `%sonde modules TARGET` as the functions do."""
        word, _, rest = line.strip().partition(" ")
        target, _, sql = rest.strip().partition(" ")
        if word == "advise" and target:
            return sonde.advise(target)
        if word == "modules" and target:
            return sonde.modules(target)
        if word != "query" or not sql.strip():
            raise sonde.Error(f"this is not understood: %sonde {line.strip()}; write {_USAGE}")
        rows = sonde.open(target).query(sql)
        try:
            return rows.to_pandas()
        except ImportError:
            return rows

    def profile_cell(self, line: str, cell: str) -> Any:
        """Run a cell and return its profile; the words behind `%%sonde` are tags."""
        with sonde.profile(tags=line.split()) as run:
            done = self._ipython.run_cell(cell)
        if not done.success:
            return None  # IPython has shown the error
        # Threads of the kernel wait all the time, and would seem to take the most of it. What
        # IPython calls on its way from the magic to the cell is not the cell's, either.
        above = _list_files_above()
        return run.result().cut(lambda frame: _is_users(frame[1]) and frame[1] not in above)


def _list_files_above() -> set[str]:
    """Return the files of whoever calls: among them is the cell that has the magic in it."""
    found: set[str] = set()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        found.add(frame.f_code.co_filename)
        frame = frame.f_back
    return found


def _is_users(file: str) -> bool:
    """Tell whether a file is a cell or another of the user's own."""
    if {"site-packages", "dist-packages"} & set(file.split("/")):
        return False
    return bool(file) and not file.startswith((sysconfig.get_path("stdlib"), "<frozen"))
