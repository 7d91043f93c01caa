"""One statement for a cluster as two: what every host works out, and what is made of the answers.

DuckDB's own parser takes the statement apart. Rows of one table that are picked, and sums, counts,
extremes and means of them, can be worked out host by host. For anything else the hosts send the
rows of the tables, and the statement is run over all of them here: that is always right."""

from __future__ import annotations

import copy
import json
import re
from typing import Any, NamedTuple

import duckdb

from sonde.store import catalog
from sonde.store.rows import widen
from sonde.store.sql_tree import Node, SqlParser, find_tables, list_arguments, walk

ANSWERS = "answers"  # the table of what the hosts answered
_SAME = ("min", "max", "any_value", "bool_and", "bool_or")  # of the hosts' values, the same again
_MERGED = {"count": "coalesce(sum({0}), 0)::BIGINT", "count_star": "coalesce(sum({0}), 0)::BIGINT",
           "sum": "sum({0})", "avg": "sum({0}) / sum({1})",
           **{name: name + "({0})" for name in _SAME}}  # fmt: skip
_HIDDEN_KEYS = ("alias", "query_location", "query_location_length")


class Plan(NamedTuple):
    """What to ask of the hosts, by the name of the table that the answers are put into; and what
    to ask of those tables."""

    remote: dict[str, str]
    final: str
    distinct: tuple[str, ...] = ()  # tables of which hosts may send the same rows


class _NoSplit(Exception):
    """The statement has something that cannot be worked out host by host."""


def plan(sql: str) -> Plan | None:
    """Return how to ask a cluster; None if the statement is about no table of ours."""
    parser = SqlParser()
    try:
        tree = parser.parse(sql)
        if tree is None:
            return None
        try:
            return _Split(parser, tree).plan()
        except (_NoSplit, KeyError, TypeError, IndexError):  # another DuckDB may write other trees
            return _plan_rows(sql, tree)
    finally:
        parser.close()


def _find_columns(table: str) -> set[str] | None:
    """Return the columns of a table; None of a program's own."""
    views = {view.schema.table: view.schema for view in catalog.list_views()}
    known = {schema.table: widen(schema) for schema in catalog.list_recorded()} | views
    return {field.name for field in known[table].fields} if table in known else None


# ---- rows ----------------------------------------------------------------------------------------


def _plan_rows(sql: str, tree: Node) -> Plan | None:
    named = find_tables(tree)
    text = re.sub(r"count\s*\(\s*\*\s*\)", "", sql.lower())
    remote, distinct = {}, []
    for table in sorted(named):
        columns = _find_columns(table)
        words = set(re.findall(r"\w+", text))
        # Rows that hosts share are told apart by all of their columns.
        is_shared = columns is not None and "host" not in columns
        wanted = sorted(columns & words) if columns and not is_shared and "*" not in text else []
        chosen = ", ".join(f'"{name}"' for name in wanted) or "*"
        remote[table] = f"SELECT {chosen} FROM {table}"
        if is_shared:
            distinct.append(table)
    return Plan(remote, sql, tuple(distinct)) if remote else None


# ---- host by host --------------------------------------------------------------------------------


class _Split:
    """Splits one SELECT from one table."""

    def __init__(self, parser: SqlParser, tree: Node) -> None:
        self._parser, self._tree, self._node = parser, tree, tree["node"]
        self._parts: list[Node] = []  # what hosts work out beside the keys
        self._keys: dict[str, str] = {}  # how an expression reads -> the column of the hosts
        self._aliases: dict[str, Node] = {}

    def plan(self) -> Plan:
        self._check()
        node = self._node
        self._aliases = {one["alias"].lower(): one for one in node["select_list"] if one["alias"]}
        grouped = node["group_expressions"] or node["aggregate_handling"] != "STANDARD_HANDLING"
        whole = [node["select_list"], node["having"], node["modifiers"]]
        if grouped or node["having"] or any(map(self._is_sum, walk(whole))):
            return self._plan_sums()
        return self._plan_picks()

    def _check(self) -> None:
        node = self._node
        table = node["from_table"]
        simple = (
            node["type"] == "SELECT_NODE"
            and not node["cte_map"]["map"]
            and table["type"] == "BASE_TABLE"
            and not (table.get("sample") or table.get("at_clause") or table["column_name_alias"])
            and not (node["sample"] or node["qualify"])
            and len(node["group_sets"]) <= 1
            and all(one.get("class") not in ("WINDOW", "SUBQUERY") for one in walk(node))
            and all(one.get("type") != "DISTINCT_MODIFIER" or not one["distinct_on_targets"]
                    for one in node["modifiers"])
        )  # fmt: skip
        if not simple:
            raise _NoSplit
        name = f"{table['schema_name']}.{table['table_name']}".lower()
        self._columns = _find_columns(name)
        if not table["schema_name"] or (self._columns is not None and "host" not in self._columns):
            raise _NoSplit  # such a table has each row once, however many hosts have it

    def _is_sum(self, one: Node) -> bool:
        return one.get("class") == "FUNCTION" and one["function_name"] in self._parser.aggregates

    def _write(self, node: Node) -> str:
        return self._parser.write({**self._tree, "node": node})

    # ---- rows that are picked --------------------------------------------------------------------

    def _plan_picks(self) -> Plan:
        node = copy.deepcopy(self._node)
        hidden, orders, tail = list[Node](), list[Node](), ""
        for one in node["modifiers"]:
            if one["type"] == "ORDER_MODIFIER":
                for order in one["orders"]:
                    name = f"_order_{len(hidden)}"
                    value = copy.deepcopy(self._resolve(order["expression"]))
                    hidden.append({**value, "alias": name})
                    orders.append({**order, "expression": self._parser.parse_value(name)})
            elif one["type"] == "LIMIT_MODIFIER":
                tail = _shift_limit(one)
        names = [_name_column(one) for one in node["select_list"]]
        if len(set(names)) < len(names):
            raise _NoSplit
        final = self._read_final(hidden)
        kept = copy.deepcopy(self._node["modifiers"])
        for one in kept:
            if one["type"] == "ORDER_MODIFIER":
                one["orders"] = orders
        final["modifiers"] = kept
        node["select_list"] += hidden
        if tail == "all":
            node["modifiers"] = [m for m in node["modifiers"] if m["type"] != "LIMIT_MODIFIER"]
        return Plan({ANSWERS: self._write(node)}, self._write(final))

    def _read_final(self, hidden: list[Node]) -> Node:
        left = ", ".join(one["alias"] for one in hidden)
        tree = self._parser.parse(
            f"SELECT * {f'EXCLUDE ({left})' if left else ''} FROM {ANSWERS}"
        )  # fmt: skip
        assert tree is not None
        node: Node = tree["node"]
        return node

    def _resolve(self, value: Node) -> Node:
        """Return what a name or a number in GROUP BY or ORDER BY stands for."""
        if value["class"] == "STAR":
            raise _NoSplit
        if value["class"] == "CONSTANT":
            place = _read_number(value)
            if any(one["class"] == "STAR" for one in self._node["select_list"][:place]):
                raise _NoSplit
            return dict(self._node["select_list"][place - 1])
        if value["class"] == "COLUMN_REF" and len(value["column_names"]) == 1:
            return self._aliases.get(value["column_names"][0].lower(), value)
        return value

    # ---- sums ------------------------------------------------------------------------------------

    def _plan_sums(self) -> Plan:
        node = self._node
        keys = [self._resolve_key(one) for one in node["group_expressions"]]
        if node["aggregate_handling"] != "STANDARD_HANDLING":  # GROUP BY ALL
            keys = [one for one in node["select_list"] if not any(map(self._is_sum, walk(one)))]
        if any(one["class"] in ("CONSTANT", "STAR") for one in keys):
            raise _NoSplit
        for at, key in enumerate(keys):
            self._keys[_show(key)] = f"_key_{at}"
        chosen = [{**self._merge(one), "alias": self._name(one)} for one in node["select_list"]]
        final = {
            **node, "select_list": chosen, "where_clause": None,
            "having": node["having"] and self._merge(node["having"]),
            "modifiers": [self._merge_modifier(one) for one in node["modifiers"]],
            "from_table": self._read_final([])["from_table"],
            "group_expressions": list(map(self._parser.parse_value, self._keys.values())),
            "group_sets": [list(range(len(keys)))] if keys else [],
            "aggregate_handling": "STANDARD_HANDLING",
        }  # fmt: skip
        remote = {
            **node, "having": None, "modifiers": [], "aggregate_handling": "STANDARD_HANDLING",
            "select_list": [*({**key, "alias": f"_key_{at}"} for at, key in enumerate(keys)),
                            *self._parts],
            "group_expressions": [{**key, "alias": ""} for key in keys],
            "group_sets": final["group_sets"],
        }  # fmt: skip
        if not remote["select_list"]:
            raise _NoSplit
        return Plan({ANSWERS: self._write(remote)}, self._write(final))

    def _resolve_key(self, value: Node) -> Node:
        if value["class"] == "COLUMN_REF" and (
            self._columns is None or value["column_names"][-1].lower() in self._columns
        ):
            return value  # in GROUP BY, a column comes before an alias
        return self._resolve(value)

    def _merge_modifier(self, one: Node) -> Node:
        if one["type"] != "ORDER_MODIFIER":
            return one
        orders = [
            {**order, "expression": self._merge(self._resolve(order["expression"]))}
            for order in one["orders"]
        ]
        return {**one, "orders": orders}

    def _merge(self, value: Any) -> Any:
        """Return an expression over the hosts' answers instead of over rows."""
        if isinstance(value, list):
            return [self._merge(one) for one in value]
        if not isinstance(value, dict):
            return value
        key = self._keys.get(_show(value)) if "class" in value else None
        if key is not None:
            return {**self._parser.parse_value(key), "alias": value.get("alias", "")}
        if value.get("class") in ("COLUMN_REF", "STAR"):
            raise _NoSplit
        if self._is_sum(value):
            return self._merge_sum(value)
        return {name: self._merge(one) for name, one in value.items()}

    def _merge_sum(self, value: Node) -> Node:
        name = value["function_name"]
        how = _MERGED.get(name)
        if how is None or value["distinct"] or value["order_bys"]["orders"]:
            raise _NoSplit
        if len(list_arguments(value)) > 1:
            raise _NoSplit
        parts = ["sum", "count"] if name == "avg" else [name]
        names = [self._add_part(value, part) for part in parts]
        return {**self._parser.parse_value(how.format(*names)), "alias": value["alias"]}

    def _add_part(self, value: Node, func: str) -> str:
        alias = f"_part_{len(self._parts)}"
        part = {**value, "function_name": func, "alias": alias}
        if "qualified_name" in value:
            part["qualified_name"] = {"path": [func]}
        self._parts.append(part)
        return alias

    def _name(self, one: Node) -> str:
        """Return the name that a column of the answer has on one machine."""
        if one["alias"] or one["class"] == "COLUMN_REF":
            return _name_column(one)
        bare = {**self._read_final([]), "select_list": [one], "from_table": {"type": "EMPTY"}}
        try:
            return self._write(bare).removeprefix("SELECT ").strip()
        except duckdb.Error:
            raise _NoSplit from None


def _name_column(one: Node) -> str:
    if one["alias"]:
        return str(one["alias"])
    return str(one["column_names"][-1]) if one["class"] == "COLUMN_REF" else _show(one)


def _show(value: Node) -> str:
    """Return an expression as a text that is the same for equal ones."""

    def clear(one: Any) -> Any:
        if isinstance(one, dict):
            return {name: clear(each) for name, each in one.items() if name not in _HIDDEN_KEYS}
        if isinstance(one, list):
            return [clear(each) for each in one]
        return one

    return json.dumps(clear(value), sort_keys=True)


def _read_number(value: Node) -> int:
    """Return a whole number that stands in the statement."""
    holder = value.get("literal") or value["value"]
    text = str(holder.get("text", holder.get("value")))
    if not text.isdecimal() or int(text) < 0:
        raise _NoSplit
    return int(text)


def _shift_limit(one: Node) -> str:
    """Have a host send as many rows as the answer needs: LIMIT 5 OFFSET 2 is its first 7. Returns
    `all` where that cannot be told."""
    if one["limit"] is None or one["limit"]["class"] != "CONSTANT":
        return "all"
    if one.get("limit_type", "ROW_COUNT") != "ROW_COUNT" or (
        one["offset"] and one["offset"]["class"] != "CONSTANT"
    ):
        return "all"
    if one["offset"]:
        total = _read_number(one["limit"]) + _read_number(one["offset"])
        holder = one["limit"].get("literal") or one["limit"]["value"]
        holder["text" if "text" in holder else "value"] = (
            str(total) if "text" in holder else total
        )  # fmt: skip
        one["offset"] = None
    return ""
