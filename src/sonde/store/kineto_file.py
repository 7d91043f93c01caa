"""Trace files of torch's profiler (Kineto): what ran when, on which thread or stream."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Any, cast

from sonde.errors import Damaged

_PIECE = 2**20
_MOST = 2**28  # a file with a larger value is not a trace
_BLANK = " \t\r\n"

# Kineto's names for kinds of events, and ours.
_HOST_KINDS = {
    "cpu_op": "op", "user_annotation": "annotation", "cuda_runtime": "runtime",
    "cuda_driver": "runtime", "python_function": "python",
}  # fmt: skip
_DEVICE_KINDS = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}
# The arguments that are kept; the others are most of a trace file.
_ARGS = (
    "Sequence number", "Fwd thread id", "Input Dims", "Input type", "External id", "correlation",
    "device", "stream", "grid", "block", "registers per thread", "shared memory", "bytes",
)  # fmt: skip


@dataclass(slots=True)
class HostSpan:
    """Something that ran on a thread of the host."""

    start_ns: int
    dur_ns: int
    name: str
    kind: str
    thread: int
    args: dict[str, Any]
    self_ns: int = 0
    depth: int = 0
    parent: HostSpan | None = None
    module: str | None = None


@dataclass(slots=True)
class DeviceSpan:
    """Something that ran on a device."""

    start_ns: int
    dur_ns: int
    name: str
    kind: str
    args: dict[str, Any]
    launch: HostSpan | None = None


@dataclass(slots=True)
class KinetoTrace:
    """The contents of one trace file; times are nanoseconds since 1970."""

    spans: list[HostSpan] = field(default_factory=list)
    works: list[DeviceSpan] = field(default_factory=list)  # each with the call that launched it


def read_trace(path: str) -> KinetoTrace:
    """Return the contents of a trace file; raise Damaged if it is truncated or not a trace."""
    found, base_ns = KinetoTrace(), 0
    try:
        with _open(path) as file:
            for key, value in _JsonReader(file).iter_items():
                if key == "traceEvents[]":
                    _add(found, value)
                elif key == "baseTimeNanoseconds":
                    base_ns = int(value)
    except FileNotFoundError:
        raise Damaged(f"{path} is missing") from None
    except (
        OSError,
        EOFError,
        zlib.error,
        ValueError,
        TypeError,
        KeyError,
        RecursionError,
    ) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise Damaged(
            f"{path} is truncated or damaged ({reason}); remove it to read the others"
        ) from None
    for span in found.spans:
        span.start_ns += base_ns
    for work in found.works:
        work.start_ns += base_ns
    _link(found)
    return found


def _open(path: str) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb"))


def _add(found: KinetoTrace, event: dict[str, Any]) -> None:
    """Add an event if it is something that ran."""
    kind = event.get("cat", "") if event.get("ph") == "X" else ""
    if kind not in _HOST_KINDS and kind not in _DEVICE_KINDS:
        return
    given = event.get("args") or {}
    args = {key: given[key] for key in _ARGS if key in given}
    start_ns, dur_ns = round(event["ts"] * 1000), round(event.get("dur", 0) * 1000)
    name = str(event["name"])
    if kind in _HOST_KINDS:
        thread = int(event["tid"])
        found.spans.append(HostSpan(start_ns, dur_ns, name, _HOST_KINDS[kind], thread, args))
    else:
        found.works.append(DeviceSpan(start_ns, dur_ns, name, _DEVICE_KINDS[kind], args))


def nest(spans: list[HostSpan]) -> list[HostSpan]:
    """Sort the spans of one thread by time, and set the depth, parent and self time of each."""
    spans.sort(key=lambda span: (span.start_ns, -span.dur_ns))
    is_open: list[HostSpan] = []
    for span in spans:
        end_ns = span.start_ns + span.dur_ns
        while is_open and is_open[-1].start_ns + is_open[-1].dur_ns <= span.start_ns:
            is_open.pop()
        span.self_ns, span.depth, span.parent = span.dur_ns, len(is_open), None
        if is_open:
            span.parent = above = is_open[-1]
            # A span that outlasts its parent takes from it only the time that they share.
            above.self_ns -= min(end_ns, above.start_ns + above.dur_ns) - span.start_ns
        is_open.append(span)
    return spans


def _link(found: KinetoTrace) -> None:
    """Find the call, or else the operator, that launched each kernel."""
    launches = {
        span.args["correlation"]: span for span in found.spans if "correlation" in span.args
    }
    ops = {span.args.get("External id"): span for span in found.spans if span.kind == "op"}
    for work in found.works:
        launch = launches.get(work.args.get("correlation"))
        outer = ops.get(work.args.get("External id")) if "External id" in work.args else None
        work.launch = launch if launch is not None else outer
    found.works.sort(key=lambda work: work.start_ns)


def find_op(span: HostSpan | None) -> HostSpan | None:
    """Return the innermost operator that contains a span."""
    while span is not None and span.kind != "op":
        span = span.parent
    return span


class _JsonReader:
    """Reads JSON in pieces: a trace file may be too large to be parsed at once."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._decode = file, json.JSONDecoder().raw_decode
        self._text, self._at, self._rest = "", 0, b""

    def iter_items(self) -> Iterator[tuple[str, Any]]:
        """Yield the items of the outermost object; the key of each event is `traceEvents[]`."""
        self._expect("{")
        while self._peek() != "}":
            key = self._take()
            self._expect(":")
            if key == "traceEvents":
                self._expect("[")
                while self._peek() != "]":
                    yield "traceEvents[]", self._take()
                    self._skip(",")
                self._expect("]")
            else:
                yield str(key), self._take()
            self._skip(",")
        self._expect("}")

    def _fill(self) -> bool:
        piece = self._file.read(_PIECE)
        if len(self._text) - self._at > _MOST:
            raise ValueError("a value without an end")
        raw = self._rest + piece
        cut = len(raw)
        while piece and cut and cut > len(raw) - 4 and raw[cut - 1] >= 0x80:
            cut -= 1  # a character may continue in the next piece
        self._text = self._text[self._at :] + raw[:cut].decode("utf-8", "replace")
        self._at, self._rest = 0, raw[cut:]
        return bool(piece)

    def _peek(self) -> str:
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in _BLANK:
                    return self._text[self._at]
                self._at += 1
            if not self._fill():
                raise ValueError("it ends too early")

    def _expect(self, mark: str) -> None:
        if self._peek() != mark:
            raise ValueError(f"{mark} expected")
        self._at += 1

    def _skip(self, mark: str) -> None:
        if self._peek() == mark:
            self._at += 1

    def _take(self) -> Any:
        self._peek()
        while True:
            try:
                value, end = self._decode(self._text, self._at)
                if end < len(self._text):  # otherwise a number might continue
                    self._at = end
                    return value
            except ValueError:
                if not self._fill():
                    raise
                continue
            if not self._fill():
                raise ValueError("it ends too early")
