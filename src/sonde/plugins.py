"""A folder is a registry; a file is a plugin; its name is the file's name."""

from __future__ import annotations

import os
from importlib import import_module
from types import ModuleType

PACKAGE = os.path.dirname(os.path.abspath(__file__))

# Read once: each look at a file gives the GIL away, and a busy program is slow to give it back.
_names: dict[str, tuple[str, ...]] = {}
_helps: dict[tuple[str, str], str] = {}


def list_names(folder: str) -> tuple[str, ...]:
    """The plugins of a folder, sorted, without importing any of them."""
    if folder not in _names:
        _names[folder] = _find_names(folder)
    return _names[folder]


def _find_names(folder: str) -> tuple[str, ...]:
    names = (os.path.splitext(entry) for entry in os.listdir(_path(folder)))
    return tuple(sorted(stem for stem, end in names if end == ".py" and not stem.startswith("_")))


def load(folder: str, name: str) -> ModuleType:
    """Import one plugin."""
    return import_module(f"sonde.{folder}.{name}")


def read_help(folder: str, name: str) -> str:
    """The first line of a plugin's docstring, read from its file without importing it."""
    if (folder, name) not in _helps:
        with open(os.path.join(_path(folder), name + ".py"), encoding="utf-8") as file:
            _helps[folder, name] = file.readline().strip().strip('"')
    return _helps[folder, name]


def _path(folder: str) -> str:
    return os.path.join(PACKAGE, *folder.split("."))
