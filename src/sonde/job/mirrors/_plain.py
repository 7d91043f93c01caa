"""Convert names and values to forms that C code accepts."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def clean(text: str) -> str:
    """Return the name with NUL bytes, and whatever UTF-8 cannot encode, escaped."""
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()


def to_float(value: Any) -> float:
    """Return the value of a counter as a float; an integer too large for one becomes infinite."""
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
