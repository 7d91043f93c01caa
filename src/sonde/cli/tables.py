"""List the tables of a recording, with their columns, units and meaning."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator
from textwrap import wrap
from typing import IO

from sonde import environ
from sonde.cli import _options, _table
from sonde.cli._terminal import fill
from sonde.errors import ConfigError
from sonde.session.schema import Schema
from sonde.store import catalog
from sonde.store.listing import find_nearest
from sonde.store.recording import open_recording
from sonde.words import clean

GROUP = "ask"
EXAMPLES = (
    "sonde tables                               every table that sonde knows",
    "sonde tables 4242                          those of one recording, with its own tables",
    "sonde tables --table gc_pause --format json",
)


_NEAR = 4  # names in an error
_LEAST = 24  # columns of a meaning, however narrow the terminal is


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.add_target(
        parser, "the recording; without it, list every table that sonde knows", optional=True
    )
    parser.add_argument("--table", metavar="NAME", help="describe only this table")
    _options.add_format(parser, (*_options.FORMATS, "markdown"))
    _options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    schemas = open_recording(args.target).tables() if args.target else catalog.list_tables()
    if args.table:
        schemas = _choose(args.table, schemas)
    if args.format == "markdown":
        text = catalog.describe(schemas)
        _table.write_text(args.output, lambda file: print(text, end="", file=file))
        return 0
    rows = [
        {"table": s.table, "column": f.name, "kind": f.kind, "unit": f.unit, "meaning": f.doc}
        for s in schemas
        for f in s.fields
    ]
    names = dict.fromkeys(("table", "column", "kind", "unit", "meaning"), "string")
    if args.format == "table":
        cells = [tuple(row.values()) for row in rows]

        def draw(file: IO[str]) -> None:
            if file.isatty():  # a person reads about one table at a time
                file.write("\n".join(_describe(schemas, file)) + "\n")
            else:
                _table.draw_table(list(names), cells, file)

        _table.write_text(args.output, draw)
    else:
        _table.write_records(rows, names, args.format, args.output)
    return 0


def _describe(schemas: list[Schema], file: IO[str]) -> Iterator[str]:
    """Yield each table with its columns below it, as a terminal has room for them."""
    width = shutil.get_terminal_size().columns
    bold, plain = ("\x1b[1m", "\x1b[0m") if environ.uses_colour() else ("", "")
    for at, schema in enumerate(schemas):
        if at:
            yield ""
        first, *more = fill(f"{schema.table}  {schema.doc}".strip(), file).split("\n")
        yield f"{bold}{schema.table}{plain}{first.removeprefix(schema.table)}"
        yield from more
        cells = [(one.name, one.kind, one.unit or "") for one in schema.fields]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        for one, words in zip(schema.fields, cells, strict=True):
            left = "  ".join(word.ljust(room) for word, room in zip(words, widths, strict=True))
            yield from wrap(clean(one.doc), max(width, len(left) + _LEAST),
                            initial_indent=f"  {left}  ",
                            subsequent_indent=" " * (len(left) + 4)) or [f"  {left}"]  # fmt: skip


def _choose(name: str, schemas: list[Schema]) -> list[Schema]:
    """Return the tables of this name, with or without its schema; raise ConfigError if there is
    none."""
    found = [schema for schema in schemas if name in (schema.table, _bare(schema))]
    if found:
        return found
    known = [schema.table for schema in schemas]
    near = [table for table in known if name in table] or find_nearest(name, known)
    hint = f"did you mean {' or '.join(near[:_NEAR])}? " if near else ""
    raise ConfigError(f"there is no table {name}; {hint}`sonde tables` lists all")


def _bare(schema: Schema) -> str:
    return schema.table.partition(".")[2]
