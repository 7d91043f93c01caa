"""The columns of every table that sonde records: row classes, one file for each subject.

A row class may state its SCHEMA (`python` unless it does), its SCOPE (`host` for rows about the
machine rather than one process) and the RING_BYTES that it starts with."""

from __future__ import annotations

from sonde.session.schema import name_table


def name_row(row: type) -> str:
    """Return the table of a row class: `python.gc_pause` of `GcPause`."""
    return name_table(row, getattr(row, "SCHEMA", "python"))
