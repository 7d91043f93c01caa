"""A folder is a registry; a file is a plugin; its name is the file's name."""

from __future__ import annotations

import os
from importlib import import_module
from types import ModuleType


def list_names(folder: str) -> tuple[str, ...]:
    """The plugins of a folder, sorted, without importing any of them."""
    names = (os.path.splitext(entry) for entry in os.listdir(_path(folder)))
    return tuple(sorted(stem for stem, end in names if end == ".py" and not stem.startswith("_")))


def load(folder: str, name: str) -> ModuleType:
    """Import one plugin."""
    return import_module(f"sonde.{folder}.{name}")


def read_help(folder: str, name: str) -> str:
    """The first line of a plugin's docstring, read from its file without importing it."""
    with open(os.path.join(_path(folder), name + ".py"), encoding="utf-8") as file:
        return file.readline().strip().strip('"')


def _path(folder: str) -> str:
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), folder)
