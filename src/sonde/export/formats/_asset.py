"""Files that exporters put into their output, and how numbers and names are shown there."""

from __future__ import annotations

import os
import re


def read_asset(name: str) -> str:
    """A file beside this one."""
    with open(os.path.join(os.path.dirname(__file__), name), encoding="utf-8") as file:
        return file.read()


def fill(template: str, **values: str) -> str:
    """A template with its @WORDS@ replaced, all at once: a value may hold such a word, too."""
    return re.sub("@([A-Z]+)@", lambda word: values[word[1]], template)


def show_ns(ns: float) -> str:
    """A time as a person says it."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= size:
            return f"{ns / size:,.2f} {unit}"
    return f"{ns:.0f} ns"


def clean(text: str) -> str:
    """A name on one line: no control character, no half of a pair."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def pick_hue(file: str) -> int:
    """The colour of a file's functions, the same in every picture; flamegraph.js has it, too."""
    return _hash(file) % 360


def pick_shade(func: str) -> int:
    """How much lighter a function is than others of its file: neighbours are told apart."""
    return _hash(func) % 8


def _hash(text: str) -> int:
    """FNV-1a of the text's UTF-16, as a script sees it."""
    units = text.encode("utf-16-le", "surrogatepass")
    value = 2166136261
    for at in range(0, len(units), 2):
        value = (value ^ int.from_bytes(units[at : at + 2], "little")) * 16777619 & 0xFFFFFFFF
    return value
