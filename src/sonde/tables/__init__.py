"""The columns of every table that sonde records: row classes, one file for each subject.

A row class may set its SCHEMA (the default is `python`), its SCOPE (`host` for rows about the
machine rather than one process) and the size of its ring, RING_BYTES."""

from __future__ import annotations

from sonde.session.schema import name_table


def name_row(row: type) -> str:
    """Return the table of a row class: `python.gc_pause` for `GcPause`."""
    return name_table(row, getattr(row, "SCHEMA", "python"))
