"""Names and values as C code takes them."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def clean(text: str) -> str:
    """Return a whole name in UTF-8; what UTF-8 cannot hold is escaped."""
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()


def to_float(value: Any) -> float:
    """Return the value of a counter; an integer too large for a float becomes infinite."""
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
