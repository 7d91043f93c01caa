"""A folder is a registry; a file is a plugin; its name is the file's name."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

PACKAGE = os.path.dirname(os.path.abspath(__file__))

# Read once: each access to a file releases the GIL, and a busy program is slow to give it back.
_names: dict[str, tuple[str, ...]] = {}
_texts: dict[tuple[str, str], str] = {}


def list_names(folder: str) -> tuple[str, ...]:
    """Return the plugins of a folder, sorted, without importing any of them."""
    if folder not in _names:
        _names[folder] = _find_names(folder)
    return _names[folder]


def _find_names(folder: str) -> tuple[str, ...]:
    names = (os.path.splitext(entry) for entry in os.listdir(_path(folder)))
    return tuple(sorted(stem for stem, end in names if end == ".py" and not stem.startswith("_")))


def load(folder: str, name: str) -> ModuleType:
    """Import one plugin."""
    module = f"sonde.{folder}.{name}"
    __import__(module)  # importlib would be one more import in the job
    return sys.modules[module]


def read_help(folder: str, name: str) -> str:
    """Return the first line of a plugin's docstring without importing the plugin."""
    return _read(folder, name).partition("\n")[0].strip().strip('"')


def read_on(folder: str, name: str) -> bool:
    """Return a plugin's constant `ON` without importing it: is it on unless switched off?"""
    return _read_bool(folder, name, "ON")


def read_in_order(folder: str, name: str) -> bool:
    """Return a format's constant `IN_ORDER` without importing it: does time's order count?"""
    return _read_bool(folder, name, "IN_ORDER")


def read_needs(folder: str, name: str) -> tuple[str, ...]:
    """Return a plugin's constant `NEEDS` without importing it: modules that it waits for."""
    value = _find_constant(folder, name, "NEEDS")
    if not (value.startswith("(") and value.endswith(")")):
        raise ValueError(f'{folder}/{name}.py: NEEDS = {value}; write () or ("torch",)')
    words = (word.strip() for word in value[1:-1].split(","))
    return tuple(word.strip("\"'") for word in words if word)


def read_group(folder: str, name: str) -> str:
    """Return a command's constant `GROUP` without importing it: where the help lists it."""
    return _find_constant(folder, name, "GROUP").strip("\"'")


def _read_bool(folder: str, name: str, constant: str) -> bool:
    value = _find_constant(folder, name, constant)
    if value not in ("True", "False"):
        raise ValueError(f"{folder}/{name}.py: {constant} = {value}; write True or False")
    return value == "True"


def _find_constant(folder: str, name: str, constant: str) -> str:
    """Return what stands behind `constant = ` on a line of its own. `ast` takes 4 ms to import."""
    start = f"\n{constant} = "
    _before, found, after = _read(folder, name).partition(start)
    if not found or start in after:
        raise ValueError(f"{folder}/{name}.py must say `{constant} = …` on one line of its own")
    return after.partition("\n")[0].partition("#")[0].strip()


def _read(folder: str, name: str) -> str:
    if (folder, name) not in _texts:
        # Without the layers of open(): they ask the file three more questions.
        fd = os.open(os.path.join(_path(folder), name + ".py"), os.O_RDONLY | os.O_CLOEXEC)
        try:
            _texts[folder, name] = os.read(fd, 2**16).decode()
        finally:
            os.close(fd)
    return _texts[folder, name]


def _path(folder: str) -> str:
    return os.path.join(PACKAGE, *folder.split("."))
