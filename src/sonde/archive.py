"""The archive: rows in Parquet files that any engine reads.

`<session>/archive/<schema.table>/<date>/<first>-<last>.parquet` holds the rows with tickets
first … last-1. The names are the index: what is archived, and from where on the ring is read."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from sonde.session import Session, read_json, write_atomically

FOLDER, EXPIRED = "archive", "expired.json"
_META = b"sonde"
SMALL_ROWS = 2**18  # segments below this are merged with their neighbours
MERGE_AT = 8  # this many neighbours at once


class Segment:
    """One Parquet file: the rows with tickets `first` … `last`-1."""

    __slots__ = ("first", "last", "path")

    def __init__(self, path: str, first: int, last: int) -> None:
        self.path, self.first, self.last = path, first, last


def list_segments(session: Session, table: str) -> list[Segment]:
    """The segments of a table in order, each row in exactly one of them.

    A merge leaves the merged file and its parts side by side for a moment: the larger wins."""
    found = []
    for folder, _folders, names in os.walk(session.path(FOLDER, table)):
        for name in names:
            first, _, last = name.removesuffix(".parquet").partition("-")
            if name.endswith(".parquet") and first.isdecimal() and last.isdecimal():
                found.append(Segment(os.path.join(folder, name), int(first), int(last)))
    found.sort(key=lambda segment: (segment.first, -segment.last))
    kept: list[Segment] = []
    for segment in found:
        if not kept or segment.first >= kept[-1].last:
            kept.append(segment)
    return kept


def list_tables(session: Session) -> list[str]:
    """The tables that have an archive."""
    try:
        return sorted(name for name in os.listdir(session.path(FOLDER)) if "." in name)
    except FileNotFoundError:
        return []


def write_segment(
    session: Session, table: str, rows: pa.Table, first: int, last: int, corrupt: int
) -> str:
    """Store rows for good; the file appears whole or not at all."""
    day = time.strftime("%Y-%m-%d", time.gmtime())
    folder = session.path(FOLDER, table, day)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    said = json.dumps({"corrupt": corrupt}).encode()
    path = os.path.join(folder, f"{first:020d}-{last:020d}.parquet")
    _write(rows.replace_schema_metadata({**(rows.schema.metadata or {}), _META: said}), path)
    return path


def _write(rows: pa.Table, path: str) -> None:
    hidden = f"{path}.{os.getpid()}.tmp"
    try:
        # Without pyarrow's own note of the types: texts are plain texts for every reader.
        pq.write_table(rows, hidden, compression="zstd", compression_level=1, store_schema=False)
        os.chmod(hidden, 0o600)
        os.rename(hidden, path)
    except BaseException:
        remove_quietly(hidden)
        raise


def remove_quietly(path: str) -> None:
    """Remove a file that may be gone already."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def find_merge(segments: Sequence[Segment]) -> list[Segment]:
    """Neighbours worth one file: MERGE_AT small ones in a row, of one day."""
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
    """One file for several; at every instant a reader finds each row exactly once."""
    tables = [pq.read_table(part.path) for part in parts]
    corrupt = sum(read_corrupt(part) for part in parts)
    whole = pa.concat_tables(tables, promote_options="default")
    metadata = {**(whole.schema.metadata or {}), _META: json.dumps({"corrupt": corrupt}).encode()}
    name = f"{parts[0].first:020d}-{parts[-1].last:020d}.parquet"
    _write(
        whole.replace_schema_metadata(metadata), os.path.join(os.path.dirname(parts[0].path), name)
    )
    for part in parts:
        os.unlink(part.path)


def read_corrupt(segment: Segment) -> int:
    """How many damaged rows were left out of a segment."""
    said = (pq.read_schema(segment.path).metadata or {}).get(_META, b"{}")
    return int(json.loads(said).get("corrupt", 0))


def count_rows(segments: Iterable[Segment]) -> int:
    """The rows in these segments, from their footers."""
    return sum(pq.read_metadata(segment.path).num_rows for segment in segments)


# ---- what was let go ----------------------------------------------------------------------------


def read_expired(session: Session) -> dict[str, int]:
    """Rows by table that retention has removed."""
    try:
        found = read_json(session.path(FOLDER, EXPIRED))
    except FileNotFoundError:
        return {}
    return {table: rows for table, rows in found.items() if isinstance(rows, int)}


def expire(session: Session, table: str, segment: Segment) -> None:
    """Remove a segment and write down how many rows went with it."""
    expired = read_expired(session)
    expired[table] = expired.get(table, 0) + count_rows([segment])
    # Counted first: cut off here, rows are counted twice rather than lost silently.
    write_atomically(session.path(FOLDER, EXPIRED), json.dumps(expired))
    os.unlink(segment.path)
