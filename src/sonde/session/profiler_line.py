"""Windows of time: begin, end, begin, …; the last one is open if they are uneven."""

from __future__ import annotations

from collections.abc import Sequence

_EVER_NS = 2**63 - 1


def join(ends: Sequence[int], most: int) -> list[int]:
    """The same time in at most so many windows: those with the least between them become one."""
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
