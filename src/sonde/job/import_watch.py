"""Wait until the program has imported something, without taking part in any import."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class ImportWatch:
    """Calls `then` once, at the first import after `is_here()` has become true.

    It is in sys.meta_path only to notice imports. It finds nothing itself and touches no spec and
    no loader, so modules are the same as without it. `then` runs at the import that follows the
    awaited one."""

    def __init__(self, is_here: Callable[[], bool], then: Callable[[], object]) -> None:
        self._is_here, self._then = is_here, then
        self._is_waiting = False

    def start(self) -> None:
        self._is_waiting = True
        # Changed in place: an import that is iterating over the list merely asks one finder twice.
        sys.meta_path.insert(0, self)

    def stop(self) -> None:
        self._is_waiting = False
        if self in sys.meta_path:
            # Replaced by a new list: removed in place, an import that is iterating over it would
            # skip the finder that moved into our position, and not find its module.
            sys.meta_path = [finder for finder in sys.meta_path if finder is not self]

    def find_spec(self, _name: str, _path: object = None, _target: object = None) -> None:
        """Check the condition. The import lock is held, so only one thread at a time is here."""
        # The `then` of another watch may import something: we are called for that import, and
        # once more for the one around it.
        if self._is_waiting and self._is_here():
            self.stop()  # first, because `then` may import something, too
            self._then()
