"""Settings in files: the table `[tool.sonde]` of a pyproject.toml, and a file of the user.

They are read line by line, and in the same way by every Python: 3.10 has no tomllib, and importing
it takes a good part of the time that a start has. Settings are flat, so lines are enough."""

from __future__ import annotations

import os
import stat

from sonde.errors import ConfigError
from sonde.settings import read_values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PROJECT, TABLE = "pyproject.toml", "tool.sonde"
_MOST_BYTES = 2**20


class FileSetting:
    """One setting in a file: its name as it is written there, its value, and where it stands."""

    __slots__ = ("name", "origin", "raw")

    def __init__(self, name: str, raw: str, origin: str) -> None:
        self.name, self.raw, self.origin = name, raw, origin


FileSettings = dict[str, list[FileSetting]]  # by folded name; the last of a name counts


def fold(name: str) -> str:
    """Return what is the same for all spellings of a name: stack.every, stack_every, stack-every.

    The second is needed beside `archive`: in TOML that cannot be a value and a table at once."""
    return name.lower().replace("-", "_").replace(".", "_")


def list_unknown(found: FileSettings, names: Iterable[str]) -> list[str]:
    """Return a complaint about each setting in a file that is not one of these."""
    complaints = []
    for name in found.keys() - {fold(known) for known in names}:
        # The limits of advice are the tool's own: the job does not know the rules.
        for one in found[name] if not name.startswith("advice_") else ():
            try:
                read_values({one.name: one.raw})
            except ConfigError as error:
                complaints.append(f"{one.origin}: {error}")
    return complaints


def read_files(user_file: str | None, folder: str | None) -> tuple[FileSettings, list[str]]:
    """Return the settings of the user's file, then those of the project that a folder is part of,
    and complaints about what could not be used. There may be no file at all."""
    found, complaints = list[FileSetting](), list[str]()
    if user_file is not None:
        _read_file(user_file, "", found, complaints)
    while folder is not None:
        if _read_file(os.path.join(folder, PROJECT), TABLE, found, complaints):
            break
        upper = os.path.dirname(folder)
        folder = None if upper == folder else upper
    folded = FileSettings()
    for one in found:
        folded.setdefault(fold(one.name), []).append(one)
    return folded, complaints


def _read_file(path: str, table: str, found: list[FileSetting], complaints: list[str]) -> bool:
    """Add what a file sets; return whether the file is ours and has the table."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return False
        data = os.read(fd, _MOST_BYTES)
        if table.encode() not in data:
            return False
        if why := _find_stranger(fd, path):
            complaints.append(f"{path} is not used: {why}")
            return False
    except OSError as error:
        complaints.append(f"{path} is not used: {error.strerror}")
        return False
    finally:
        os.close(fd)
    has_table = False
    for number, name, raw in _list_lines(data.decode("utf-8", "replace"), table):
        has_table = True
        origin = f"{path}:{number}"
        if raw is not None:
            found.append(FileSetting(name, raw, origin))
        elif name:
            complaints.append(f'{origin} is not understood; settings look like stack.every = "5ms"')
    return has_table


def _find_stranger(fd: int, path: str) -> str | None:
    """Return who else could have written a file, or put it where it is; None if nobody could.

    A setting can send a recording to another place, so a file that somebody else left in a shared
    folder must not be able to."""
    trusted = (0, os.geteuid())
    status = os.fstat(fd)
    for one in (status, os.lstat(path), os.stat(os.path.dirname(path))):
        if one.st_uid not in trusted:
            return f"it, or its folder, belongs to user {one.st_uid}"
    # Many systems give each user a group of their own, and then files that it may write to.
    if status.st_mode & 0o002 or (status.st_mode & 0o020 and status.st_gid != os.getegid()):
        return f"other users can write to it; run `chmod go-w {path}`"
    return None


def _list_lines(text: str, table: str) -> Iterator[tuple[int, str, str | None]]:
    """Yield number, name and value of each line in the table: None as the value of a line that is
    not understood, an empty name for the line with the table's own name."""
    inside = "" if table == "" else f"{table}."
    header = ""
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if line.startswith("["):
            header = _plain(line.lstrip("[").partition("]")[0]) + "."
            if header == inside:
                yield number, "", None
            continue
        name, equals, value = line.partition("=")
        whole = header + _plain(name)
        if not line or line.startswith("#") or not (whole + ".").startswith(inside):
            continue
        yield number, whole[len(inside) :] or "?", _read_value(value.strip()) if equals else None


def _plain(key: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in key.split("."))


def _read_value(text: str) -> str | None:
    """Return a text, a number, a switch, or a list of texts in one line, as it would be on the
    command line; None if it is none of these."""
    quote = text[:1]
    if quote == "[":
        inner, closing, rest = text[1:].partition("]")
        parts = [part.strip() for part in inner.split(",") if part.strip()]
        words = [_read_value(part) for part in parts if part[:1] in ("'", '"')]
        is_list = closing and rest.strip()[:1] in ("", "#") and len(words) == len(parts)
        return " ".join(map(str, words)) if is_list and None not in words else None
    if quote in ("'", '"'):
        inner, closing, rest = text[1:].partition(quote)
        is_plain = (
            closing and rest.strip()[:1] in ("", "#") and not (quote == '"' and "\\" in inner)
        )
        return inner if is_plain else None
    word = text.partition("#")[0].strip().replace("_", "")
    if word in ("true", "false"):
        return word
    try:
        float(word)
    except ValueError:
        return None
    return word
