"""A tool's handles for names: each is created once, and their number is bounded."""

from __future__ import annotations

from collections.abc import Callable

from sonde.job.mirrors._plain import clean

MAX_NAMES = 10_000
REST = "(other names)"

Key = tuple[str | None, str, str]  # domain, name, kind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Handles = dict[Key, Any]
else:
    Handles = dict


class HandleTable(Handles):
    """Handles by domain, name and kind; `make(domain, name, kind)` creates one when first needed.

    A tool keeps a name until the program ends. A program that makes a new name for every step would
    let the tool grow without bound, so all names beyond the first 10,000 share one."""

    def __init__(self, make: Callable[[str | None, str, str], object]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: Key) -> object:
        domain, name, kind = key
        if len(self) >= MAX_NAMES and name is not REST:
            return self[None, REST, kind]
        handle = self[key] = self._make(
            domain if domain is None else clean(domain), clean(name), kind
        )
        return handle
