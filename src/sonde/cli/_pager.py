"""Show what is longer than the screen in the user's pager."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Callable
from typing import IO

from sonde import environ
from sonde.cli._terminal import clean_text


class _Screen(io.StringIO):
    """Text that is drawn as for the terminal."""

    def isatty(self) -> bool:
        return True


def show(draw: Callable[[IO[str]], None]) -> None:
    """Draw to the terminal, through the pager if there are more lines than it has."""
    screen = _Screen()
    draw(screen)
    text = screen.getvalue()
    pager = environ.find_pager()
    if text.count("\n") < shutil.get_terminal_size().lines or pager is None:
        sys.stdout.write(text)
        return
    import subprocess  # only here: it is slow to import

    command, env = pager
    try:
        subprocess.run(
            command,
            input=clean_text(text).encode("utf-8", "backslashreplace"),
            env=env,
            check=False,
        )
    except OSError:
        sys.stdout.write(text)
