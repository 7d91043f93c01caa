"""A tool's handles for names: each is made once, and their number is bounded."""

from __future__ import annotations

from collections.abc import Callable

from sonde.job.mirrors._plain import clean

MOST = 10_000
REST = "(other names)"

Key = tuple[str | None, str, str]  # domain, name, kind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Handles = dict[Key, Any]
else:
    Handles = dict


class Made(Handles):
    """The results of `make(domain, name, kind)`, by these three.

    A tool keeps a name until the program ends. One that makes a new name for every step would grow
    without end, so names beyond the first 10,000 are passed on as one."""

    def __init__(self, make: Callable[[str | None, str, str], object]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: Key) -> object:
        domain, name, kind = key
        if len(self) >= MOST and name is not REST:
            return self[None, REST, kind]
        made = self[key] = self._make(
            domain if domain is None else clean(domain), clean(name), kind
        )
        return made
