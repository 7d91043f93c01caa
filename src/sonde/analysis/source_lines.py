"""Lines of source text, where the file is here and is still the one that ran."""

from __future__ import annotations

import linecache
import os
from functools import lru_cache


@lru_cache(4096)
def read_source(file: str, line: int, before_ns: int) -> str:
    """Return a line of source text; nothing if the file is not here, or was changed since."""
    try:
        if os.stat(file).st_mtime_ns > before_ns:
            return ""
    except (OSError, ValueError):
        return ""
    return linecache.getline(file, line).strip()
