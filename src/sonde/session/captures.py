"""Captures: torch's own profiler for a few steps, requested by the tool and run by the job.

A capture is a file in the session with the request and its state, next to the trace. The tool
writes the file once and rings; from then on only the job writes it."""

from __future__ import annotations

import os
import time

from sonde import _core
from sonde.errors import Damaged
from sonde.session.files import OwnFolder
from sonde.session.records import Record
from sonde.session.torch_records import CaptureAbout

FOLDER, ABOUT, RAW, PACKED = "captures", ".about.json", ".json", ".json.gz"
STOP, GO = ".stop.json", ".go.json"  # the tool writes these later: to cancel; the first step

# The states of a capture, in this order. PACKING: the trace is written but not compressed yet.
ASKED, WAITING, RECORDING, WRITING, PACKING, DONE, FAILED = (
    "asked", "waiting", "recording", "writing", "packing", "done", "failed",
)  # fmt: skip
FINAL = (DONE, FAILED)

MAX_STEPS = 1000
TIMEOUT_S = 60.0


class CaptureOptions:
    """What a capture should be like."""

    __slots__ = ("duration_s", "memory", "ranks", "shapes", "stacks", "steps", "timeout_s")

    def __init__(
        self,
        *,
        steps: int | None = 3,
        duration_s: float | None = None,
        timeout_s: float = TIMEOUT_S,
        shapes: bool = True,
        memory: bool = False,
        stacks: bool = False,
        ranks: int = 1,
    ) -> None:
        self.steps, self.duration_s, self.timeout_s = steps, duration_s, timeout_s
        self.shapes, self.memory, self.stacks, self.ranks = shapes, memory, stacks, ranks


def make_id() -> str:
    """Make an id for a capture; all ranks of a job get the same one."""
    wall_ns = time.time_ns()
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(wall_ns // 10**9))
    return f"capture-{stamp}.{wall_ns % 10**9 // 1000:06d}-{os.getpid()}"


def is_id(word: str) -> bool:
    """Return whether a word is the id of a capture."""
    return word.startswith("capture-") and os.sep not in word


def name_file(folder: str, capture_id: str, suffix: str) -> str:
    """Return the path of one of a capture's files."""
    return os.path.join(folder, FOLDER, capture_id + suffix)


def write_request(folder: str, capture_id: str, options: CaptureOptions) -> None:
    """Write a request for a capture; the job reads it when its control page rings."""
    now_ns = _core.clock_ns()
    about = CaptureAbout(
        id=capture_id, state=ASKED, asked_ns=now_ns,
        deadline_ns=now_ns + round(options.timeout_s * 1e9), timeout_s=options.timeout_s,
        steps=options.steps, duration_s=options.duration_s, ranks=options.ranks,
        shapes=options.shapes, memory=options.memory, stacks=options.stacks,
    )  # fmt: skip
    write_about(folder, about)


def write_about(folder: str, about: CaptureAbout) -> None:
    """Write the state of a capture."""
    write_file(folder, about.id, ABOUT, about)


def write_file(folder: str, capture_id: str, suffix: str, record: Record) -> None:
    """Write one of a capture's files."""
    with OwnFolder(folder, FOLDER, make=True) as own:
        record.write(os.path.join(own, capture_id + suffix))


def read_about(folder: str, capture_id: str) -> CaptureAbout:
    """Return the state of a capture; raise Damaged if it cannot be read."""
    path = name_file(folder, capture_id, ABOUT)
    try:
        return CaptureAbout.read(path)
    except FileNotFoundError:
        raise Damaged(f"{path} is missing") from None


def list_ids(folder: str) -> list[str]:
    """Return the ids of a session's captures, the oldest first."""
    try:
        names = os.listdir(os.path.join(folder, FOLDER))
    except OSError:
        return []
    return sorted(name.removesuffix(ABOUT) for name in names if name.endswith(ABOUT))
