"""The views of captures: python.torch_capture, python.torch_op and python.torch_kernel."""

from __future__ import annotations

import bisect
import json
import os
from collections.abc import Iterator, Sequence
from functools import lru_cache

from sonde.errors import Damaged
from sonde.session import Session, captures
from sonde.session.torch_records import CaptureAbout
from sonde.store.archive import read_segment
from sonde.store.kineto_file import DeviceSpan, HostSpan, KinetoTrace, find_op, nest, read_trace
from sonde.store.rows import open_tables
from sonde.store.view import Row, view_of_rows

_MODULES = "python.torch_trace"
_KEPT = 2  # trace files kept in memory: one query reads the same file several times


# ---- captures ------------------------------------------------------------------------------------


def _list_captures(session: Session) -> Iterator[tuple[str, CaptureAbout | None]]:
    for capture_id in captures.list_ids(session.folder):
        try:
            yield capture_id, captures.read_about(session.folder, capture_id)
        except Damaged:
            yield capture_id, None


def _read_captures(session: Session) -> Iterator[Row]:
    for capture_id, about in _list_captures(session):
        if about is None:
            yield {"capture": capture_id, "state": "damaged", "why": "the request cannot be read"}
        else:
            yield _describe_capture(session, about)


def _describe_capture(session: Session, about: CaptureAbout) -> Row:
    state, why = about.state, about.why
    path = _find_file(session, about)
    if path is not None and _measure(path) != about.bytes:
        state, why = "damaged", f"{os.path.basename(path)} is missing or has another size"
    elif state not in captures.FINAL and not session.is_alive():
        # The trace file is complete before it is compressed; a capture that got less far is lost.
        state, why = (
            (captures.DONE, why) if path else (captures.FAILED, f"the job ended while {state}")
        )
    bounds = about.bounds or []
    begin_ns, end_ns = about.begin_ns, about.end_ns
    return {
        "capture": about.id, "state": state, "why": why, "file": path,
        "file_bytes": about.bytes, "t_ns": begin_ns,
        "dur_ns": None if begin_ns is None or end_ns is None else end_ns - begin_ns,
        "asked_t_ns": about.asked_ns, "asked_steps": about.steps,
        "first_step": bounds[0][0] if bounds else None,
        "steps": max(0, len(bounds) - 1) if bounds else None,
        "thread": about.thread, "device": about.device, "torch": about.torch,
        "held_ns": _sum_held(about),
    }  # fmt: skip


def _sum_held(about: CaptureAbout) -> int | None:
    if about.start_ns is None:
        return None
    return about.start_ns + (about.stop_ns or 0) + (about.save_ns or 0)


def _find_file(session: Session, about: CaptureAbout) -> str | None:
    name = about.file
    if name is None or os.sep in name:
        return None
    return session.path(captures.FOLDER, name)


def _measure(path: str) -> int | None:
    try:
        return os.path.getsize(path)
    except OSError:
        return None


# ---- contents ------------------------------------------------------------------------------------


class CaptureContents:
    """The contents of one capture on the session's clock, with steps and modules."""

    def __init__(self, session: Session, about: CaptureAbout, path: str) -> None:
        if about.anchors is None or about.begin_ns is None or about.end_ns is None:
            raise ValueError("it has no times")
        self.id, self._anchors = about.id, sorted(about.anchors)
        self.begin_ns, self.end_ns = about.begin_ns, about.end_ns
        bounds = about.bounds or []
        self._steps = [number for number, _ in bounds]
        self._starts = [start for _, start in bounds]
        found = _load(path, os.stat(path).st_mtime_ns)
        self.threads = self._cut(found.spans)
        self.works = [work for work in found.works if self._has(work.launch or work)]
        _assign(self, session)

    def _cut(self, spans: Sequence[HostSpan]) -> list[list[HostSpan]]:
        """Return the spans by thread; one that is still open lasts until the capture ends."""
        threads: dict[int, list[HostSpan]] = {}
        for span in filter(self._has, spans):
            span.dur_ns = min(span.dur_ns, self.end_ns - self.convert(span.start_ns))
            threads.setdefault(span.thread, []).append(span)
        return [nest(mine) for mine in threads.values()]

    def _has(self, one: HostSpan | DeviceSpan) -> bool:
        """Tell whether this lies in the requested steps: torch may have recorded more."""
        return self.begin_ns <= self.convert(one.start_ns) < self.end_ns

    def convert(self, wall_ns: int) -> int:
        """Return a time of Kineto's wall clock on the session's clock."""
        (wall0, mono0), (wall1, mono1) = self._anchors[0], self._anchors[-1]
        if wall1 <= wall0:
            return wall_ns - wall0 + mono0
        # The wall clock runs a little faster or slower than ours while it is being adjusted.
        drift = (mono1 - mono0) - (wall1 - wall0)
        return wall_ns - wall0 + mono0 + drift * (wall_ns - wall0) // (wall1 - wall0)

    def find_step(self, t_ns: int) -> int | None:
        at = bisect.bisect_right(self._starts, t_ns) - 1
        return self._steps[at] if self._steps and at >= 0 else None


@lru_cache(maxsize=_KEPT)
def _load(path: str, _changed_ns: int) -> KinetoTrace:
    return read_trace(path)


def open_captures(session: Session) -> Iterator[CaptureContents]:
    """Yield the captures that have a trace file; raise Damaged if one cannot be read."""
    for _capture_id, about in _list_captures(session):
        path = None if about is None else _find_file(session, about)
        if about is None or path is None or about.state == captures.FAILED:
            continue
        if _measure(path) is None:
            raise Damaged(f"{path} is missing; remove {about.id}{captures.ABOUT} as well")
        try:
            yield CaptureContents(session, about, path)
        except (KeyError, TypeError, ValueError, IndexError):
            raise Damaged(f"{path} does not match its description; remove it") from None


def _assign(capture: CaptureContents, session: Session) -> None:
    """Assign to each span the module that was running: nodes of a backward pass by the number that
    autograd gave them in the forward pass, other spans by time and thread."""
    modules = _read_modules(session, capture)
    owners: dict[object, str | None] = {}
    makers: dict[object, int] = {}
    for spans in capture.threads:
        for span, module in _sweep(capture, spans, modules.get(spans[0].thread, [])):
            span.module = module
            number = span.args.get("Sequence number")
            if number is None or _is_backward(span):
                continue
            # The newest span with this number owns it. Each thread counts on its own.
            if makers.setdefault(number, span.thread) == span.thread:
                owners[number] = module
            else:
                owners.pop(number, None)
    for span in (span for spans in capture.threads for span in spans):
        _assign_backward(span, owners)


def _assign_backward(span: HostSpan, owners: dict[object, str | None]) -> None:
    number, parent = span.args.get("Sequence number"), span.parent
    if _is_backward(span) and number in owners:
        span.module = owners[number]
    elif (
        parent is not None
        and parent.module is not None
        # A node's work belongs to its own module, not to an enclosing one. Parents come first.
        and (span.module is None or parent.module.startswith(f"{span.module}."))
    ):
        span.module = parent.module


def _is_backward(span: HostSpan) -> bool:
    return bool(span.args.get("Fwd thread id"))


def _sweep(
    capture: CaptureContents, spans: list[HostSpan], modules: list[tuple[int, int, str]]
) -> Iterator[tuple[HostSpan, str | None]]:
    """Yield each span with the innermost module call that was running when the span began."""
    is_open: list[tuple[int, str]] = []
    at = 0
    for span in spans:
        t_ns = capture.convert(span.start_ns)
        while at < len(modules) and modules[at][0] <= t_ns:
            start_ns, dur_ns, name = modules[at]
            while is_open and is_open[-1][0] <= start_ns:
                is_open.pop()
            is_open.append((start_ns + dur_ns, name))
            at += 1
        while is_open and is_open[-1][0] <= t_ns:
            is_open.pop()
        yield span, is_open[-1][1] if is_open else None


def _read_modules(
    session: Session, capture: CaptureContents
) -> dict[int, list[tuple[int, int, str]]]:
    """Return the module calls during a capture, by thread, outer calls first."""
    import pyarrow.compute as pc  # only here: few recordings have captures

    table = open_tables(session).get(_MODULES)
    if table is None:
        return {}
    names = ["t_ns", "duration", "thread", "module", "depth"]
    parts = [read_segment(part) for part in table.list_sound()] + [table.read_live()]
    found: dict[int, list[tuple[int, int, int, str]]] = {}
    for part in parts:
        rows = part.select(names)
        near = pc.and_(pc.less(rows["t_ns"], capture.end_ns),
                       pc.greater(rows["t_ns"], capture.begin_ns - 3600 * 10**9))  # fmt: skip
        for row in rows.filter(near).to_pylist():
            dur_ns = round(row["duration"] * 1e9)
            if row["t_ns"] + dur_ns > capture.begin_ns:
                mine = found.setdefault(row["thread"], [])
                mine.append((row["t_ns"], row["depth"], dur_ns, row["module"]))
    return {
        thread: [(start, dur, name) for start, _, dur, name in sorted(rows, key=lambda r: r[:2])]
        for thread, rows in found.items()
    }


# ---- rows ----------------------------------------------------------------------------------------


def _read_ops(session: Session) -> Iterator[Row]:
    for capture in open_captures(session):
        for span in (span for spans in capture.threads for span in spans):
            t_ns = capture.convert(span.start_ns)
            args = span.args
            yield {
                "capture": capture.id, "t_ns": t_ns, "dur_ns": span.dur_ns, "self_ns": span.self_ns,
                "op": span.name, "kind": span.kind, "thread": span.thread, "depth": span.depth,
                "sequence": args.get("Sequence number"), "backward": _is_backward(span),
                "input_shapes": _dump(args.get("Input Dims")),
                "input_types": _dump(args.get("Input type")),
                "correlation": args.get("correlation"), "module": span.module,
                "step": capture.find_step(t_ns),
            }  # fmt: skip


def _read_kernels(session: Session) -> Iterator[Row]:
    for capture in open_captures(session):
        for work in capture.works:
            yield _describe_work(capture, work)


def _describe_work(capture: CaptureContents, work: DeviceSpan) -> Row:
    args, launch, op = work.args, work.launch, find_op(work.launch)
    t_ns = capture.convert(work.start_ns)
    launch_t_ns = None if launch is None else capture.convert(launch.start_ns)
    return {
        "capture": capture.id, "t_ns": t_ns, "dur_ns": work.dur_ns, "kernel": work.name,
        "kind": work.kind, "device": args.get("device"), "stream": args.get("stream"),
        "correlation": args.get("correlation"), "op": None if op is None else op.name,
        "launch_t_ns": launch_t_ns, "launch_thread": None if launch is None else launch.thread,
        "grid": _dump(args.get("grid")), "block": _dump(args.get("block")),
        "registers": args.get("registers per thread"), "shared_bytes": args.get("shared memory"),
        "copied_bytes": args.get("bytes"), "step": capture.find_step(launch_t_ns or t_ns),
        "module": None if launch is None else (op or launch).module,
    }  # fmt: skip


def _dump(value: object) -> str | None:
    return None if value is None else json.dumps(value, separators=(",", ":"))


CAPTURE = view_of_rows(
    "python.torch_capture",
    "Captures: a few steps that `sonde capture` recorded with torch's own profiler.",
    _read_captures,
    ("capture", "text", "", "id of the capture; ranks that were asked together share it"),
    ("state", "text", "", "asked, waiting, recording, writing, packing, done, failed, damaged"),
    ("why", "text", "", "why it failed, or why it is not all that was asked for"),
    ("file", "text", "", "path of the trace file that torch wrote"),
    ("file_bytes", "i64", "B", "size of the trace file"),
    ("t_ns", "i64", "ns", "when recording began"),
    ("dur_ns", "i64", "ns", "how long it recorded"),
    ("asked_t_ns", "i64", "ns", "when it was asked for"),
    ("asked_steps", "i64", "", "how many steps were asked for; NULL if a duration was"),
    ("first_step", "i64", "", "number of its first step: see python.torch_step"),
    ("steps", "i64", "", "how many complete steps it contains"),
    ("thread", "i64", "", "kernel thread id of the recorded thread"),
    ("device", "text", "", "cuda if a device was recorded as well"),
    ("torch", "text", "", "version of torch"),
    ("held_ns", "i64", "ns", "how long starting, stopping and saving held up the program"),
)
VIEWS = (
    CAPTURE,
    view_of_rows(
        "python.torch_op",
        "Every operator in the captures: what torch did on the host.",
        _read_ops,
        ("capture", "text", "", "id of the capture: see python.torch_capture"),
        ("t_ns", "i64", "ns", "start"),
        ("dur_ns", "i64", "ns", "duration, including what it called"),
        ("self_ns", "i64", "ns", "duration without what it called"),
        ("op", "text", "", "name of the operator: aten::mm"),
        ("kind", "text", "", "op, annotation, runtime (a CUDA call) or python"),
        ("thread", "i64", "", "kernel thread id"),
        ("depth", "i64", "", "nesting depth; 0 was not called by another operator"),
        ("sequence", "i64", "", "autograd's number: the same in the forward and the backward pass"),
        ("backward", "bool", "", "it belongs to a backward pass"),
        ("input_shapes", "text", "", "shapes of its inputs, as JSON"),
        ("input_types", "text", "", "types of its inputs, as JSON"),
        ("correlation", "i64", "", "of a runtime call: its launches in python.torch_kernel"),
        ("module", "text", "", "the module that was running: see python.torch_trace"),
        ("step", "i64", "", "number of its step: see python.torch_step"),
    ),
    view_of_rows(
        "python.torch_kernel",
        "Every kernel and copy in the captures: what ran on the devices.",
        _read_kernels,
        ("capture", "text", "", "id of the capture: see python.torch_capture"),
        ("t_ns", "i64", "ns", "start on the device"),
        ("dur_ns", "i64", "ns", "how long it ran"),
        ("kernel", "text", "", "name of the kernel"),
        ("kind", "text", "", "kernel, memcpy or memset"),
        ("device", "i64", "", "number of the device"),
        ("stream", "i64", "", "number of the stream"),
        ("correlation", "i64", "", "the call in python.torch_op that launched it"),
        ("op", "text", "", "the operator that launched it"),
        ("launch_t_ns", "i64", "ns", "when the host launched it"),
        ("launch_thread", "i64", "", "kernel thread id of the thread that launched it"),
        ("grid", "text", "", "number of blocks, as JSON"),
        ("block", "text", "", "threads per block, as JSON"),
        ("registers", "i64", "", "registers per thread"),
        ("shared_bytes", "i64", "B", "shared memory per block"),
        ("copied_bytes", "i64", "B", "bytes moved by a copy"),
        ("module", "text", "", "the module that was running when it was launched"),
        ("step", "i64", "", "number of the step in which it was launched"),
    ),
)
