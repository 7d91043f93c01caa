"""Files that exporters put into their output, and the colours of frames."""

from __future__ import annotations

import os
import re

from sonde.analysis.code_names import LIBRARY, MINE, PYTHON, SONDE, find_owner

# Where the hues of an owner's files begin: orange, blue, green; sonde's own are as Python's.
HUES = {MINE: 16, LIBRARY: 196, PYTHON: 96, SONDE: 96}
HUE_SPREAD = 30
LEGEND = (
    "orange: your code; blue: libraries; green: Python itself; "
    "\N{HORIZONTAL ELLIPSIS}: how libraries call your code"
)


def read_asset(name: str) -> str:
    """Return the text of a file beside this one."""
    with open(os.path.join(os.path.dirname(__file__), name), encoding="utf-8") as file:
        return file.read()


def fill(template: str, **values: str) -> str:
    """Return a template with its @WORDS@ replaced, all at once: a value may contain such a word."""
    return re.sub("@([A-Z]+)@", lambda word: values[word[1]], template)


def pick_hue(file: str) -> int:
    """Return the hue of a file's functions, the same in every picture and in flamegraph.js: its
    colour says whose code it is."""
    return HUES[find_owner(file)] + _hash(file) % HUE_SPREAD


def pick_shade(func: str) -> int:
    """Return how much lighter a function is drawn, so that neighbours can be told apart."""
    return _hash(func) % 8


def _hash(text: str) -> int:
    """Return the FNV-1a hash of the text's UTF-16 units, as a script computes it."""
    units = text.encode("utf-16-le", "surrogatepass")
    value = 2166136261
    for at in range(0, len(units), 2):
        value = (value ^ int.from_bytes(units[at : at + 2], "little")) * 16777619 & 0xFFFFFFFF
    return value
