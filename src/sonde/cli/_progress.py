"""A line on a terminal that says how far something has come."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sonde.cli._terminal import send
from sonde.words import clean

_WIDTH, _SHORTEST = 30, 5  # columns of a bar


@contextmanager
def say(what: str) -> Iterator[None]:
    """Say on a terminal what the block does, until it is done: it may take seconds."""
    is_shown = sys.stderr.isatty()
    if is_shown:
        send(sys.stderr, f"\r{clean(what)[: shutil.get_terminal_size().columns - 2]}…\x1b[K")
        sys.stderr.flush()
    try:
        yield
    finally:
        if is_shown:
            send(sys.stderr, "\r\x1b[K")
            sys.stderr.flush()


class Bar:
    """The seconds that have passed, out of how many; nothing where stderr is not a terminal."""

    def __init__(self, title: str, total_s: float | None) -> None:
        self._title, self._total_s, self._begin_s = title, total_s, time.monotonic()
        self._is_shown = sys.stderr.isatty()

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._is_shown:
            send(sys.stderr, "\r\x1b[K")
            sys.stderr.flush()

    def show(self, passed_s: float | None = None) -> None:
        """Draw the bar as it is now; give `passed_s` if that is not the time since it was made."""
        if not self._is_shown:
            return
        if passed_s is None:
            passed_s = time.monotonic() - self._begin_s
        columns = shutil.get_terminal_size().columns
        line = clean(draw_bar(self._title, passed_s, self._total_s, columns - 1))
        send(sys.stderr, f"\r{line[: columns - 1]}\x1b[K")
        sys.stderr.flush()

    def set_title(self, title: str, passed_s: float | None = None) -> None:
        """Draw the bar with another title."""
        self._title = title
        self.show(passed_s)

    def print_line(self, line: str) -> None:
        """Write one line that stays."""
        if self._is_shown:
            send(sys.stderr, f"\r{clean(line)}\x1b[K\n")


def draw_bar(title: str, passed_s: float, total_s: float | None, columns: int) -> str:
    """Return the line; the bar is as long as there is room beside the words, or left out."""
    if not total_s:
        return f"{title}  {passed_s:.0f} s"
    end = f"{passed_s:.0f}/{total_s:g} s"
    room = min(_WIDTH, columns - len(title) - len(end) - 4)
    if room < _SHORTEST:
        return f"{title}  {end}"
    filled = "█" * round(min(passed_s / total_s, 1.0) * room)
    return f"{title}  {filled:░<{room}}  {end}"
