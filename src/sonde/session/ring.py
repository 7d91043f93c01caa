"""Rings: the files that rows are written to, one for each table of a session."""

from __future__ import annotations

import os
from errno import EISDIR, ELOOP, ENXIO

from sonde import _core
from sonde.errors import Damaged, Newer, SchemaError
from sonde.session.files import Replacement
from sonde.session.schema import Schema, load_schema

SUFFIX = ".ring"
_HEADER_BYTES = 4096
_SPARE_FROM = 64  # a ring with fewer slots has no spare ones


def create_file(path: str, size: int) -> int:
    """Create a file of `size` zero bytes and return it open for writing.

    Only its header takes room on the disk; the rest takes room as it is written. A page that finds
    no room is lost and counted, and does no harm: see map_guard.h."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(path, flags, 0o600)
    try:
        os.posix_fallocate(fd, 0, min(size, _HEADER_BYTES))
        os.ftruncate(fd, size)
    except BaseException:
        os.close(fd)
        os.unlink(path)
        raise
    return fd


def map_file(path: str, *, writable: bool = False) -> _core.Map:
    """Map a file of a session as a whole."""
    flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        fd = os.open(path, flags)
    except OSError as error:
        if error.errno in (ELOOP, ENXIO, EISDIR):  # a link, a socket or a folder in its place
            raise Damaged(f"{path} is not a file of sonde") from None
        raise
    try:
        return _core.Map(fd, writable)
    except _core.Damaged:
        raise Damaged(f"{path} is truncated or not a file of sonde") from None
    finally:
        os.close(fd)


def create_ring(folder: str, schema: Schema, ring_bytes: int, spare: int = 0) -> _core.Map:
    """Create an empty ring for a table, as large as fits into `ring_bytes`. While nobody archives
    its rows, it is `spare` times larger."""
    row_bytes = _core.layout_bytes(schema.kinds, schema.optional)
    raw = schema.dump()
    smallest = _core.ring_bytes(2, row_bytes, len(raw))
    if smallest == 0:
        raise SchemaError(f"the schema of {schema.table} is too long: {len(raw)} bytes")
    header = smallest - 2 * (row_bytes + 16)
    capacity = 2
    while _core.ring_bytes(capacity * 2, row_bytes, len(raw)) - header <= ring_bytes:
        capacity *= 2
    path = os.path.join(folder, schema.table + SUFFIX)
    with Replacement(path) as hidden:  # readers find it only once its header is complete
        spare *= capacity if capacity >= _SPARE_FROM else 0
        size = _core.ring_bytes(capacity, row_bytes, len(raw)) + spare * (row_bytes + 16)
        fd = create_file(hidden, size)
        try:
            ring = _core.Map(fd, True)
        finally:
            os.close(fd)
        _core.ring_init(ring, capacity, row_bytes, raw)
        if spare:
            _core.ring_add_spare(ring, spare)
    return ring


class Ring:
    """A ring, read from any process."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.map = map_file(path)
        self._columns: Schema | None = None
        self.schema  # noqa: B018  a ring whose schema cannot be read is rejected here

    @property
    def schema(self) -> Schema:
        """The schema of the rows; it is read once."""
        if self._columns is None:
            try:
                self._columns = load_schema(bytes(self.info()["schema"]))
                if (
                    _core.layout_bytes(self._columns.kinds, self._columns.optional)
                    != self.row_bytes
                ):
                    raise ValueError
            except ValueError:
                raise Damaged(f"{self.path} has a schema that does not fit its rows") from None
        return self._columns

    def info(self) -> dict[str, int | bytes]:
        """Return the current capacity, head, counters and schema."""
        try:
            return _core.ring_info(self.map)
        except _core.Damaged:
            raise Damaged(f"{self.path} is truncated or damaged") from None
        except _core.Newer:
            raise Newer(self.path) from None

    def count(self, name: str) -> int:
        """Return one number of info()."""
        value = int(self.info()[name])
        if value >= 2**62:  # no counter reaches this in a thousand years
            raise Damaged(f"{self.path} is damaged: {name} is {value}")
        return value

    @property
    def head(self) -> int:
        """How many rows were ever written or dropped."""
        return self.count("head")

    @property
    def capacity(self) -> int:
        """How many of the newest rows may still be there."""
        return self.count("reach")

    @property
    def row_bytes(self) -> int:
        """The bytes of a row."""
        return self.count("row_bytes")

    def read(self, first: int = 0, last: int = 2**63) -> Batch:
        """Return the complete rows with tickets first … last-1 that are still there."""
        schema = self.schema
        # The name of a damaged file may contain any number; the core takes 64 bits and would wrap.
        first = min(first, last)
        found = _core.ring_read(self.map, schema.kinds, schema.optional, first, last, False, True)
        return Batch(*found)

    def find_settled(self, first: int) -> int:
        """Return the first ticket from `first` on that is not complete."""
        return _core.ring_settled(self.map, first)

    def find_new_end(self, first: int) -> int:
        """Return where the rows from `first` on end that can be read for good.

        That is the first ticket whose row is still being written, unless it never will be: one
        that half a ring has passed by was given up by its writer."""
        return max(self.find_settled(first), self.head - self.count("capacity") // 2)


class Batch:
    """Rows copied out of a ring, column by column, and counts of rows that could not be copied."""

    def __init__(
        self,
        rows: int,
        buffers: list[bytearray | None],
        lost: int,
        pending: int,
        corrupt: int,
        top_text: int,
    ) -> None:
        self.rows, self.buffers = rows, buffers  # data and validity of each column in turn
        self.lost, self.pending, self.corrupt = lost, pending, corrupt
        self.top_text = top_text  # the largest text id in these rows
