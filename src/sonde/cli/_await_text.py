"""How what asyncio's tasks await is drawn below a call tree."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import IO

from sonde import environ
from sonde.analysis.awaits import Await
from sonde.analysis.code_names import shorten_file
from sonde.analysis.source_lines import read_source
from sonde.cli._tree_text import cut_text
from sonde.session import Session
from sonde.words import MISSING, clean, shorten_func, show_duration

_MOST = 6  # places
_PART = 0.01  # of all that was awaited: less is left out


def draw_awaits(awaits: Sequence[Await], session: Session, file: IO[str]) -> None:
    """Draw where tasks waited, and how long each wait lasted; nothing if none did."""
    whole = sum(one.awaited_ns for one in awaits)
    shown = [one for one in awaits if one.awaited_ns >= _PART * whole][:_MOST]
    if not shown:
        return
    file.write("\nmeanwhile, tasks of asyncio awaited (all tasks together; each time)\n")
    width = shutil.get_terminal_size().columns if file.isatty() else 160
    coloured = file.isatty() and environ.uses_colour()
    places = [clean(f"{shorten_file(one.file, session.meta.cwd)}:{one.line}") for one in shown]
    names = [clean(shorten_func(one.func)) for one in shown]
    name_room, place_room = max(map(len, names)), max(map(len, places))
    for one, name, place in zip(shown, names, places, strict=True):
        each = MISSING if one.wait_ns is None else show_duration(one.wait_ns)
        times = f"{show_duration(one.awaited_ns):>8}  {each:>8}"
        left = f"{times}  {name:<{name_room}}  {place:<{place_room}}  "
        source = cut_text(_find_source(one, session) or f"await {one.awaited}", width - len(left))
        if coloured:
            left = left.replace(name, f"\x1b[1m{name}\x1b[0m", 1)
            source = f"\x1b[2m{source}\x1b[0m"
        file.write(f"{left}{source}".rstrip() + "\n")


def _find_source(one: Await, session: Session) -> str:
    if session.host != os.uname().nodename:
        return ""
    return clean(read_source(one.file, one.line, session.start_wall_ns))
