"""The files of a session folder: what the job leaves behind and every reader reads."""

from __future__ import annotations

import sys

from sonde.errors import is_in_subinterpreter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sonde.session.folder import Session, list_folders, list_sessions

__all__ = ["Session", "list_folders", "list_sessions"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        # The job writes a session and reads none, so it does not load the readers.
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from sonde.session import folder

        return getattr(folder, name)


class _Package(type(sys)):  # type: ignore[misc]
    """A package that can be called: `sonde.session()`. A function of that name in `sonde` would be
    replaced by this package when Python imports it."""

    def __call__(self) -> Session | None:
        """Return the session of this process, or None if it is not being recorded."""
        try:
            from sonde import _core
            from sonde.session.writer import find_current
        except ImportError as error:
            if not is_in_subinterpreter(error):
                raise
            return None
        folder = find_current()
        # A filter of system calls that the program has installed may forbid to import the readers.
        return None if folder is None or _core.filter_watch() else self.Session(folder)


sys.modules[__name__].__class__ = _Package
