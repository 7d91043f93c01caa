"""What a job and the process that writes its trace files agree on: file names and windows.

Windows are a list of times: begin, end, begin, …; the last window is open if it has no end."""

from __future__ import annotations

import os
from collections.abc import Sequence

_EVER_NS = 2**63 - 1


def join(ends: Sequence[int], most: int) -> list[int]:
    """Return at most `most` windows that cover the same time; the closest ones are joined."""
    if len(ends) <= 2 * most:
        return list(ends)
    is_open = len(ends) % 2 == 1
    whole = [*ends, _EVER_NS] if is_open else list(ends)
    gaps = sorted(whole[at] - whole[at - 1] for at in range(2, len(whole), 2))
    least_ns = gaps[-most]
    joined = whole[:1]
    for at in range(2, len(whole), 2):
        if whole[at] - whole[at - 1] > least_ns:
            joined += whole[at - 1 : at + 1]
    return joined if is_open else [*joined, whole[-1]]


def name_file(path: str, part: str, *, before: bool) -> str:
    """Return a file next to `path`: its name with `part` in front, or before its suffixes."""
    folder, name = os.path.split(path)
    if before:
        return os.path.join(folder, part + name)
    # `.json.gz` counts as one suffix, because viewers go by it.
    stem, dot, suffixes = name.partition(".") if not name.startswith(".") else (name, "", "")
    return os.path.join(folder, f"{stem}{part}{dot}{suffixes}")
