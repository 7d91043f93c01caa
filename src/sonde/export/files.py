"""Files that an exporter writes: whole or not at all."""

from __future__ import annotations

import contextlib
import gzip
import os
from collections.abc import Callable
from types import ModuleType
from typing import IO, Any, cast

from sonde.analysis.profile import Profile
from sonde.errors import Error


def write_file(path: str, exporter: ModuleType, profile: Profile) -> None:
    """Write what an exporter makes of a profile; see write_with."""
    # Some formats are packed by themselves.
    packed = path.endswith(".gz") and not exporter.SUFFIX.endswith(".gz")
    write_with(path, exporter.TEXT, packed, lambda file: exporter.write(profile, file))


def write_with(path: str, text: bool, packed: bool, write: Callable[[IO[Any]], None]) -> None:
    """Write it whole or not at all: beside its place first, then under its name; with gzip if it
    is to be packed.

    A pipe or a device is written as it is: a file must not take its place."""
    if os.path.exists(path) and not os.path.isfile(path):
        with open_file(path, text, packed) as file:
            write(file)
        return
    folder, name = os.path.split(path)
    hidden = os.path.join(folder, f".{name}.{os.getpid()}.tmp")
    try:
        # Its name can be foretold: what another user has put there is not written through.
        with open_file(hidden, text, packed, "x") as file:
            write(file)
        os.replace(hidden, path)
    except OSError as error:
        raise Error(f"{path}: {error.strerror}") from None
    finally:
        # Gone already if all went well.
        with contextlib.suppress(OSError):
            os.unlink(hidden)


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
