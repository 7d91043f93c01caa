"""The same thing drawn again and again: on a terminal in its place, else one below the other."""

from __future__ import annotations

import io
import shutil
import sys
import time
from collections.abc import Callable
from typing import IO

_LEAST_S = 0.05


def watch(draw: Callable[[IO[str]], bool], period_s: float) -> None:
    """Draw until `draw` says that nothing will change, or somebody presses Ctrl-C.

    What was on the terminal comes back at the end, with what was drawn last below it."""
    on_screen = sys.stdout.isatty()
    page = _Page()
    sys.stdout.write("\x1b[?1049h\x1b[?25l" if on_screen else "")
    try:
        while _draw_once(draw, page, on_screen):
            time.sleep(max(_LEAST_S, period_s))
    except KeyboardInterrupt:
        pass
    finally:
        sys.stdout.write("\x1b[?25h\x1b[?1049l" if on_screen else "")
    if on_screen:
        sys.stdout.write(page.getvalue())


def _draw_once(draw: Callable[[IO[str]], bool], page: _Page, on_screen: bool) -> bool:
    if not on_screen:
        goes_on = draw(sys.stdout)
        sys.stdout.write("\n" if goes_on else "")
    else:
        new = _Page()
        goes_on = draw(new)
        page.take(new)
        sys.stdout.write(page.fit(shutil.get_terminal_size().lines - 1))
    sys.stdout.flush()
    return goes_on


class _Page(io.StringIO):
    """What is drawn as on a terminal, before it is there."""

    def isatty(self) -> bool:
        return True

    def take(self, new: _Page) -> None:
        """Be what that is."""
        self.seek(0)
        self.truncate()
        self.write(new.getvalue())

    def fit(self, height: int) -> str:
        """As it is written over what is there, cut to a height."""
        lines = self.getvalue().splitlines()
        if len(lines) > height:
            lines[height - 1 :] = [
                f"\N{HORIZONTAL ELLIPSIS} and {len(lines) - height + 1} more lines"
            ]
        return "\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J"
