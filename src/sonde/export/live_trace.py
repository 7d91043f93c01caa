"""Trace files of a running process: valid at every moment, and cheap to keep up to date."""

from __future__ import annotations

import contextlib
import copy
import gzip
import io
import os
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import IO, Any

import pyarrow as pa

from sonde.analysis import timeline_sql
from sonde.analysis.new_rows import NewRows, Tickets, list_captures
from sonde.analysis.profile import Profile, RecordedThread, Selection
from sonde.analysis.region_layout import FOREVER_NS, RegionLayout
from sonde.analysis.sample_slices import Slicer
from sonde.analysis.timeline import Lane, Timeline, feed, tabulate
from sonde.analysis.window import Window
from sonde.errors import Error
from sonde.export.formats.chrome import END, TraceWriter
from sonde.session import Session
from sonde.session.files import Replacement

_SHARE = 10  # writing takes at most this fraction of the time: one tenth
_COPY_BYTES = 2**26  # at once
_KEPT = "SELECT * FROM event.attribute WHERE id IN (SELECT id FROM event.open_span)"


class LiveTrace:
    """A Chrome trace of sessions that `refresh` keeps up to date; gzipped if its name ends in .gz.

    What has ended is appended to an unnamed file in the same folder and never written again. The
    trace is that, what has not ended yet, and the end of the JSON, written under another name and
    renamed: the file is complete at every moment, however we end."""

    def __init__(
        self,
        sessions: Session | Sequence[Session],
        path: str,
        *,
        threads: Sequence[str] = (),
        start_ns: int | None = None,
        without: Collection[str] = (),
    ) -> None:
        self.sessions = [sessions] if isinstance(sessions, Session) else list(sessions)
        self.path, self._threads = path, tuple(threads)
        self._without = frozenset(without)  # tables that are left out
        self.took_s = 0.0  # time of the last refresh
        self._folder = os.path.dirname(os.path.abspath(path))
        self._body: IO[bytes] | None = None
        self._bytes = 0  # how much of it is valid
        if start_ns is None:
            start_ns = min(session.start_wall_ns for session in self.sessions)
        self._state = _TraceState(start_ns)

    @property
    def least_wait_s(self) -> float:
        """The least time to wait before the next refresh: a long trace takes long to write."""
        return self.took_s * (_SHARE - 1)

    @property
    def rows(self) -> int:
        """The number of ended things in the file."""
        return self._state.writer.rows

    def refresh(self, list_windows: Callable[[], Sequence[Window]] = tuple) -> None:
        """Bring the file up to date. `list_windows` returns the times that go into it, since 1970;
        without any, it is the whole recording. A window that is open ends at FOREVER_NS,
        because each row is read only once; for the same reason the windows are listed after the
        rows were read. An Error leaves the file as it was."""
        begun_s = time.monotonic()
        before = copy.copy(self._state)
        self._state = self._state.copy()
        try:
            self._refresh(list_windows)
        except BaseException as error:
            self._state = before
            if isinstance(error, OSError):
                raise Error(f"{self.path}: {error.strerror}; the trace stays as it was") from None
            raise
        finally:
            self.took_s = time.monotonic() - begun_s

    def finish(self, list_windows: Callable[[], Sequence[Window]] = tuple) -> None:
        """Refresh for the last time; only the trace is left."""
        try:
            self.refresh(list_windows)
        finally:
            self.close()

    def close(self) -> None:
        """Close the unnamed file; the trace stays as it is."""
        if self._body is not None:
            self._body.close()
            self._body = None

    def _refresh(self, list_windows: Callable[[], Sequence[Window]]) -> None:
        state = self._state
        done = set() if "python.torch_op" in self._without else list_captures(self.sessions)
        captures = done - state.captures
        with NewRows(self.sessions, state.tickets, state.kept, captures, self._without) as new_rows:
            windows = list_windows() or [Window(0, FOREVER_NS)]
            hull = Window(
                min(window.since_ns for window in windows),
                max(window.until_ns for window in windows),
            )
            profile = Profile(new_rows, Selection(hull, self._threads))
            timeline = Timeline(profile, windows, new_rows.find_empty())
            with self._append() as file:
                self._write_ended(timeline, file)
            state.kept = {"event.attribute": new_rows.query(_KEPT)}
            state.tickets, state.captures = new_rows.tickets, done
            self._show(timeline)

    def _write_ended(self, timeline: Timeline, file: IO[str]) -> None:
        state, writer = self._state, self._state.writer
        writer.file = file
        if not self._bytes:
            writer.begin()
        for lane in timeline.iter_lanes():
            writer.declare(lane)
        for sample in timeline.iter_samples():
            lane, slicer = state.find_slicer(timeline, sample.thread)
            for row in timeline.make_slices(lane, sorted(slicer.feed(sample))):
                writer.add(row)
        for call in timeline.iter_calls():
            if isinstance(call, Lane):
                writer.declare(call)
            else:
                writer.add(call)
        for batch in self._iter_batches(timeline, writer.wrap):
            writer.add_batch(batch)

    def _iter_batches(self, timeline: Timeline, wrap: str) -> Iterator[pa.RecordBatch]:
        state = self._state
        for layout in state.layouts.values():
            layout.settle()
        narrow = timeline.fill(timeline_sql.NARROW)
        trial = copy.deepcopy(state.layouts)
        feed(trial, timeline.recording, narrow, {})
        apart = {part: layout.apart for part, layout in trial.items()}
        if apart != {part: layout.apart for part, layout in state.layouts.items()}:
            # Regions that were placed before their family was found not to nest are placed again.
            for part, layout in state.layouts.items():
                layout.apart = set(apart[part])
            feed(state.layouts, timeline.recording, narrow, apart)
        else:
            state.layouts = trial
        found = {part: layout.take() for part, layout in state.layouts.items()}
        state.misfits, strays = tabulate(found)
        spans = timeline.fill(timeline_sql.SPANS, which="NOT unfinished")
        yield from timeline.stream(wrap, spans, misfit=state.misfits)
        yield from timeline.iter_points(wrap, 0, FOREVER_NS)
        if strays.num_rows:
            flows = timeline.fill(timeline_sql.FLOWS)
            yield from timeline.stream(wrap, flows, misfit=state.misfits, stray=strays)
        yield from timeline.iter_measures(wrap)

    def _write_open(self, timeline: Timeline, file: IO[str]) -> None:
        """Write what has not ended as if it ended now, and the end of the trace."""
        writer = self._state.writer.copy(file)
        for lane, slicer in self._state.slicers.values():
            for row in timeline.make_slices(lane, slicer.finish()):
                writer.add(row)
        spans = timeline.fill(timeline_sql.SPANS, which="unfinished")
        for batch in timeline.stream(writer.wrap, spans, misfit=self._state.misfits):
            writer.add_batch(batch)
        file.write(END)

    # ---- files -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _append(self) -> Iterator[IO[str]]:
        """Open the unnamed file for appending; it counts only if all goes well."""
        if self._body is None:
            # An unnamed file disappears with us, even if we are killed.
            self._body = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
        # Opened again each time: what could not be written does not stay in a buffer.
        with open(self._body.fileno(), "r+b", closefd=False) as raw:
            # A failed refresh may have left something behind.
            raw.truncate(self._bytes)
            raw.seek(self._bytes)
            with self._open_text(raw) as file:
                yield file
            self._new_bytes = raw.seek(0, os.SEEK_END)

    def _show(self, timeline: Timeline) -> None:
        """Put the trace together and rename it into place."""
        assert self._body is not None
        with Replacement(self.path) as new, open(new, "xb") as raw:
            _copy(self._body.fileno(), raw, self._new_bytes)
            with self._open_text(raw) as file:
                self._write_open(timeline, file)
        self._bytes = self._new_bytes

    @contextlib.contextmanager
    def _open_text(self, raw: IO[bytes]) -> Iterator[IO[str]]:
        """Open text on an open file. A gzip file may consist of many members."""
        packed: Any = raw
        if self.path.endswith(".gz"):
            packed = gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=1, mtime=0, filename="")
        text = io.TextIOWrapper(
            packed, encoding="utf-8", errors="backslashreplace", newline="\n", write_through=True
        )
        try:
            yield text
            text.flush()
            if packed is not raw:
                packed.close()
            raw.flush()
        finally:
            with contextlib.suppress(ValueError, OSError):
                text.detach()  # otherwise it would close the file


class _TraceState:
    """What one refresh leaves for the next; undone if a refresh fails."""

    def __init__(self, start_ns: int) -> None:
        self.writer = TraceWriter(io.StringIO(), start_ns)
        self.tickets: Tickets = {}
        self.kept: dict[str, pa.Table] = {}
        self.captures: set[str] = set()
        self.layouts: dict[int, RegionLayout] = {}
        self.slicers: dict[tuple[int, int], tuple[Lane, Slicer]] = {}
        self.misfits: pa.Table = tabulate({})[0]

    def copy(self) -> _TraceState:
        """Return a copy that can be changed while this one stays as it is."""
        new = copy.copy(self)
        new.writer = self.writer.copy(self.writer.file)
        new.layouts = copy.deepcopy(self.layouts)
        new.slicers = {key: (lane, slicer.copy()) for key, (lane, slicer) in self.slicers.items()}
        return new

    def find_slicer(self, timeline: Timeline, thread: RecordedThread) -> tuple[Lane, Slicer]:
        """Return the lane and the slicer of a thread."""
        lane = timeline.find_lane(thread)
        key = lane.pid, lane.tid
        if key not in self.slicers:
            self.slicers[key] = lane, Slicer(timeline.profile)
            self.writer.declare(lane)
        self.slicers[key][1].profile = timeline.profile
        return self.slicers[key]


def _copy(source: int, raw: IO[bytes], size: int) -> None:
    """Copy the first bytes of a file; the kernel does it, or shares them where it can."""
    done = 0
    while done < size:
        most = min(size - done, _COPY_BYTES)
        try:
            count = os.copy_file_range(source, raw.fileno(), most, done, done)
        except OSError:
            raw.seek(done)
            count = raw.write(os.pread(source, most, done))
        if count == 0:
            raise OSError(0, "the file is shorter than it was")
        done += count
    raw.seek(done)
