"""Names and values as C code takes them."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def clean(text: str) -> str:
    """A name in UTF-8, whole, with what that does not have written out."""
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()


def to_float(value: Any) -> float:
    """The value of a counter; a whole number that is too large for a float is infinite."""
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
