"""Schemas: the names, types and meanings of a table's columns."""

from __future__ import annotations

from sonde.errors import SchemaError
from sonde.session import json_text

# Used instead of `re`, whose import takes as long as all other imports of a start.
_CAPITALS, _DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789"
_SMALL = _CAPITALS.lower() + _DIGITS

TYPE_CHECKING = False  # type checkers take this name for true; importing `typing` takes 3 ms


# Schemas of sonde and of DuckDB; a user's table may be in any other.
RESERVED = frozenset(
    ("sonde", "python", "system", "event", "main", "temp", "memory", "information_schema",
     "pg_catalog")
)  # fmt: skip


class Kind:
    """What a column holds: its name in schemas and its letter in the core."""

    __slots__ = ("letter", "name", "optional")

    def __init__(self, name: str, letter: str, optional: bool = False) -> None:
        self.name, self.letter, self.optional = name, letter, optional

    def __or__(self, other: None) -> Kind:
        return Kind(self.name, self.letter, True)

    __ror__ = __or__


_KINDS = {
    name: Kind(name, letter)
    for name, letter in (
        ("i8", "b"), ("i16", "h"), ("i32", "i"), ("i64", "q"), ("u8", "B"), ("u16", "H"),
        ("u32", "I"), ("u64", "Q"), ("f64", "d"), ("bool", "?"), ("text", "t"),
    )
}  # fmt: skip
_PLAIN = {"int": "i64", "float": "f64", "str": "text", "bool": "bool"}

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, TypeAlias

    i8: TypeAlias = int
    i16: TypeAlias = int
    i32: TypeAlias = int
    i64: TypeAlias = int
    u8: TypeAlias = int
    u16: TypeAlias = int
    u32: TypeAlias = int
    u64: TypeAlias = int
    f64: TypeAlias = float
    text: TypeAlias = str
else:
    i8, i16, i32, i64 = (_KINDS[name] for name in ("i8", "i16", "i32", "i64"))
    u8, u16, u32, u64 = (_KINDS[name] for name in ("u8", "u16", "u32", "u64"))
    f64, text = _KINDS["f64"], _KINDS["text"]


class Column:
    """What `column()` says about one column; the name and kind come from the class."""

    __slots__ = ("doc", "unit")

    def __init__(self, doc: str, unit: str) -> None:
        self.doc, self.unit = doc, unit


def column(doc: str, unit: str = "") -> Any:  # it stands where a column's value would
    """Describe a column of a row class: what it means, and its unit."""
    return Column(doc, unit)


class Field:
    """One column of a schema."""

    __slots__ = ("doc", "kind", "letter", "name", "optional", "unit")

    def __init__(self, name: str, kind: str, optional: bool, doc: str, unit: str) -> None:
        if kind not in _KINDS and kind != "timestamp":  # timestamps are only ever computed
            kinds = ", ".join(_KINDS)
            raise SchemaError(f"column {name}: there is no kind {kind}; the kinds are {kinds}")
        self.name, self.kind, self.optional, self.doc, self.unit = name, kind, optional, doc, unit
        self.letter = _KINDS[kind].letter if kind in _KINDS else ""


class Schema:
    """A table: its name, its columns in order, and how its ring is kept."""

    def __init__(
        self,
        table: str,
        fields: Sequence[Field],
        doc: str = "",
        *,
        scope: str = "process",
        timed: bool = False,
    ) -> None:
        words = table.split(".")
        if len(words) != 2 or not all(_is_name(word) for word in words):
            raise SchemaError(f"{table} is not a table name; write schema.table in lower case")
        self.table, self.fields, self.doc = table, tuple(fields), doc
        self.scope = scope  # "process", or "host" for rows about the machine
        self.timed = timed  # t_ns is filled in at each call

    def __repr__(self) -> str:
        columns = ", ".join(field.name for field in self.fields)
        return f"<table {self.table}: {columns}>"

    @property
    def kinds(self) -> str:
        """One letter for each column, as the core expects them."""
        return "".join(field.letter for field in self.fields)

    @property
    def optional(self) -> str:
        """`1` for each column that may be NULL, `0` for the others."""
        return "".join("01"[field.optional] for field in self.fields)

    def dump(self) -> bytes:
        """Return the schema as it is in a ring's header."""
        columns = [
            {"name": f.name, "kind": f.kind, "optional": f.optional, "unit": f.unit, "doc": f.doc}
            for f in self.fields
        ]
        whole = {"table": self.table, "doc": self.doc, "scope": self.scope, "columns": columns}
        return json_text.dump(whole).encode()


_MOST_LOADED = 1000
_loaded: dict[bytes, Schema] = {}  # the sessions of a job have the same tables


def load_schema(raw: bytes) -> Schema:
    """Read the schema in a ring's header; raise ValueError if it is not valid."""
    found = _loaded.get(raw)
    if found is None:
        if len(_loaded) >= _MOST_LOADED:
            _loaded.clear()
        found = _loaded[raw] = _parse_schema(raw)
    return found


def _parse_schema(raw: bytes) -> Schema:
    import json  # here, because it is slow to import and only readers need it

    whole = json.loads(raw)
    try:
        fields = [
            Field(c["name"], c["kind"], bool(c["optional"]), c.get("doc", ""), c.get("unit", ""))
            for c in whole["columns"]
        ]
        if any(field.letter == "" for field in fields):
            raise SchemaError("a column has a kind that cannot be stored")
        return Schema(whole["table"], fields, whole.get("doc", ""), scope=whole.get("scope", ""))
    except (KeyError, TypeError, AttributeError, SchemaError) as error:
        raise ValueError(str(error)) from None


def make_schema(row: type, table: str, scope: str = "process") -> Schema:
    """Return the schema of a row class: any class with annotated columns, dataclass or plain.

    A table without a `t_ns` column gets one in front, which is filled in at each call."""
    fields = [_make_field(row, name, kind) for name, kind in _annotations(row).items()]
    if not fields:
        raise SchemaError(f"{row.__name__} has no columns; add lines such as `name: i64`")
    timed = not any(field.name == "t_ns" for field in fields)
    if timed:
        fields.insert(0, Field("t_ns", "i64", False, "when the row was written", "ns"))
    elif not any(f.name == "t_ns" and f.kind == "i64" and not f.optional for f in fields):
        raise SchemaError(f"{row.__name__}.t_ns is a time and must be an i64 that is never NULL")
    clash = {"ts", "host", "pid", "rank"} & {field.name for field in fields}
    if clash:
        names = ", ".join(sorted(clash))
        raise SchemaError(f"{row.__name__}: sonde adds {names} to every table; use another name")
    return Schema(table, fields, _first_paragraph(row), scope=scope, timed=timed)


def _annotations(row: type) -> Mapping[str, object]:
    found: dict[str, object] = {}
    for base in reversed(row.__mro__):
        # Not inspect.get_annotations: that module takes 8 ms to import in the job. From 3.10 on a
        # class has annotations of its own only, from 3.14 on they are not in its __dict__.
        found.update(getattr(base, "__annotations__", {}))
    return found


def _make_field(row: type, name: str, annotation: object) -> Field:
    kind, optional = _read_annotation(annotation)
    if kind is None:
        raise SchemaError(f"{row.__name__}.{name}: {annotation!r} is not a column kind")
    given = getattr(row, name, None)
    doc, unit = (given.doc, given.unit) if isinstance(given, Column) else ("", "")
    return Field(name, kind, optional, doc, unit)


def _read_annotation(annotation: object) -> tuple[str | None, bool]:
    if isinstance(annotation, Kind):
        return annotation.name, annotation.optional
    words = getattr(annotation, "__name__", None) if isinstance(annotation, type) else None
    written = words or str(annotation)
    optional = "None" in written or "Optional[" in written
    plain = "".join(written.split()).replace("|None", "").replace("None|", "")
    name = plain.replace("Optional[", "").replace("]", "").rpartition(".")[2]
    name = _PLAIN.get(name, name)
    return (name if name in _KINDS else None), optional


def _first_paragraph(row: type) -> str:
    doc = " ".join((row.__doc__ or "").strip().partition("\n\n")[0].split())
    # A dataclass without a docstring gets its signature as one.
    return "" if doc.startswith(row.__name__ + "(") else doc


def name_table(row: type, schema: str) -> str:
    """Return the table of a row class: `GcPause` in schema `python` is `python.gc_pause`."""
    name = row.__name__
    # A word begins where a capital follows a character that is not one.
    begins = [i for i in range(1, len(name)) if name[i] in _CAPITALS and name[i - 1] in _SMALL]
    words = (name[i:j] for i, j in zip([0, *begins], [*begins, None], strict=True))
    return f"{schema}.{'_'.join(words).lower()}"


def _is_name(word: str) -> bool:
    """Return whether a word has only lower-case ASCII letters, digits and `_`, no digit first."""
    return word != "" and word[0] not in _DIGITS and not set(word) - set(_SMALL + "_")


def name_user_table(row: type, name: str | None) -> str:
    """Return the name of a table that the program defines: `job.batch` for `Batch`, or `name`."""
    name = name or name_table(row, "job")
    if name.partition(".")[0] in RESERVED:
        raise SchemaError(
            f"{name}: this schema is reserved; use another, such as job.{name.rpartition('.')[2]}"
        )
    return name
