"""A shared place with the recordings of a job of many ranks, made from one real session: every table
has rows, with a value of its kind in each column, the same each time."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sonde.collector.shipper import Shipper
from sonde.session.schema import Field, Schema
from sonde.store import catalog
from sonde.store.place import SESSIONS, find_day, name_file
from sonde.store.shared_session import find_shared
from sonde.store.shared_tables import SharedTables, make_columns

START_US = 1_700_000_000_000_000
_WORDS = {
    "state": ("done", "running"), "stage": ("forward", "backward"), "ended_by": ("step",) * 9 + ("end",),
    "op": ("all_reduce", "broadcast"), "module": ("layer.0", "layer.1", "head"),
    "frames": ("main (train.py:4);step (train.py:9)", "main (train.py:4);load (data.py:2)"),
    "group_name": ("0",), "group_ranks": ("0,1,2,3",), "device": ("cuda:0", "cuda:1"),
    "kind": ("launch", "synchronize", "allocate", "free", "copy"),
    "direction": ("host to device", "device to host"), "call": ("cudaMalloc", "cudaMallocHost"),
}  # fmt: skip
_TYPES = {"layer.0": "Linear", "layer.1": "LayerNorm", "head": "LSTM"}  # one, whoever looks


def make_fleet(
    run: Any,
    root: Path,
    place: Path,
    *,
    ranks: int = 4,
    rows: int = 200,
    empty: tuple[str, ...] = (),
) -> list[str]:
    """Fill a place; return the names of the tables in it that an engine can read. The columns
    `empty` are NULL in every row."""
    run(
        "import sonde; sonde.start(collector='off')", SONDE_ARCHIVE_TO=str(place), SONDE_JOB="train"
    )
    Shipper(str(root)).step(0.0)
    (first,) = find_shared(str(place))
    tables = SharedTables([first])
    computed = {view.schema.table for view in catalog.list_views() if view.from_tables}
    schemas = [one for one in tables.list_schemas() if one.table not in computed]
    before = [*place.rglob("*.parquet")]
    for rank in range(ranks):
        who = {"host": f"node{rank // 2}", "pid": 100 + rank, "rank": rank, "job": "train"}
        who["session"] = f"{who['host']}-{who['pid']}-20231114T221320.000000"
        for schema in schemas:
            if schema.table == SESSIONS:
                _write(place, schema, who, [_copy_session(first.row, place, schema, who)])
            else:
                shared = schema.scope == "host"
                chance = random.Random(f"{schema.table} {who['host'] if shared else rank}")
                made = [_make_row(chance, schema, who, at) for at in range(rows)]
                _write(place, schema, who, [one | dict.fromkeys(empty) for one in made])
    for path in before:
        path.unlink()
    return [schema.table for schema in schemas]


def _write(place: Path, schema: Schema, who: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Write the rows of a session as two files, as a collector does."""
    columns = make_columns(schema)
    folder = place / schema.table / find_day(START_US)
    folder.mkdir(parents=True, exist_ok=True)
    middle = len(rows) // 2
    for first, last in ((0, middle), (middle, len(rows))):
        if first < last:
            table = pa.Table.from_pylist(rows[first:last], schema=columns)
            name = name_file(str(who["session"]), first, last, is_live=False)
            pq.write_table(table, folder / name, store_schema=False)


def _copy_session(row: dict[str, Any], place: Path, schema: Schema, who: dict[str, Any]) -> dict[str, Any]:  # fmt: skip
    meta = json.loads(row["meta"]) | {name: who[name] for name in ("host", "pid", "rank", "job")}
    meta |= {"id": who["session"], "wall_ns": START_US * 1000}
    found = {field.name: row.get(field.name) for field in schema.fields}
    times = {"start_wall_ns": START_US * 1000, "end_wall_ns": START_US * 1000 + 60 * 10**9}
    return found | who | times | {"meta": json.dumps(meta), "state": "ended"}


def _make_row(
    chance: random.Random, schema: Schema, who: dict[str, Any], at: int
) -> dict[str, Any]:
    row = {field.name: _make_value(chance, field, at) for field in schema.fields}
    row |= {name: value for name, value in who.items() if name in row}
    if schema.scope == "host":
        row |= {name: None for name in ("pid", "rank") if name in row}
    elif row.get("thread") is not None and at % 3:
        row["thread"] = who["pid"]  # the main one
    if row.get("module") in _TYPES and "type" in row:
        row |= {"type": _TYPES[row["module"]], "dtype": "float32"}
    return row


def _make_value(chance: random.Random, field: Field, at: int) -> Any:
    if field.name == "step":
        return at // 2
    if field.kind == "timestamp":
        return START_US + at * 250_001
    if field.name == "t_ns":
        return at * 250_001_000 + 7
    if field.name in ("cores", "depth", "gpu", "generation"):
        return at % 3
    if field.optional and chance.random() < 0.15:
        return None
    if field.kind == "text":
        return chance.choice(_WORDS.get(field.name, ("a", "b'c", "d\\e", "Ä%_")))
    if field.kind == "bool":
        return chance.random() < (0.9 if field.name == "training" else 0.3)
    if field.kind == "f64":
        return chance.randrange(1, 10**6) / 1024
    return chance.randrange(1, {"8": 100, "6": 10**4}.get(field.kind[-1], 10**6))
