"""Write a statement in the SQL of another engine, or say which part of it that engine cannot say.

The tree is DuckDB's. Nothing is guessed: what is not written here is refused by its name. What
engines read differently is written out: where NULL is sorted, that 0.5 is a double, names, texts
with a backslash, GROUP BY ALL and GROUP BY 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sonde.session.schema import Schema
from sonde.store.sql_dialect import AGGREGATES, SAME_NAME, Dialect, name_construct
from sonde.store.sql_tree import Node, walk
from sonde.store.sql_values import ValueWriter

_JOINS = {"INNER": "JOIN", "LEFT": "LEFT JOIN", "RIGHT": "RIGHT JOIN", "FULL": "FULL JOIN",
          "SEMI": "LEFT SEMI JOIN", "ANTI": "LEFT ANTI JOIN"}  # fmt: skip


def name_view(table: str) -> str:
    """Return the name that a table has inside an engine, which may know no schemas."""
    return "sonde__" + table.replace(".", "__")


class SqlWriter(ValueWriter):
    """Writes statements about some tables."""

    _count = 0  # of parts of FROM without a name

    def __init__(self, dialect: Dialect, tables: Mapping[str, Schema]) -> None:
        super().__init__(dialect, tables)
        self._parts: dict[str, set[str]] = {}  # the columns of what WITH names

    def write(self, tree: Node) -> str:
        """Return a statement that gives the same rows."""
        return self._node(tree["node"], is_outermost=True)

    # ---- SELECT ----------------------------------------------------------------------------------

    def _node(self, node: Node, is_outermost: bool = False) -> str:
        kind = node["type"]
        if kind == "SELECT_NODE":
            text = self._select(node, is_outermost)
        elif kind == "SET_OPERATION_NODE":
            text = self._combine(node)
        else:
            self._refuse(name_construct(kind))
        return self._with(node) + text + self._modify(node)

    def _with(self, node: Node) -> str:
        parts = []
        for one in node["cte_map"]["map"]:
            value = one["value"]
            if value["aliases"] or value.get("key_targets"):
                self._refuse("WITH name(columns)", "give the columns names with AS")
            self._parts[one["key"].lower()] = self._list_outputs(value["query_node"])
            parts.append(f"{self._name(one['key'])} AS ({self._node(value['query_node'])})")
        return f"WITH {', '.join(parts)} " if parts else ""

    def _combine(self, node: Node) -> str:
        if node["setop_type"] not in ("UNION", "EXCEPT", "INTERSECT"):
            self._refuse(node["setop_type"].replace("_", " "))
        self._need(node["setop_type"])
        word = f" {node['setop_type']} {'ALL ' if node['setop_all'] else ''}"
        names = self._list_names(node)
        parts = [self._node(self._rename(one, names)) for one in node["children"]]
        whole = word.join(f"SELECT * FROM ({one}) AS {self._make_name()}" for one in parts)
        return f"SELECT * FROM ({whole}) AS {self._make_name()}"

    def _list_names(self, node: Node) -> list[str]:
        """Return the names of the columns of a UNION, which are those of its first part."""
        while node["type"] == "SET_OPERATION_NODE":
            node = node["children"][0]
        return [_find_name(one) or f"column_{at}" for at, one in enumerate(node["select_list"])]

    def _rename(self, node: Node, names: Sequence[str]) -> Node:
        """Return a part of a UNION with these names: some engines go by names."""
        items = node.get("select_list")
        if items is None or any(one["class"] == "STAR" for one in items):
            return node
        named = [{**one, "alias": name} for one, name in zip(items, names, strict=True)]
        return {**node, "select_list": named}

    def _make_name(self) -> str:
        self._count += 1
        return self._name(f"part_{self._count}")

    def _select(self, node: Node, is_outermost: bool) -> str:
        if node["sample"]:
            self._refuse("SAMPLE")
        if self._dialect.mixes_names and node["from_table"]["type"] == "JOIN":
            self._check_names(node["from_table"], {**node, "from_table": None})
        text = "SELECT " + self._distinct(node) + ", ".join(
            self._item(one, at if is_outermost else None, node)
            for at, one in enumerate(node["select_list"])
        )  # fmt: skip
        if node["from_table"]["type"] != "EMPTY":
            text += f" FROM {self._table(node['from_table'])}"
        if node["where_clause"]:
            text += f" WHERE {self._value(node['where_clause'])}"
        keys = self._list_keys(node)
        if keys:
            text += f" GROUP BY {', '.join(map(self._value, keys))}"
        if node["having"]:
            text += f" HAVING {self._value(node['having'])}"
        if node["qualify"]:
            self._need("QUALIFY")
            text += f" QUALIFY {self._value(node['qualify'])}"
        return text

    def _distinct(self, node: Node) -> str:
        for one in node["modifiers"]:
            if one["type"] == "DISTINCT_MODIFIER":
                if one.get("distinct_on_targets"):
                    self._refuse("DISTINCT ON", "use ROW_NUMBER() OVER (…)")
                return "DISTINCT "
        return ""

    def _item(self, one: Node, place: int | None, node: Node) -> str:
        if one["class"] == "STAR":
            return self._star(one, node["from_table"])
        text = self._value(one)
        name = _find_name(one) or (f"column_{place}" if place is not None else "")
        is_bare = one["class"] == "COLUMN_REF" and len(one["column_names"]) == 1
        if not name or (is_bare and not one["alias"]):
            return text
        return f"{text} AS {self._name(name)}"

    def _star(self, one: Node, table: Node) -> str:
        if one.get("columns") or one.get("expr"):
            self._refuse("COLUMNS(…)")
        if one.get("replace_list") or one.get("rename_list") or one.get("qualified_exclude_list"):
            self._refuse("* REPLACE or RENAME")
        if any(part.get("using_columns") for part in walk(table)):
            self._refuse("* of a JOIN … USING", "name the columns: their order differs")
        star = f"{self._name(one['relation_name'])}.*" if one.get("relation_name") else "*"
        left = ", ".join(map(self._name, one.get("exclude_list") or ()))
        if left:
            self._need("* EXCLUDE")
        return f"{star} EXCEPT ({left})" if left else star

    def _list_keys(self, node: Node) -> list[Node]:
        if len(node["group_sets"]) > 1:
            self._refuse("ROLLUP, CUBE and GROUPING SETS")
        items: list[Node] = node["select_list"]
        if node["aggregate_handling"] == "STANDARD_HANDLING":
            return [self._resolve(one, items) for one in node["group_expressions"]]
        if any(one["class"] == "STAR" for one in items):
            self._refuse("* with GROUP BY ALL", "name the columns")
        return [one for one in items if not any(map(_is_aggregate, walk(one)))]

    def _resolve(self, value: Node, items: Sequence[Node]) -> Node:
        """Return what a number in GROUP BY or ORDER BY stands for."""
        if value["class"] != "CONSTANT" or value["literal"]["kind"] != "INTEGER":
            return value
        place = int(value["literal"]["text"]) - 1
        if any(one["class"] == "STAR" for one in items[: place + 1]):
            self._refuse("the number of a column behind *", "use its name")
        return items[place]

    def _modify(self, node: Node) -> str:
        text = ""
        for one in node["modifiers"]:
            if one["type"] == "ORDER_MODIFIER":
                orders = [self._name_column(order, node) for order in one["orders"]]
                text += f" ORDER BY {self._orders(orders)}"
            elif one["type"] == "LIMIT_MODIFIER":
                text += self._limit(one)
        return text

    def _limit(self, one: Node) -> str:
        if one.get("limit_type", "ROW_COUNT") != "ROW_COUNT":
            self._refuse("LIMIT in percent")
        if one["offset"]:
            self._need("OFFSET")
        limit = f" LIMIT {self._value(one['limit'])}" if one["limit"] else ""
        return limit + (f" OFFSET {self._value(one['offset'])}" if one["offset"] else "")

    def _name_column(self, order: Node, node: Node) -> Node:
        """Return what to sort by, with a column instead of its number."""
        while node["type"] == "SET_OPERATION_NODE":
            node = node["children"][0]
        item = self._resolve(order["expression"], node["select_list"])
        if item is order["expression"] or not item["alias"]:
            return {**order, "expression": item}
        return {**order, "expression": {"class": "COLUMN_REF", "column_names": [item["alias"]]}}

    # ---- FROM ------------------------------------------------------------------------------------

    def _table(self, table: Node) -> str:
        kind = table["type"]
        if table.get("sample"):
            self._refuse("TABLESAMPLE")
        if table.get("column_name_alias"):
            self._refuse("names of columns behind a table")
        if kind == "BASE_TABLE":
            return self._base(table)
        if kind == "JOIN":
            return self._join(table)
        if kind != "SUBQUERY":
            function = table.get("function", {}).get("function_name")
            self._refuse(f"{function}() in FROM" if function else name_construct(kind))
        alias = self._name(table["alias"]) if table["alias"] else self._make_name()
        return f"({self._node(table['subquery']['node'])}) AS {alias}"

    # ---- names that two tables of a JOIN have ----------------------------------------------------

    def _check_names(self, join: Node, rest: Node) -> None:
        """Refuse a column that the engine would take from another table without saying so."""
        self._check_references(join, rest)
        while join["left"]["type"] == "JOIN":  # a condition may name both of its sides
            self._check_references(join["left"], join["condition"])
            join = join["left"]

    def _check_references(self, join: Node, where: Any) -> None:
        leaves = self._list_leaves(join)
        later = {alias for alias, _ in leaves[1:]}
        for one in walk(where):
            if one.get("class") != "COLUMN_REF" or len(one["column_names"]) < 2:
                continue
            table, name = (word.lower() for word in one["column_names"][-2:])
            others = (columns for alias, columns in leaves if alias != table)
            if table in later and any(name in columns for columns in others):
                self._refuse(
                    f"{table}.{name}, which another table of the JOIN has as well,",
                    f"rename it: JOIN (SELECT {name} AS other FROM …)",
                )

    def _list_leaves(self, table: Node) -> list[tuple[str, set[str]]]:
        """Return the tables of a FROM from left to right: names, and columns."""
        if table["type"] == "JOIN":
            return [*self._list_leaves(table["left"]), *self._list_leaves(table["right"])]
        if table["type"] == "SUBQUERY":
            return [(table["alias"].lower(), self._list_outputs(table["subquery"]["node"]))]
        name = table.get("table_name", "").lower()
        schema = self._tables.get(f"{table.get('schema_name', '').lower()}.{name}")
        columns = {one.name for one in schema.fields} if schema else self._parts.get(name, set())
        return [((table["alias"] or name).lower(), columns)]

    def _list_outputs(self, node: Node) -> set[str]:
        """Return the names of the columns of a SELECT."""
        while node["type"] == "SET_OPERATION_NODE":
            node = node["children"][0]
        found = set()
        for one in node.get("select_list", ()):
            if one["class"] == "STAR":
                found |= set().union(*(names for _, names in self._list_leaves(node["from_table"])))
            else:
                found.add(_find_name(one).lower())
        return found

    def _base(self, table: Node) -> str:
        if table.get("at_clause"):
            self._refuse("AT (…)")
        name = table["table_name"].lower()
        whole = f"{table['schema_name'].lower()}.{name}"
        view = name_view(whole) if whole in self._tables else name
        return f"{self._name(view)} AS {self._name(table['alias'] or name)}"

    def _join(self, table: Node) -> str:
        kind, how = table["ref_type"], table["join_type"]
        left, right = self._table(table["left"]), self._table(table["right"])
        if table["right"]["type"] == "JOIN":
            right = f"({right})"
        if kind == "CROSS":
            return f"{left}{self._dialect.functions.get(kind, ' CROSS JOIN ')}{right}"
        if kind != "REGULAR" or how not in _JOINS:
            self._refuse(f"{how if kind == 'REGULAR' else kind} JOIN")
        word = self._dialect.functions.get(_JOINS[how], _JOINS[how])
        if table["using_columns"]:
            names = ", ".join(map(self._name, table["using_columns"]))
            return f"{left} {word} {right} USING ({names})"
        return f"{left} {word} {right} ON {self._value(table['condition'])}"


def _find_name(one: Node) -> str:
    """Return the name that a column has without more ado; empty if it has none."""
    if one["alias"] or one["class"] != "COLUMN_REF":
        return str(one["alias"])
    return str(one["column_names"][-1])


def _is_aggregate(one: Any) -> bool:
    return (
        one.get("class") == "FUNCTION"
        and SAME_NAME.get(one["function_name"], one["function_name"]) in AGGREGATES
    )
