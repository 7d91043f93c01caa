"""Every table that sonde itself can record, for help and documentation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from sonde import plugins
from sonde.session.schema import Schema, make_schema
from sonde.store.view import View
from sonde.store.views import cost, events, heap, recording, stacks, thread_time, torch_captures
from sonde.tables import name_row


@cache  # every query asks
def list_recorded() -> tuple[Schema, ...]:
    """Return the tables that sources, sensors and the recorder write."""
    modules = [plugins.load("tables", name) for name in plugins.list_names("tables")]
    return tuple(
        make_schema(row, name_row(row), getattr(row, "SCOPE", "process"))
        for module in modules
        for row in module.ROWS
    )


def list_views() -> tuple[View, ...]:
    """The tables that are worked out when they are asked for."""
    return (
        *recording.VIEWS,
        *torch_captures.VIEWS,
        *events.VIEWS,
        *stacks.VIEWS,
        *heap.VIEWS,
        *thread_time.VIEWS,
        *cost.VIEWS,
    )


def list_tables() -> list[Schema]:
    """All tables."""
    views = [view.schema for view in list_views()]
    return sorted([*list_recorded(), *views], key=lambda schema: schema.table)


def describe(schemas: Sequence[Schema]) -> str:
    """docs/tables.md."""
    lines = [
        "# Tables",
        "",
        "Written by `sonde tables --format markdown`; do not edit. Every recorded table also has",
        "`ts` (wall clock, UTC, microseconds), `host`, `pid` and `rank`; in tables about the",
        "machine `pid` and `rank` are NULL.",
    ]
    for schema in schemas:
        lines += ["", f"## {schema.table}", "", schema.doc, ""]
        lines += ["| column | kind | unit | meaning |", "|---|---|---|---|"]
        for field in schema.fields:
            kind = field.kind + (" or NULL" if field.optional else "")
            lines.append(f"| `{field.name}` | {kind} | {field.unit} | {field.doc} |")
    return "\n".join(lines) + "\n"
