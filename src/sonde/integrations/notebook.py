"""IPython and Jupyter: `%load_ext sonde`; `%%sonde` profiles a cell, `%sonde` asks."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from types import FrameType
from typing import Any

import sonde

_USAGE = (
    "%sonde query TARGET SELECT …   or   %sonde COMMAND TARGET with one of {}   or   %%sonde above "
    "a cell"
)
# Commands that read, and show text: without a TARGET they are about the kernel itself.
_TEXTS = ("tree", "stacks", "requests", "events", "memory", "ps", "compare", "tables")
_ALONE = ("ps", "compare")
_LIMIT_S = 120.0


def load_ipython_extension(ipython: Any) -> None:
    """Add the magics; IPython calls this for `%load_ext sonde`."""
    magics = _Magics(ipython)
    ipython.register_magic_function(magics.ask, "line", "sonde")
    ipython.register_magic_function(magics.profile_cell, "cell", "sonde")


_SQL = ("SELECT", "FROM", "WITH", "SHOW", "DESCRIBE", "EXPLAIN", "SUMMARIZE")  # it begins so


class _Magics:
    def __init__(self, ipython: Any) -> None:
        self._ipython = ipython

    def ask(self, line: str) -> Any:
        """Answer `%sonde query TARGET SQL` with a DataFrame, or with an Arrow table where there is
        no pandas; `%sonde advise TARGET` and `%sonde modules TARGET` as the functions do; and other
        commands with their text. Without a TARGET, the kernel itself is asked."""
        word, _, rest = line.strip().partition(" ")
        target, _, sql = rest.strip().partition(" ")
        if target.upper() in _SQL:
            target, sql = str(os.getpid()), rest
        if word == "advise":
            return sonde.advise(target or os.getpid())
        if word == "modules":
            return sonde.modules(target or os.getpid())
        if word in _TEXTS:
            return _show_text(word, shlex.split(rest))
        if word != "query" or not sql.strip():
            usage = _USAGE.format(", ".join(("advise", "modules", *_TEXTS)))
            raise sonde.Error(f"this is not understood: %sonde {line.strip()}; write {usage}")
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
        return run.result().cut(
            lambda frame: _is_users(frame[1]) and frame[1] not in above, cell.splitlines()
        )


def _show_text(word: str, args: list[str]) -> None:
    """Print what a command says. It runs in a process of its own: the kernel stays as it is."""
    if word not in _ALONE and (not args or args[0].startswith("-")):
        args = [str(os.getpid()), *args]
    done = subprocess.run(
        [sys.executable, "-m", "sonde", word, *args], capture_output=True, text=True,
        timeout=_LIMIT_S, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    print(done.stdout or done.stderr, end="")


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
