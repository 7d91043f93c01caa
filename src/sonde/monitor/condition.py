"""When measuring begins: `--wait-for 'gpu>20 and memory>10'`."""

from __future__ import annotations

import re
from collections.abc import Callable

from sonde.errors import ConfigError
from sonde.monitor.scope import Reading

MIB = 2**20
_TERM = re.compile(r"\s*(\w+)\s*([<>])\s*([\d.]+)\s*(?:%|MiB/s)?\s*$")


def _find_share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else 100 * part / whole


def _find_most(values: list[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _find_rate(*parts: float | None) -> float | None:
    known = [part for part in parts if part is not None]
    return sum(known) / MIB if known else None


METRICS: dict[str, tuple[str, Callable[[Reading], float | None]]] = {
    "cpu": ("% of one processor", lambda reading: reading.cpu_pct),
    "gpu": ("% of the busiest GPU", lambda reading: _find_most(
        [gpu.util_pct for gpu in reading.gpus.values()])),
    "gpu_memory": ("% of the fullest GPU", lambda reading: _find_most(
        [_find_share(gpu.used_bytes, gpu.total_bytes) for gpu in reading.gpus.values()])),
    "memory": ("% of all memory", lambda reading: _find_share(
        reading.used_bytes, reading.total_bytes)),
    "disk": ("MiB/s, read and written", lambda reading: _find_rate(
        reading.read_bytes_s, reading.written_bytes_s)),
    "network": ("MiB/s, in and out, whole machine", lambda reading: _find_rate(
        reading.received_bytes_s, reading.sent_bytes_s)),
}  # fmt: skip


class Condition:
    """Terms that must all hold in one reading; a condition without terms always holds."""

    def __init__(self, text: str | None) -> None:
        self.text = text
        terms = re.split(r"\s+and\s+", text.strip()) if text else []
        self._terms = [_parse(term) for term in terms]

    def holds(self, reading: Reading) -> bool:
        """Tell whether a reading meets it; a value that is not known meets no term."""
        for name, sign, limit in self._terms:
            value = METRICS[name][1](reading)
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
