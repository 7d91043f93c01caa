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
