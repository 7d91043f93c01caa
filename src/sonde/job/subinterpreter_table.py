"""Tables that a subinterpreter opens: what the main interpreter does for it."""

from __future__ import annotations

from sonde import _core
from sonde.errors import SchemaError
from sonde.job.recorder import recorder
from sonde.session.schema import Schema, load_schema


def open_in_main(raw: bytes, timed: int) -> _core.Writer | str:
    """Return the writer of the table with this schema, or why there is none; the core calls it."""
    found = load_schema(raw)
    schema = Schema(found.table, found.fields, found.doc, scope=found.scope, timed=bool(timed))
    try:
        return recorder.open_table(schema, schema.table)
    except SchemaError as error:
        return str(error)
