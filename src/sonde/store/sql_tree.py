"""A statement as a tree, as DuckDB's own parser takes it apart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import duckdb

Node = dict[str, Any]


class SqlParser:
    """DuckDB's parser, as functions."""

    def __init__(self) -> None:
        self._connection = duckdb.connect(":memory:")
        self.aggregates = {
            name for (name,) in self._ask("SELECT DISTINCT function_name FROM duckdb_functions() "
                                          "WHERE function_type = 'aggregate'")
        }  # fmt: skip

    def _ask(self, sql: str, *values: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql, list(values)).fetchall()

    def parse(self, sql: str) -> Node | None:
        """Return a statement as a tree; None if it is no single SELECT."""
        found = json.loads(self._ask("SELECT json_serialize_sql(?)", sql)[0][0])
        if found.get("error") or len(found["statements"]) != 1:
            return None
        tree: Node = found["statements"][0]
        return tree

    def write(self, tree: Node) -> str:
        """Return a tree as a statement."""
        text = json.dumps({"error": False, "statements": [tree]})
        return str(self._ask("SELECT json_deserialize_sql(?::JSON)", text)[0][0])

    def parse_value(self, text: str) -> Node:
        """Return an expression as a tree."""
        tree = self.parse(f"SELECT {text}")
        assert tree is not None
        value: Node = tree["node"]["select_list"][0]
        return value

    def close(self) -> None:
        self._connection.close()


def walk(node: Any) -> Iterator[Node]:
    """Yield a node and all that is in it."""
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from walk(value)
    elif isinstance(node, list):
        for value in node:
            yield from walk(value)


def list_arguments(value: Node) -> list[Any]:
    """Return what a function is called with."""
    return list(value.get("arguments") or value.get("children") or [])


def find_tables(tree: Node) -> set[str]:
    """Return the tables with a schema that a statement names."""
    return {
        f"{one['schema_name']}.{one['table_name']}".lower()
        for one in walk(tree)
        if one.get("type") == "BASE_TABLE" and one.get("schema_name")
    }
