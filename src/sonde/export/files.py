"""Files that exporters write: completely or not at all."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from types import ModuleType
from typing import IO, Any, cast

from sonde.analysis.profile import Profile
from sonde.errors import Error
from sonde.session.files import Replacement


def write_file(path: str, exporter: ModuleType, profile: Profile) -> None:
    """Write a profile in the format of an exporter; see write_with."""
    # Some formats are compressed by themselves.
    packed = path.endswith(".gz") and not exporter.SUFFIX.endswith(".gz")
    write_with(path, exporter.TEXT, packed, lambda file: exporter.write(profile, file))


def write_with(path: str, text: bool, packed: bool, write: Callable[[IO[Any]], None]) -> None:
    """Write it whole or not at all: beside its place first, then under its name; with gzip if it
    is to be packed.

    A pipe or a device is written as it is: a file must not take its place."""
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            with open_file(path, text, packed) as file:
                write(file)
            return
        with Replacement(path) as hidden, open_file(hidden, text, packed, "x") as file:
            write(file)
    except BrokenPipeError:  # whoever reads it has seen enough
        raise
    except OSError as error:
        raise Error(f"{path}: {error.strerror}") from None


def open_file(path: str | int, text: bool, packed: bool = False, how: str = "w") -> IO[Any]:
    """A file to be written, as text or not, with gzip or not; `how` is x if it must be new."""
    if packed:
        # Level 4: half as large as level 1, and twice as fast as the usual 9.
        if not text:
            return cast(IO[Any], gzip.open(str(path), f"{how}b", 4))
        return cast(IO[Any], gzip.open(
            str(path), f"{how}t", 4, encoding="utf-8", errors="backslashreplace", newline="\n"
        ))  # fmt: skip
    if text:
        return open(path, how, encoding="utf-8", errors="backslashreplace", newline="\n")
    return open(path, f"{how}b")
