"""Write what torch's GPU allocator holds to a file, with the columns of mxnet's."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Iterator, Sequence

from sonde.job.notice import print_notice
from sonde.session.files import Replacement

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

COLUMNS = ("Attribute Name", "Requested Size", "Device", "Actual Size", "Reuse?")


def write_memory(prefix: str, parts: Sequence[str]) -> str | None:
    """Write `<prefix>-pid_<pid>.csv`, a row per block of memory in use, and return its path; None
    if torch uses no GPU or memory is not wanted."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    # is_initialized() creates no context on the device: that is up to the program.
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
        print_notice(f"{path} could not be written: {error.strerror}")
        return None
    return path


def _list_blocks(cuda: Any) -> Iterator[tuple[str, int, int, int, int]]:
    for segment in cuda.memory_snapshot():
        pool = f"{segment.get('segment_type', 'large')}:"
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                size = block["size"]
                # A segment of a single block was allocated for it; other blocks share a segment.
                is_shared = int(size != segment["total_size"])
                requested = block.get("requested_size", size)
                yield pool, requested, segment["device"], size, is_shared
