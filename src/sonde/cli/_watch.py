"""Draw something again and again: in place on a terminal, else one below the other."""

from __future__ import annotations

import io
import shutil
import sys
import time
from collections.abc import Callable
from typing import IO

from sonde.cli._terminal import clean_text, send

_LEAST_S = 0.05


def watch(draw: Callable[[IO[str]], bool], period_s: float) -> None:
    """Draw until `draw` returns False, as nothing will change any more, or somebody presses Ctrl-C.

    At the end the terminal shows what it showed before, with the last drawing below it."""
    on_screen = sys.stdout.isatty()
    page = _Page()
    send(sys.stdout, "\x1b[?1049h\x1b[?25l" if on_screen else "")
    try:
        while _draw_once(draw, page, on_screen):
            time.sleep(max(_LEAST_S, period_s))
    except KeyboardInterrupt:
        pass
    finally:
        send(sys.stdout, "\x1b[?25h\x1b[?1049l" if on_screen else "")
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
        send(sys.stdout, page.fit(shutil.get_terminal_size().lines - 1))
    sys.stdout.flush()
    return goes_on


class _Page(io.StringIO):
    """A drawing as for a terminal, before it is written there."""

    def isatty(self) -> bool:
        return True

    def take(self, new: _Page) -> None:
        """Become a copy of another page."""
        self.seek(0)
        self.truncate()
        self.write(new.getvalue())

    def fit(self, height: int) -> str:
        """Return the page as text that overwrites the one on the screen, cut to a height."""
        lines = clean_text(self.getvalue()).split("\n")
        lines = lines[:-1] if lines[-1] == "" else lines
        if len(lines) > height:
            lines[height - 1 :] = [
                f"\N{HORIZONTAL ELLIPSIS} and {len(lines) - height + 1} more lines"
            ]
        return "\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J"
