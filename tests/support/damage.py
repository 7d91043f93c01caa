"""Ways to damage a session folder, drawn by dice.

Each takes the dice, a file and the session's folder, and says in words what it did, or None if it
does not apply to that file."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path


def _list_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def cut(dice: random.Random, path: Path, folder: Path) -> str | None:
    size = path.stat().st_size
    left = dice.choice(
        [0, 1, 8, 63, 64, 255, 256, 4096, size - 1, size // 2, dice.randint(0, size)]
    )
    if not 0 <= left < size:
        return None
    os.truncate(path, left)
    return f"cut to {left} of {size} bytes"


def lengthen(dice: random.Random, path: Path, folder: Path) -> str | None:
    with path.open("ab") as file:
        file.write(dice.randbytes(dice.choice([1, 7, 64, 5000])))
    return "garbage behind its end"


def flip(dice: random.Random, path: Path, folder: Path) -> str | None:
    data = bytearray(path.read_bytes())
    if not data:
        return None
    within = dice.choice([len(data), min(len(data), 256)])
    places = [dice.randrange(within * 8) for _ in range(dice.choice([1, 1, 2, 8]))]
    for place in places:
        data[place // 8] ^= 1 << place % 8
    path.write_bytes(data)
    return f"bits flipped: {places}"


def overwrite(dice: random.Random, path: Path, folder: Path) -> str | None:
    data = bytearray(path.read_bytes())
    if len(data) < 8:
        return None
    at = dice.randrange(dice.choice([len(data), min(len(data), 256)]) // 8) * 8
    value = dice.choice([0, 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1, len(data)])
    data[at : at + 8] = value.to_bytes(8, "little")
    path.write_bytes(data)
    return f"{value} at {at}"


def blank(dice: random.Random, path: Path, folder: Path) -> str | None:
    data = bytearray(path.read_bytes())
    first = dice.randrange(len(data) + 1)
    length = min(dice.choice([8, 512, 4096]), len(data) - first)
    data[first : first + length] = bytes(length)
    path.write_bytes(data)
    return f"zeros at {first}, {length} of them"


def remove(dice: random.Random, path: Path, folder: Path) -> str:
    path.unlink()
    return "removed"


def replace_by_garbage(dice: random.Random, path: Path, folder: Path) -> str | None:
    path.write_bytes(dice.randbytes(dice.choice([1, 63, 64, 4096, 20_000])))
    return "garbage"


def replace_by_folder(dice: random.Random, path: Path, folder: Path) -> str | None:
    path.unlink()
    path.mkdir()
    return "a folder"


def replace_by_link(dice: random.Random, path: Path, folder: Path) -> str | None:
    target = dice.choice([path, folder / "nowhere", Path("/dev/zero"), Path("/dev/null"), folder])
    path.unlink()
    path.symlink_to(target)
    return f"a link to {'itself' if target == path else target.name}"


def replace_by_fifo(dice: random.Random, path: Path, folder: Path) -> str | None:
    path.unlink()
    os.mkfifo(path)
    return "a fifo"


def swap(dice: random.Random, path: Path, folder: Path) -> str | None:
    other = dice.choice(_list_files(folder))
    hidden = folder / "hidden"
    path.rename(hidden)
    other.rename(path) if other != path else None
    hidden.rename(other)
    return f"swapped with {other.relative_to(folder)}"


def renumber(dice: random.Random, path: Path, folder: Path) -> str | None:
    if path.suffix != ".parquet":
        return None
    first, last, *rest = path.stem.split("-")
    last = str(dice.choice([int(last) + 7, 2**63, 2**64, 2**64 + 60, 10**25]))
    name = "-".join([first, last.zfill(20), *rest])
    path.rename(path.with_name(f"{name}.parquet"))
    return f"renamed to {name}"


def bump_version(dice: random.Random, path: Path, folder: Path) -> str | None:
    data = bytearray(path.read_bytes())
    if data[:5] == b"SONDE":
        data[8:12] = dice.choice([2, 2**32 - 1]).to_bytes(4, "little")
        path.write_bytes(data)
        return "a newer version"
    if b'"format": 1' in data:
        path.write_bytes(
            data.replace(b'"format": 1', dice.choice([b'"format": 2', b'"format": 1e9']))
        )
        return "a newer format"
    return None


def edit_json(dice: random.Random, path: Path, folder: Path) -> str | None:
    try:
        whole = json.loads(path.read_text()) if path.suffix == ".json" else None
    except ValueError:
        return None  # damaged before
    if not whole:
        return None
    place, words = whole, [path.name]
    while True:
        key = dice.choice(list(place))
        words.append(key)
        if not isinstance(place[key], dict) or not place[key] or dice.random() < 0.2:
            break
        place = place[key]
    odd = [None, True, -1, 2**63, 2**64, 10**30, 1.5, float("nan"), "", "x", "\ud800", "\0", [], {}]
    value = dice.choice([*odd, [[]], ["\udc80"], {"a": 1}])
    place[key] = value
    path.write_text(json.dumps(whole))
    return f"{'.'.join(words)} = {value!r}"


WAYS = (
    cut, lengthen, flip, flip, overwrite, blank, remove, replace_by_garbage, replace_by_folder,
    replace_by_link, replace_by_fifo, swap, renumber, bump_version, edit_json, edit_json,
)  # fmt: skip


def strike(dice: random.Random, folder: Path) -> str:
    """Damage a file of the folder; which and how."""
    while True:
        path, way = dice.choice(_list_files(folder)), dice.choice(WAYS)
        said = way(dice, path, folder)
        if said:
            return f"{path.relative_to(folder)}: {said}"
