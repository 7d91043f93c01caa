"""The archive: rows in Parquet files that any engine reads.

A file `archive/<schema.table>/<date>/<first>-<last>-<corrupt>-<check>.parquet` of a session holds
the rows with tickets first … last-1. The names are the index: they show what is archived, where
reading the ring begins, how many damaged rows were left out, and whether a file is intact. Arrow
is imported only to write or read rows: the collector also looks after sessions without it."""

from __future__ import annotations

import functools
import mmap
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from sonde import _core
from sonde.session import Session
from sonde.session.files import remove_quietly
from sonde.session.records import Expired

if TYPE_CHECKING:
    import pyarrow as pa

FOLDER, EXPIRED = "archive", "expired.json"
SMALL_ROWS = 2**18  # segments below this are merged with their neighbours
MERGE_AT = 8  # this many neighbours at once
_NAME = re.compile(r"(\d{20})-(\d{20})-(\d+)-([0-9a-f]{8})\.parquet")

# Held while files are merged or removed: one must not take away the files of the other.
changing = threading.Lock()


# Files that this process has found not to be what was written under their names: the command line
# says so once, however often they were met.
left_out: set[str] = set()


class Segment:
    """One Parquet file: the rows with tickets `first` … `last`-1."""

    __slots__ = ("check", "corrupt", "first", "last", "path")

    def __init__(self, path: str, first: int, last: int, corrupt: int, check: int) -> None:
        self.path, self.first, self.last = path, first, last
        self.corrupt, self.check = corrupt, check

    def is_sound(self) -> bool:
        """Tell whether the file is, byte for byte, what was written."""
        status = os.stat(self.path)
        key = (self.path, status.st_ino, status.st_size, status.st_mtime_ns)
        found = _bind(_check_file(*key), self.first, self.last, self.corrupt) == self.check
        if not found:
            left_out.add(self.path)
        return found

    def read(self) -> pa.Table:
        """Return the rows of the file."""
        import pyarrow.parquet as pq

        # Not pq.read_table: it takes folders called key=value for columns.
        with pq.ParquetFile(self.path) as file:
            return file.read()


def _bind(check: int, first: int, last: int, corrupt: int) -> int:
    """Return the checksum in a file's name: of its bytes and of the rest of the name."""
    return _core.check_bytes(f"{first} {last} {corrupt} {check}".encode())


@functools.lru_cache(maxsize=4096)
def _check_file(path: str, _inode: int, size: int, _mtime_ns: int) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if size == 0:
            return 0
        with mmap.mmap(fd, 0, access=mmap.ACCESS_READ) as memory, memoryview(memory) as view:
            return _core.check_bytes(view)
    except ValueError:
        return 0  # a pipe, for example: nothing we wrote
    finally:
        os.close(fd)


def iter_files(folder: str) -> Iterator[os.DirEntry[str]]:
    """Yield the files in a folder and in those below it."""
    try:
        entries = os.scandir(folder)
    except OSError:
        return  # a table without an archive; of a folder that cannot be read, nothing is known
    with entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from iter_files(entry.path)
            else:
                yield entry


def find_segments(session: Session, table: str) -> tuple[list[Segment], list[Segment]]:
    """Return the segments of a table in order, each row in exactly one of them; and the segments
    that a larger one covers, which a merge leaves beside its file for a moment."""
    found = []
    for entry in iter_files(session.path(FOLDER, table)):
        match = _NAME.fullmatch(entry.name)
        if match:
            first, last, corrupt = (int(match[i]) for i in (1, 2, 3))
            found.append(Segment(entry.path, first, last, corrupt, int(match[4], 16)))
        elif entry.name.endswith(".parquet"):
            left_out.add(entry.path)
    found.sort(key=lambda segment: (segment.first, -segment.last))
    kept: list[Segment] = []
    covered: list[Segment] = []
    for segment in found:
        inside = bool(kept) and segment.first < kept[-1].last
        (covered if inside else kept).append(segment)
    return kept, covered


def list_segments(session: Session, table: str) -> list[Segment]:
    """Return the segments of a table in order, each row in exactly one of them."""
    return find_segments(session, table)[0]


def list_tables(session: Session) -> list[str]:
    """Return the names of the tables that have an archive."""
    try:
        return sorted(name for name in os.listdir(session.path(FOLDER)) if "." in name)
    except (FileNotFoundError, NotADirectoryError):
        return []


def write_segment(
    session: Session, table: str, rows: pa.Table, first: int, last: int, corrupt: int
) -> str:
    """Archive rows; the file appears completely or not at all."""
    day = time.strftime("%Y-%m-%d", time.gmtime())
    folder = session.path(FOLDER, table, day)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return _write(rows, folder, first, last, corrupt)


def _write(rows: pa.Table, folder: str, first: int, last: int, corrupt: int) -> str:
    import pyarrow.parquet as pq

    # Not files.Replacement: the name holds a checksum of the bytes, so it comes after them.
    hidden = os.path.join(folder, f".{first}-{last}.{os.getpid()}.tmp")
    try:
        # Without pyarrow's own schema: text is plain text for every reader.
        pq.write_table(rows, hidden, compression="zstd", compression_level=1, store_schema=False)
        os.chmod(hidden, 0o600)
        status = os.stat(hidden)
        body = _check_file(hidden, status.st_ino, status.st_size, status.st_mtime_ns)
        check = _bind(body, first, last, corrupt)
        path = os.path.join(folder, f"{first:020d}-{last:020d}-{corrupt}-{check:08x}.parquet")
        os.rename(hidden, path)
        return path
    except BaseException:
        remove_quietly(hidden)
        raise


def remove_leftovers(session: Session, table: str) -> None:
    """Remove what an interrupted merge left behind."""
    for segment in find_segments(session, table)[1]:
        remove_quietly(segment.path)
    for folder, _folders, names in os.walk(session.path(FOLDER, table)):
        for name in names:
            if name.endswith(".tmp"):
                remove_quietly(os.path.join(folder, name))


def find_merge(segments: Sequence[Segment]) -> list[Segment]:
    """Return segments to merge: MERGE_AT small neighbours of one day, if there are any."""
    run: list[Segment] = []
    for segment in segments:
        apart = run and (
            segment.first != run[-1].last
            or os.path.dirname(segment.path) != os.path.dirname(run[-1].path)
        )
        if apart or segment.last - segment.first >= SMALL_ROWS:
            run = []
        if segment.last - segment.first < SMALL_ROWS:
            run.append(segment)
        if len(run) == MERGE_AT:
            return run
    return []


def merge(parts: Sequence[Segment]) -> None:
    """Merge segments into one; at every moment a reader finds each row exactly once.

    A damaged part prevents the merge: it must not get a valid checksum."""
    import pyarrow as pa

    if not all(part.is_sound() for part in parts):
        return
    whole = pa.concat_tables([read_segment(part) for part in parts], promote_options="default")
    corrupt = sum(part.corrupt for part in parts)
    folder = os.path.dirname(parts[0].path)
    _write(whole, folder, parts[0].first, parts[-1].last, corrupt)
    for part in parts:
        os.unlink(part.path)


def read_segment(segment: Segment, schema: pa.Schema | None = None) -> pa.Table:
    """Return the rows of a segment; with a schema, in its columns, and NULL where it has none."""
    import pyarrow as pa

    rows = segment.read()
    if schema is None:
        return rows
    nothing = schema.empty_table()
    return pa.concat_tables([nothing, rows], promote_options="default").select(schema.names)


def read_segments(segments: Iterable[Segment], schema: pa.Schema) -> pa.Table:
    """Return the rows of segments, in these columns."""
    import pyarrow as pa

    parts = [read_segment(segment, schema) for segment in segments]
    return pa.concat_tables([schema.empty_table(), *parts])


class SegmentMemory:
    """Remembers the rows of segments, which never change, up to so many bytes."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes, self._bytes = most_bytes, 0
        self._rows: dict[tuple[str, int, int, int], pa.Table] = {}  # the oldest first
        self._lock = threading.Lock()

    def read(self, segment: Segment) -> pa.Table:
        """Return the rows of a segment."""
        status = os.stat(segment.path)
        key = segment.path, status.st_ino, status.st_size, status.st_mtime_ns
        with self._lock:
            known = self._rows.get(key)
        if known is not None:
            return known
        rows = read_segment(segment)
        with self._lock:
            if self._rows.setdefault(key, rows) is rows:
                self._bytes += rows.nbytes
            while self._bytes > self._most_bytes:
                self._bytes -= self._rows.pop(next(iter(self._rows))).nbytes
        return rows


def count_rows(segments: Iterable[Segment]) -> int:
    """Count the rows in these segments, from their footers."""
    import pyarrow.parquet as pq

    return sum(pq.read_metadata(segment.path).num_rows for segment in segments)


# ---- what expired -------------------------------------------------------------------------------


def read_expired(session: Session) -> dict[str, int]:
    """Return how many rows of each table retention has removed."""
    if not os.path.isdir(session.path(FOLDER)):
        return {}
    try:
        return Expired.read(session.path(FOLDER, EXPIRED)).rows
    except FileNotFoundError:
        return {}


def expire(session: Session, table: str, segment: Segment) -> None:
    """Remove a segment and record how many rows it had."""
    expired = read_expired(session)
    try:
        rows = count_rows([segment]) if segment.is_sound() else segment.last - segment.first
    except ImportError:  # without Arrow, as many as its name says
        rows = segment.last - segment.first
    expired[table] = expired.get(table, 0) + rows
    # Removed first: on a full disk nothing can be recorded before there is room again.
    os.unlink(segment.path)
    Expired(rows=expired).write(session.path(FOLDER, EXPIRED))
