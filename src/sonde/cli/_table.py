"""Rows for people and programs: tables that fit the terminal, CSV, JSON, Arrow, Parquet."""

from __future__ import annotations

import datetime
import decimal
import io
import json
import math
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

from sonde import environ
from sonde.cli import _pager, _terminal
from sonde.errors import Error
from sonde.words import MISSING, clean, make_utf8

if TYPE_CHECKING:
    import pyarrow as pa

Rows = Sequence[tuple[object, ...]]

_TEXTS = ("csv", "json")
_PATH = re.compile(r"/|\S+/\S*:\d+$")  # or a place in a file: its end says most
_MOST_ROWS = 1000  # on a terminal; a pipe or a file gets them all
_NARROWEST = 10
_MOST_NAMES = 4  # of columns that found no room


def write_rows(rows: pa.Table, form: str, output: str | None) -> None:
    """Write a result in one of the formats of `--format`, to a file or to stdout."""
    if form == "table":
        write_text(output, lambda file: draw_arrow(rows, file))
    elif form == "vertical":
        cells = [row for part in _list_parts(rows) for row in part]
        write_text(output, lambda file: draw_vertical(rows.column_names, cells, file))
    elif form in _TEXTS:
        _write_text_form(rows.column_names, _list_parts(rows), form, output)
    else:
        _write_binary(output, form, lambda file: _WRITERS[form](rows, file))


def write_records(
    records: Sequence[Mapping[str, object]], kinds: Mapping[str, str], form: str, output: str | None
) -> None:
    """Write rows that are not of a query: their columns, each with its kind in Arrow's words.

    Arrow itself is needed only for its own formats."""
    names = list(kinds)
    cells = [tuple(record.get(name) for name in names) for record in records]
    if form == "table":
        write_text(output, lambda file: draw_rows(names, cells, file))
    elif form == "vertical":
        write_text(output, lambda file: draw_vertical(names, cells, file))
    elif form in _TEXTS:
        _write_text_form(names, [cells], form, output)
    else:
        import pyarrow as pa

        schema = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in kinds.items()])
        rows = [dict(zip(names, map(make_utf8, row), strict=True)) for row in cells]
        write_rows(pa.Table.from_pylist(rows, schema=schema), form, output)


def _write_text_form(
    names: list[str], parts: Iterable[Rows], form: str, output: str | None
) -> None:
    if form == "json":
        write_text(output, lambda file: _write_json(names, parts, file))
    elif output is None and sys.stdout.isatty():
        _write_csv(names, parts, sys.stdout, _terminal.clean_lines)
    else:
        _write_binary(output, form, lambda file: _write_csv_bytes(names, parts, file))


def _list_parts(rows: pa.Table) -> Iterator[Rows]:
    for batch in rows.to_batches(max_chunksize=10_000):
        yield list(zip(*(list_values(column) for column in batch.columns), strict=True))


def write_text(output: str | None, draw: Callable[[IO[str]], None]) -> None:
    """Draw to a file or to stdout; to a pager if a person's screen is too small for it."""
    if output is None:
        _pager.show(draw) if sys.stdout.isatty() and sys.stdin.isatty() else draw(sys.stdout)
        return
    try:
        with open(output, "w", encoding="utf-8", errors="backslashreplace") as file:
            draw(file)
    except OSError as error:
        raise Error(f"{output}: {error.strerror}") from None


def _write_binary(output: str | None, form: str, write: Callable[[IO[bytes]], None]) -> None:
    if output is None and sys.stdout.isatty():
        raise Error(f"{form} cannot be shown on a terminal; give -o FILE or use a pipe")
    try:
        # Not closed when it is stdout: the flush at the end still needs it.
        file = sys.stdout.buffer if output is None else open(output, "wb")  # noqa: SIM115
        write(file)
        if output is not None:
            file.close()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Error(f"{output or 'stdout'}: {error.strerror}") from None
    except NotImplementedError as error:  # from pyarrow: the format has no such type
        raise Error(f"{form} cannot hold this: {error}; cast it in the query") from None


def _write_csv_bytes(names: list[str], parts: Iterable[Rows], file: IO[bytes]) -> None:
    # In UTF-8, whatever the encoding of stdout is.
    text = io.TextIOWrapper(file, "utf-8", "backslashreplace", newline="", write_through=True)
    try:
        _write_csv(names, parts, text)
    finally:
        text.detach()


def _write_csv(
    names: list[str], parts: Iterable[Rows], file: IO[str], tidy: Callable[[str], str] = str
) -> None:
    file.write(tidy(",".join(map(_csv_field, names)) + "\n"))
    for part in parts:
        file.write(tidy("".join([",".join(map(_csv_field, row)) + "\n" for row in part])))


def _csv_field(value: object) -> str:
    """Return a field as DuckDB and PostgreSQL write it: NULL is empty, an empty text is quoted."""
    if value is None:
        return ""
    text = str(_plain(value))
    quoted = text == "" or any(char in text for char in ',"\n\r')
    return '"' + text.replace('"', '""') + '"' if quoted else text


def _write_arrow(rows: pa.Table, file: IO[bytes]) -> None:
    import pyarrow as pa

    with pa.ipc.new_stream(file, rows.schema) as stream:
        stream.write_table(rows)


def _write_parquet(rows: pa.Table, file: IO[bytes]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    # Parquet ends with its table of contents; a pipe cannot be written by its writer directly.
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd")
    file.write(sink.getvalue())


_WRITERS: dict[str, Callable[[Any, IO[bytes]], None]] = {
    "arrow": _write_arrow, "parquet": _write_parquet,
}  # fmt: skip


def list_values(column: pa.Array) -> list[object]:
    """Return the values of a column as Python's; times that Python has no value for are text."""
    if not _has_nanoseconds(column):
        try:
            return list(column.to_pylist())
        except (OverflowError, ValueError):
            pass
    return [_value_of(one) for one in column]


def _has_nanoseconds(values: Any) -> bool:
    """Return whether these times have nanoseconds: pandas, where it is installed, has a value for
    them and spells it in another way."""
    return str(values.type).startswith("timestamp[ns")


def _value_of(scalar: Any) -> object:
    if not (scalar.is_valid and _has_nanoseconds(scalar)):
        try:
            return scalar.as_py()
        except (OverflowError, ValueError):
            pass
    if type(scalar).__name__ == "StructScalar":
        return {key: _value_of(one) for key, one in scalar.items()}
    if hasattr(scalar, "values"):  # a list, or a map, which is a list of structs
        return [_value_of(one) for one in scalar.values]
    # Python's times end with the year 9999, are finite, and have no nanoseconds.
    if abs(scalar.value) >= 2 ** (scalar.type.bit_width - 1) - 1:
        return "infinity" if scalar.value > 0 else "-infinity"
    return str(scalar.cast("string"))


def _plain(value: object) -> object:
    """Return a value as JSON and CSV spell it, without loss."""
    if isinstance(value, decimal.Decimal):
        # A column of whole numbers has no decimal places; one with some stays exact as text.
        return int(value) if value.as_tuple().exponent == 0 else str(value)
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    if isinstance(value, (datetime.date, datetime.time, datetime.timedelta)):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    if type(value).__name__ == "MonthDayNano":
        return _interval(value)
    return value


def _interval(value: Any) -> str:
    """Return an interval as `[months] [days] h:mm:ss`."""
    seconds, nanoseconds = divmod(abs(value.nanoseconds), 10**9)
    clock = f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    parts = [
        f"{count} {unit}"
        for count, unit in ((value.months, "months"), (value.days, "days"))
        if count
    ]
    fraction = f".{nanoseconds:09d}".rstrip("0") if nanoseconds else ""
    return " ".join([*parts, ("-" if value.nanoseconds < 0 else "") + clock + fraction])


def _json_value(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no word for it
    if isinstance(value, list):
        return [_json_value(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _json_value(item) for key, item in value.items()}
    return _plain(value)


def _write_json(names: list[str], parts: Iterable[Rows], file: IO[str]) -> None:
    file.write("[")
    first = True
    names = _unique(names)
    for part in parts:
        for row in part:
            file.write("\n" if first else ",\n")
            first = False
            json.dump(dict(zip(names, map(_json_value, row), strict=True)), file)
    file.write("\n]\n")


def _unique(names: Sequence[str]) -> list[str]:
    """Return the names with repeated ones numbered: a, a_2."""
    seen: dict[str, int] = {}
    done = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        done.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return done


# ---- tables -----------------------------------------------------------------------------------


def draw_arrow(rows: pa.Table, file: IO[str]) -> None:
    """Draw a result as a table."""
    if rows.column_names == ["explain_key", "explain_value"]:
        file.write("\n".join(rows["explain_value"].to_pylist()) + "\n")
        return
    shown = rows.slice(0, _MOST_ROWS) if file.isatty() else rows
    columns = [list_values(column) for column in shown.columns]
    cells = list(zip(*columns, strict=True))
    if rows.column_names[-1:] == ["meaning"]:  # of SHOW TABLES and DESCRIBE
        draw_table(rows.column_names, wrap_text(rows.column_names, cells, file), file)
    else:
        draw_rows(rows.column_names, cells, file, rows.num_rows)


def draw_rows(names: Sequence[str], rows: Rows, file: IO[str], count: int | None = None) -> None:
    """Draw rows as a table, and on a terminal no more than a screenful of screenfuls: `count` is
    how many there are, if these are not all."""
    count = len(rows) if count is None else count
    shown = rows[:_MOST_ROWS] if file.isatty() else rows
    draw_table(names, shown, file)
    if len(shown) < count:
        rest = count - len(shown)
        file.write(f"… and {rest:,} more rows; use LIMIT, or -o FILE for all of them\n")


def draw_table(
    names: Sequence[str],
    rows: Sequence[Sequence[object]],
    file: IO[str],
    right: Sequence[bool] | None = None,
    paint: Callable[[int, int, str], str] | None = None,
    keep: Sequence[str] = (),
) -> None:
    """Draw columns under their names. On a terminal they fit the width: long text is cut with `…`,
    numbers never are, and columns that find no room are left out and named below the table.

    `right` says which columns are right-aligned (default: those of numbers); `paint(row, column,
    cell)` may colour a cell, where there are colours; `keep` names columns that are not cut."""
    names = [clean(name) for name in names]
    cells = [[_show(value) for value in row] for row in rows]
    if right is None:
        right = [all(_is_number(row[i]) for row in rows) for i in range(len(names))]
    widths = [max([len(name), *(len(row[i]) for row in cells)]) for i, name in enumerate(names)]
    fancy = file.isatty()
    left_out: list[str] = []
    if fancy:
        whole = [n in keep or all(_is_whole(row[i]) for row in rows) for i, n in enumerate(names)]
        widths = fit(widths, shutil.get_terminal_size().columns, whole)
        names, left_out = names[: len(widths)], names[len(widths) :]
    colour = fancy and environ.uses_colour()
    bold, dim, plain = ("\x1b[1m", "\x1b[2m", "\x1b[0m") if colour else ("", "", "")
    shape = list(zip(widths, right[: len(widths)], strict=True))
    head = "  ".join(_pad(name, *form) for name, form in zip(names, shape, strict=True))
    file.write(f"{bold}{head.rstrip()}{plain}\n")
    for at, row in enumerate(cells):
        shown = [
            f"{dim}{_pad(cell, *form)}{plain}" if cell == MISSING else _pad(cell, *form)
            for cell, form in zip(row, shape, strict=False)  # without those that are left out
        ]
        if colour and paint:
            shown = [paint(at, column, cell) for column, cell in enumerate(shown)]
        file.write("  ".join(shown).rstrip() + "\n")
    if left_out:
        note = f"no room for {_join(left_out)}: -x shows all, one a line"
        file.write(_terminal.fill(note, file) + "\n")


def wrap_text(
    names: Sequence[str], rows: Sequence[Sequence[object]], file: IO[str], at: int = -1
) -> list[tuple[object, ...]]:
    """Return rows of which one column, the last or that at `at`, is a sentence that goes on in the
    next line instead of being cut on a terminal that is too narrow for it."""
    others = [max(map(len, map(str, column))) for column in zip(names, *rows, strict=True)]
    del others[at]
    room = shutil.get_terminal_size().columns - sum(others) - 2 * len(others)
    if not file.isatty() or room < _NARROWEST:
        return [tuple(row) for row in rows]
    found = []
    for row in rows:
        for number, line in enumerate(textwrap.wrap(str(row[at]), room) or [""]):
            cells = list(row) if number == 0 else [""] * len(row)
            cells[at] = line
            found.append(tuple(cells))
    return found


def _join(names: Sequence[str]) -> str:
    rest = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {rest} more columns" if rest > 0 else "")


def draw_vertical(names: Sequence[str], rows: Rows, file: IO[str]) -> None:
    """Draw each row as a block with one column a line; nothing is cut."""
    names = [clean(name) for name in names]
    width = max(map(len, names), default=0)
    for number, row in enumerate(rows, 1):
        file.write(f"row {number}\n")
        for name, value in zip(names, row, strict=True):
            file.write(f"  {name:<{width}}  {_show(value)}\n")


def _is_whole(value: object) -> bool:
    """Tell whether a value means nothing if it is cut."""
    if isinstance(value, str):
        return len(value) < 16 and value[:1].isdigit()
    return _is_number(value) or isinstance(value, (datetime.datetime, datetime.date, bool))


def _is_number(value: object) -> bool:
    return value is None or isinstance(value, (int, float, decimal.Decimal))


def fit(widths: list[int], room: int, whole: Sequence[bool] = ()) -> list[int]:
    """Narrow the widest columns until all fit, but never below a readable minimum, nor those that
    are `whole`; leave out the last ones that still find no room."""
    widths = list(widths)
    fixed = list(whole) or [False] * len(widths)
    while sum(widths) + 2 * (len(widths) - 1) > room:
        soft = [i for i, width in enumerate(widths) if width > _NARROWEST and not fixed[i]]
        if soft:
            widths[max(soft, key=widths.__getitem__)] -= 1
        elif len(widths) > 1:
            widths.pop()
        else:
            break
    return widths


def _pad(text: str, width: int, right: bool) -> str:
    if len(text) > width:
        keep = max(0, width - 1)
        text = "…" + text[len(text) - keep :] if _PATH.match(text) else text[:keep] + "…"
    return text.rjust(width) if right else text.ljust(width)


def _show(value: object) -> str:
    if value is None:
        return MISSING
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) else str(value)
    if isinstance(value, datetime.datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S.%f")
    return clean(str(_plain(value)))
