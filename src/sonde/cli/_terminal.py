"""What may reach a terminal: text, line breaks and our own colours; the rest is shown escaped.

Names in a recording are chosen by whoever wrote it. As escape sequences they could move the cursor,
hide lines or make some terminals type."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from sonde.words import clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any

_OWN = re.compile(r"(\x1b\[(?:0|1|2|3[1236]|1;3[136])m|[\n\t])")
_LAYOUT = re.compile(r"([\n\t])")


def clean_text(text: str) -> str:
    """Escape everything in a text of several lines but line breaks, tabs and our colours."""
    return "".join(one if _OWN.fullmatch(one) else clean(one) for one in _OWN.split(text))


def clean_lines(text: str) -> str:
    """Escape everything but line breaks and tabs: in a text that we do not colour, a colour is
    somebody else's, and would stay for all that follows."""
    return "".join(one if _LAYOUT.fullmatch(one) else clean(one) for one in _LAYOUT.split(text))


def send(stream: IO[str], text: str) -> None:
    """Write control sequences of our own; what is shown between them must be clean already."""
    raw = stream._stream if isinstance(stream, Terminal) else stream
    raw.write(text)


def drop_output() -> None:
    """Lead stdout nowhere when its reader has gone: the interpreter's own flush must not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def fill(line: str, file: IO[str], indent: str = "  ") -> str:
    """Return a line as a terminal has room for it; in a file or a pipe it stays one line."""
    if not file.isatty():
        return line
    import shutil  # only here: most commands that answer at once never need them
    import textwrap

    width = max(40, shutil.get_terminal_size().columns)
    if len(line) <= width:
        return line
    return textwrap.fill(
        line, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
    )  # a path stays whole, to be copied


class Terminal:
    """A stream to a terminal that lets through only what may reach one."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text, cleaned."""
        self._stream.write(clean_text(text))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        """Write several texts, cleaned."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def guarded() -> Iterator[None]:
    """Guard stdout and stderr for the block: nothing in a name harms the terminal, and none is a
    reason to fail, whatever the encoding."""
    before = sys.stdout, sys.stderr
    for name, stream in zip(("stdout", "stderr"), before, strict=True):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
        if stream.isatty():
            setattr(sys, name, Terminal(stream))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
