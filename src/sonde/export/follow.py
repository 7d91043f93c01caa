"""Trace files that follow a running process: valid at every instant, and cheap to keep current."""

from __future__ import annotations

import contextlib
import copy
import gzip
import io
import os
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from typing import IO, Any

import pyarrow as pa

from sonde.analysis import timeline_sql
from sonde.analysis.nesting import EVER_NS, Nest
from sonde.analysis.new_rows import Fresh, Marks, list_captures
from sonde.analysis.profile import Profile, Selection, Thread
from sonde.analysis.slices import Slicer
from sonde.analysis.timeline import Lane, Timeline, feed, tabulate
from sonde.analysis.window import Window
from sonde.errors import Error
from sonde.export.formats.chrome import END, Writer
from sonde.session import Session
from sonde.session.files import Replacement

_SHARE = 10  # writing takes at most one part in so many of the time
_COPY_BYTES = 2**26  # at once
_KEPT = "SELECT * FROM event.attribute WHERE id IN (SELECT id FROM event.open_span)"


class LiveTrace:
    """A Chrome trace of sessions, kept current by `refresh`, gzipped if its name ends with .gz.

    What has ended is kept in a file without a name beside it and never written again. The trace is
    that, what has not ended yet, and the end of the JSON, put together under another name and
    renamed: at every instant, and after any death, the file is whole."""

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
        self._without = frozenset(without)  # tables that are left out of it
        self.took_s = 0.0  # by the last refresh
        self._folder = os.path.dirname(os.path.abspath(path))
        self._body: IO[bytes] | None = None
        self._bytes = 0  # of it that count
        if start_ns is None:
            start_ns = min(session.start_wall_ns for session in self.sessions)
        self._state = _State(start_ns)

    @property
    def least_wait_s(self) -> float:
        """How long to wait at least before the next refresh: a long trace takes long to write."""
        return self.took_s * (_SHARE - 1)

    @property
    def rows(self) -> int:
        """What has ended and is in the file."""
        return self._state.writer.rows

    def refresh(self, windows: Sequence[Window] = ()) -> None:
        """Bring the file up to now. `windows` are the times that belong into it, on the wall clock;
        without any, all of the recording. One that is open ends at EVER_NS: each row is looked at
        once. An Error leaves the file as it was."""
        begun_s = time.monotonic()
        before = copy.copy(self._state)
        self._state = self._state.copy()
        try:
            self._refresh(windows or [Window(0, EVER_NS)])
        except BaseException as error:
            self._state = before
            if isinstance(error, OSError):
                raise Error(
                    f"{self.path}: {error.strerror}; the trace stays as it last was"
                ) from None
            raise
        finally:
            self.took_s = time.monotonic() - begun_s

    def finish(self, windows: Sequence[Window] = ()) -> None:
        """The last refresh; nothing is left but the trace."""
        try:
            self.refresh(windows)
        finally:
            self.close()

    def close(self) -> None:
        """Let go of the file without a name; the trace stays as it last was."""
        if self._body is not None:
            self._body.close()
            self._body = None

    def _refresh(self, windows: Sequence[Window]) -> None:
        state = self._state
        done = set() if "python.torch_op" in self._without else list_captures(self.sessions)
        captures = done - state.captures
        with Fresh(self.sessions, state.marks, state.kept, captures, self._without) as fresh:
            hull = Window(
                min(window.since_ns for window in windows),
                max(window.until_ns for window in windows),
            )
            profile = Profile(fresh, Selection(hull, self._threads))
            timeline = Timeline(profile, windows, fresh.find_empty())
            with self._append() as file:
                self._write_ended(timeline, file)
            state.kept = {"event.attribute": fresh.query(_KEPT)}
            state.marks, state.captures = fresh.marks, done
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
        for nest in state.nests.values():
            nest.settle()
        narrow = timeline.fill(timeline_sql.NARROW)
        trial = copy.deepcopy(state.nests)
        feed(trial, timeline.recording, narrow, {})
        apart = {part: nest.apart for part, nest in trial.items()}
        if apart != {part: nest.apart for part, nest in state.nests.items()}:
            # What was placed before its family was found not to nest is placed anew.
            for part, nest in state.nests.items():
                nest.apart = set(apart[part])
            feed(state.nests, timeline.recording, narrow, apart)
        else:
            state.nests = trial
        found = {part: nest.take() for part, nest in state.nests.items()}
        state.misfits, strays = tabulate(found)
        spans = timeline.fill(timeline_sql.SPANS, which="NOT unfinished")
        yield from timeline.stream(wrap, spans, misfit=state.misfits)
        yield from timeline.iter_points(wrap, 0, EVER_NS)
        if strays.num_rows:
            flows = timeline.fill(timeline_sql.FLOWS)
            yield from timeline.stream(wrap, flows, misfit=state.misfits, stray=strays)
        yield from timeline.iter_measures(wrap)

    def _write_open(self, timeline: Timeline, file: IO[str]) -> None:
        """What has not ended, as if it ended now; and the end of the trace."""
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
        """The file without a name, to be written on; as it was if that goes wrong."""
        if self._body is None:
            # Without a name it goes with us, even if we are killed.
            self._body = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
        # Opened anew: what could not be written does not stay in a buffer.
        with open(self._body.fileno(), "r+b", closefd=False) as raw:
            # A failed refresh may have left something.
            raw.truncate(self._bytes)
            raw.seek(self._bytes)
            with self._open_text(raw) as file:
                yield file
            self._new_bytes = raw.seek(0, os.SEEK_END)

    def _show(self, timeline: Timeline) -> None:
        """Put the trace together and give it its name."""
        assert self._body is not None
        with Replacement(self.path) as new, open(new, "xb") as raw:
            _copy(self._body.fileno(), raw, self._new_bytes)
            with self._open_text(raw) as file:
                self._write_open(timeline, file)
        self._bytes = self._new_bytes

    @contextlib.contextmanager
    def _open_text(self, raw: IO[bytes]) -> Iterator[IO[str]]:
        """Text on an open file. Gzip allows many pieces, one behind the other."""
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
                text.detach()  # else it would close the file


class _State:
    """What has to be known from one refresh to the next; taken back if one fails."""

    def __init__(self, start_ns: int) -> None:
        self.writer = Writer(io.StringIO(), start_ns)
        self.marks: Marks = {}
        self.kept: dict[str, pa.Table] = {}
        self.captures: set[str] = set()
        self.nests: dict[int, Nest] = {}
        self.slicers: dict[tuple[int, int], tuple[Lane, Slicer]] = {}
        self.misfits: pa.Table = tabulate({})[0]

    def copy(self) -> _State:
        """One that can be changed while this one stays."""
        new = copy.copy(self)
        new.writer = self.writer.copy(self.writer.file)
        new.nests = copy.deepcopy(self.nests)
        new.slicers = {key: (lane, slicer.copy()) for key, (lane, slicer) in self.slicers.items()}
        return new

    def find_slicer(self, timeline: Timeline, thread: Thread) -> tuple[Lane, Slicer]:
        """What makes slices of the samples of a thread."""
        lane = timeline.find_lane(thread)
        key = lane.pid, lane.tid
        if key not in self.slicers:
            self.slicers[key] = lane, Slicer(timeline.profile)
            self.writer.declare(lane)
        self.slicers[key][1].profile = timeline.profile
        return self.slicers[key]


def _copy(source: int, raw: IO[bytes], size: int) -> None:
    """The first bytes of a file. The kernel copies them, or shares them where it can."""
    done = 0
    while done < size:
        most = min(size - done, _COPY_BYTES)
        try:
            count = os.copy_file_range(source, raw.fileno(), most, done, done)
        except OSError:
            raw.seek(done)
            count = raw.write(os.pread(source, most, done))
        if count == 0:
            raise OSError(0, "it is shorter than it was")
        done += count
    raw.seek(done)
