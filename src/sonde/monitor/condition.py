"""When measuring begins: `--wait-for 'gpu>20 and memory>10'`."""

from __future__ import annotations

import re
from collections.abc import Callable

from sonde.errors import ConfigError
from sonde.monitor.scope import Look

MIB = 2**20
_TERM = re.compile(r"\s*(\w+)\s*([<>])\s*([\d.]+)\s*(?:%|MiB/s)?\s*$")


def _find_share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else 100 * part / whole


def _find_most(values: list[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _find_rate(*parts: float | None) -> float | None:
    known = [part for part in parts if part is not None]
    return sum(known) / MIB if known else None


METRICS: dict[str, tuple[str, Callable[[Look], float | None]]] = {
    "cpu": ("% of one processor", lambda look: look.cpu_pct),
    "gpu": ("% of the busiest GPU", lambda look: _find_most(
        [gpu.util_pct for gpu in look.gpus.values()])),
    "gpu_memory": ("% of the fullest GPU", lambda look: _find_most(
        [_find_share(gpu.used_bytes, gpu.total_bytes) for gpu in look.gpus.values()])),
    "memory": ("% of what there is", lambda look: _find_share(look.used_bytes, look.total_bytes)),
    "disk": ("MiB/s, read and written", lambda look: _find_rate(
        look.read_bytes_s, look.written_bytes_s)),
    "network": ("MiB/s, in and out", lambda look: _find_rate(
        look.received_bytes_s, look.sent_bytes_s)),
}  # fmt: skip


class Condition:
    """Terms that must all hold at one look; without any it holds at once."""

    def __init__(self, text: str | None) -> None:
        self.text = text
        terms = re.split(r"\s+and\s+", text.strip()) if text else []
        self._terms = [_parse(term) for term in terms]

    def holds(self, look: Look) -> bool:
        """Does it hold? A value that cannot be had is neither above nor below anything."""
        for name, sign, limit in self._terms:
            value = METRICS[name][1](look)
            if value is None or not (value > limit if sign == ">" else value < limit):
                return False
        return True


def _parse(term: str) -> tuple[str, str, float]:
    found = _TERM.match(term)
    try:
        if found is None or found[1] not in METRICS:
            raise ValueError
        return found[1], found[2], float(found[3])
    except ValueError:
        known = "; ".join(f"{name} ({unit})" for name, (unit, _find) in METRICS.items())
        raise ConfigError(
            f"--wait-for {term.strip()!r} is not understood; write 'gpu>20', or several with "
            f"`and`; known: {known}"
        ) from None
