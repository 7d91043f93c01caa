"""Wait for something that the program imports later, without taking part in any import."""

from __future__ import annotations

import sys
from collections.abc import Callable


class ImportWatch:
    """Calls `then` once, at the first import after `is_here()` became true.

    It is in sys.meta_path only to learn that an import is under way. It finds nothing itself and
    touches no spec and no loader, so modules are what they would be without it. `then` runs at the
    import after the awaited one."""

    def __init__(self, is_here: Callable[[], bool], then: Callable[[], object]) -> None:
        self._is_here, self._then = is_here, then
        self._is_waiting = False

    def start(self) -> None:
        self._is_waiting = True
        # In place: whoever goes through the list right now asks one finder twice, and that is all.
        sys.meta_path.insert(0, self)

    def stop(self) -> None:
        self._is_waiting = False
        if self in sys.meta_path:
            # A new list: out of the old one, an import that goes through it right now would step
            # over the finder that moved into our place, and not find its module.
            sys.meta_path = [finder for finder in sys.meta_path if finder is not self]

    def find_spec(self, _name: str, _path: object = None, _target: object = None) -> None:
        """Check the condition; the import lock is held, so this is one thread at a time."""
        # Another one's `then` may import, which asks us, and then the import around it does again.
        if self._is_waiting and self._is_here():
            self.stop()  # first: what is called now may import, too
            self._then()
