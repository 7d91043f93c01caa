"""The contents of the JSON files about PyTorch: captures, and out-of-memory errors."""

from __future__ import annotations

from sonde.session.records import Record

# ---- captures -------------------------------------------------------------------------------


class CaptureAbout(Record):
    """captures/<id>.about.json: the request for a capture, and its state."""

    id: str
    state: str
    why: str | None = None
    asked_ns: int
    deadline_ns: int
    timeout_s: float
    steps: int | None
    duration_s: float | None
    ranks: int
    shapes: bool
    memory: bool
    stacks: bool
    # The job adds the rest.
    step: int | None = None
    begin_ns: int | None = None
    end_ns: int | None = None
    start_ns: int | None = None
    stop_ns: int | None = None
    save_ns: int | None = None
    pack_ns: int | None = None
    thread: int | None = None
    device: str | None = None
    torch: str | None = None
    anchors: list[tuple[int, int]] | None = None  # moments on the wall and the monotonic clock
    bounds: list[tuple[int, int]] | None = None  # number and start of each step
    file: str | None = None
    bytes: int | None = None


class CaptureGo(Record):
    """captures/<id>.go.json: the step that all ranks begin a capture with."""

    first_step: int


class CaptureStop(Record):
    """captures/<id>.stop.json: an empty record whose existence cancels the capture."""


# ---- out of memory --------------------------------------------------------------------------


class OomBlocks(Record):
    """Blocks of one size that were in use."""

    size_bytes: int
    blocks: int


class OomSegments(Record):
    """A summary of the allocator's memory."""

    segments: int
    blocks: int
    free_blocks: int
    free_bytes: int
    largest_free_bytes: int
    most_used: list[OomBlocks]  # the sizes that took up the most memory, largest sum first


class OomStep(Record):
    """One of the last steps before memory ran out."""

    step: int
    t_ns: int
    dur_ns: int


class Oom(Record):
    """oom-<n>.json: the state of the program when a device ran out of memory."""

    number: int
    t_ns: int
    wall_ns: int
    step: int
    thread: int
    device: str
    # Unknown for a device whose allocator has no observer.
    needed_bytes: int | None = None
    free_bytes: int | None = None
    total_bytes: int | None = None
    allocated_bytes: int | None = None
    cached_bytes: int | None = None
    largest_free_bytes: int | None = None
    segments: OomSegments | None = None
    stats: dict[str, object] | None = None  # counters of the allocator, as torch names them
    stacks: dict[str, list[str]] | None = None  # by thread; the innermost frame first
    last_steps: list[OomStep]
    # Only if the error ended the program.
    exception: str | None = None
    traceback: list[str] | None = None
