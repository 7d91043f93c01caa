"""Merge the small files of a shared place into large ones; every reader sees each row once.

The merged file is written first, and counts for nobody. Then the list of the files that it
replaces is written: from that moment on the merged file counts and they do not. Then they are
removed. A reader that had listed them before finds them gone, and lists again. Whatever is killed
in between leaves a merged file without a list, or files that a list names: the next time removes
them. The list stays, so that a file which is sent again does not bring its rows back."""

from __future__ import annotations

import json
import os
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from sonde.store.combined import combine_schemas, fit_columns
from sonde.store.place import FleetPlace, PlaceError, SharedFile

LARGE_BYTES, MOST_BYTES = 64 << 20, 256 << 20  # what need not be merged; what a file may become
_LEAST = 2  # files
_ROWS = 1 << 17  # of one group of rows: whoever reads holds several of them
_STALE_S = 86400.0  # a merged file without a list is of a process that was killed
_CHUNK = 8 << 20
_CLAIM, _CLAIMED_S = "_compaction-", 3600.0  # the longest that one merge may take


class Compacted:
    """What became of the files of one table and day."""

    def __init__(self, table: str, day: str) -> None:
        self.table, self.day = table, day
        self.before = self.after = self.rows = self.bytes = 0


def compact(place: FleetPlace) -> Iterator[Compacted]:
    """Merge what is small, table by table and day by day; yield what was done. Two at once would
    merge the same files, and every reader would see their rows twice: the second is refused."""
    claim = _Claim(place)
    try:
        yield from _compact(place, claim)
    finally:
        claim.remove()


class _Claim:
    """A file that says that a compaction is going on; it is written anew before each merge."""

    def __init__(self, place: FleetPlace) -> None:
        self._place = place
        self._path = place.path(f"{_CLAIM}{time.time_ns():x}-{uuid.uuid4().hex[:8]}.json")
        self.renew()
        # Each writes its own first and looks then: of two that begin at once both see the other.
        # All times are those of the store, whatever the clocks of the hosts say.
        mine = place.fs.get_file_info(self._path).mtime_ns or 0
        for one in place.fs.get_file_info(pafs.FileSelector(place.base)):
            age_s = (mine - (one.mtime_ns or 0)) / 1e9
            if one.base_name.startswith(_CLAIM) and one.path != self._path and age_s < _CLAIMED_S:
                self.remove()
                raise PlaceError(
                    f"another `sonde compact` works on {place.uri}, or was killed less than "
                    f"{_CLAIMED_S / 60:g} min ago; if it was, remove {one.path}"
                )

    def renew(self) -> None:
        """Say that this compaction is alive."""
        words = {"host": os.uname().nodename, "pid": os.getpid()}
        self._place.write(self._path, json.dumps(words).encode())

    def remove(self) -> None:
        """Let others begin."""
        self._place.remove(self._path)


def _compact(place: FleetPlace, claim: _Claim) -> Iterator[Compacted]:
    for table in place.list_tables():
        listing = place.list_files(table)
        for file in listing.covered:
            place.remove(file.path)
        _remove_stale(place, table, set(listing.lists))
        days: dict[str, list[SharedFile]] = {}
        for file in listing.files:
            # The newest rows of a live session are replaced again and again.
            if file.session is not None and not file.is_live and file.bytes < LARGE_BYTES:
                days.setdefault(file.path.rpartition("/")[0], []).append(file)
        for folder, files in sorted(days.items()):
            done = Compacted(table, folder.rpartition("=")[2])
            for group in _group(files):
                claim.renew()
                _merge(place, folder, group, done)
            if done.after:
                yield done


def _group(files: list[SharedFile]) -> Iterator[list[SharedFile]]:
    """Yield files that become one: in the order of sessions and rows, up to MOST_BYTES."""
    files.sort(key=lambda file: (file.session, file.first))
    group: list[SharedFile] = []
    size = 0
    for file in files:
        if size + file.bytes > MOST_BYTES:
            yield group
            group, size = [], 0
        group.append(file)
        size += file.bytes
    yield group


def _merge(place: FleetPlace, folder: str, files: Sequence[SharedFile], done: Compacted) -> None:
    if len(files) < _LEAST:
        return
    number = f"{time.time_ns():x}-{uuid.uuid4().hex[:8]}"
    with tempfile.NamedTemporaryFile(suffix=".parquet") as local:
        names, rows = _write(place, files, local.name)
        if len(names) < _LEAST:
            return
        path = f"{folder}/merged-{number}.parquet"
        _send(place, local.name, path)
        done.bytes += os.path.getsize(local.name)
    # With this file the merged one takes the place of the others, for all readers at once.
    place.write(f"{folder}/_merged-{number}.json", json.dumps(names).encode())
    for file in files:
        if file.path.rpartition("/")[2] in names:
            place.remove(file.path)
    done.before, done.after, done.rows = done.before + len(names), done.after + 1, done.rows + rows


def _write(place: FleetPlace, files: Sequence[SharedFile], path: str) -> tuple[list[str], int]:
    """Write the rows of files to one file here; return the names of the files that are in it."""
    schema = combine_schemas([_read_schema(place, file) for file in files])
    names, count = [], 0
    waiting: list[pa.Table] = []
    with pq.ParquetWriter(path, schema, compression="zstd", compression_level=3,
                          store_schema=False) as writer:  # fmt: skip
        for file in files:
            with place.fs.open_input_file(file.path) as opened:
                rows = pq.read_table(opened)
            if not _is_of(rows, file.session):
                continue
            names.append(file.path.rpartition("/")[2])
            count += rows.num_rows
            waiting.append(fit_columns(rows, schema))
            if sum(one.num_rows for one in waiting) >= _ROWS:
                writer.write_table(pa.concat_tables(waiting), row_group_size=_ROWS)
                waiting = []
        if waiting:
            writer.write_table(pa.concat_tables(waiting), row_group_size=_ROWS)
    return names, count


def _read_schema(place: FleetPlace, file: SharedFile) -> pa.Schema:
    with place.fs.open_input_file(file.path) as opened:
        return pq.read_schema(opened)


def _is_of(rows: pa.Table, session: str | None) -> bool:
    """Tell whether the rows say themselves whose they are: a table of the user's own may have
    another column of that name, and then its files stay as they are."""
    column = rows["session"] if "session" in rows.column_names else None
    if column is None or column.type != pa.string():
        return False
    return bool(pc.all(pc.equal(column, session), min_count=0).as_py())


def _send(place: FleetPlace, local: str, path: str) -> None:
    if place.is_local:
        with open(local, "rb") as file:
            place.write(path, file.read())
        return
    try:
        with open(local, "rb") as file, place.fs.open_output_stream(path) as stream:
            while piece := file.read(_CHUNK):
                stream.write(piece)
        size = place.fs.get_file_info(path).size
    except (OSError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())
        raise PlaceError(f"{place.uri} does not take files: {reason}") from None
    if size != os.path.getsize(local):
        raise PlaceError(f"{place.uri} has {size} of the {os.path.getsize(local)} bytes of {path}")


def _remove_stale(place: FleetPlace, table: str, known: set[str]) -> None:
    """Remove merged files without a list that nobody can still be writing."""
    selector = pafs.FileSelector(place.path(table), allow_not_found=True, recursive=True)
    for one in place.fs.get_file_info(selector):
        is_merged = one.base_name.startswith("merged-") and one.path not in known
        if is_merged and one.mtime_ns and time.time() - one.mtime_ns / 1e9 > _STALE_S:
            place.remove(one.path)
