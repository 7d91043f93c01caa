"""The files of a session folder: what the job leaves behind and every reader reads."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sonde.session.folder import Session, list_folders, list_sessions

__all__ = ["Session", "list_folders", "list_sessions"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        # The job writes a session and reads none: it does not load what reads.
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from sonde.session import folder

        return getattr(folder, name)
