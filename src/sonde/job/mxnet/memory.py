"""GPU memory as a file: what torch's allocator holds, with the original's columns."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Iterator, Sequence

from sonde.job.source_context import say
from sonde.session.files import Replacement

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

COLUMNS = ("Attribute Name", "Requested Size", "Device", "Actual Size", "Reuse?")


def write_memory(prefix: str, parts: Sequence[str]) -> str | None:
    """`<prefix>-pid_<pid>.csv`: a row for each piece of memory in use; the file. None where torch
    has no GPU in use, or memory is not wanted."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    # Not a call that would make a context on the device: the program decides about that.
    if "memory" not in parts or not getattr(cuda, "is_initialized", bool)():
        return None
    path = f"{prefix}-pid_{os.getpid()}.csv"
    try:
        with (
            Replacement(path) as hidden,
            open(hidden, "x", encoding="utf-8", newline="") as file,
        ):
            lines = csv.writer(file, quoting=csv.QUOTE_MINIMAL)
            lines.writerow(COLUMNS)
            lines.writerows(_list_blocks(cuda))
    except OSError as error:
        say(f"{path} is not written: {error.strerror}")
        return None
    return path


def _list_blocks(cuda: Any) -> Iterator[tuple[str, int, int, int, int]]:
    for segment in cuda.memory_snapshot():
        pool = f"{segment.get('segment_type', 'large')}:"
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                size = block["size"]
                # A segment that is one block was got for it; any other block shares one.
                is_shared = int(size != segment["total_size"])
                requested = block.get("requested_size", size)
                yield pool, requested, segment["device"], size, is_shared
