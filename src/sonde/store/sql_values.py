"""Write the values of a statement in the SQL of another engine: columns, functions, windows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import NoReturn

from sonde.errors import QueryError
from sonde.session.schema import Schema
from sonde.store.sql_dialect import (
    AGGREGATES,
    ARITHMETIC,
    COMPARISONS,
    LIKES,
    RANKING,
    SAME_NAME,
    UNITS,
    Dialect,
    name_construct,
)
from sonde.store.sql_tree import Node, list_arguments, walk

_FRAME = {"UNBOUNDED_PRECEDING": "UNBOUNDED PRECEDING", "UNBOUNDED_FOLLOWING":
          "UNBOUNDED FOLLOWING", "CURRENT_ROW": "CURRENT ROW"}  # fmt: skip
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_EXACT = ("text", "bool", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")


class ValueWriter:
    """Writes what stands in a SELECT, and refuses what the engine cannot say."""

    def __init__(self, dialect: Dialect, tables: Mapping[str, Schema]) -> None:
        self._dialect, self._tables = dialect, tables
        fields = [field for table in tables.values() for field in table.fields]
        inexact = {field.name for field in fields if field.kind not in _EXACT}
        # Columns that every engine turns into the same text, and into the same whole number.
        self._exact = {field.name for field in fields} - inexact

    def _node(self, node: Node) -> str:
        """Write a SELECT within a value."""
        raise NotImplementedError

    def _refuse(self, what: str, instead: str = "") -> NoReturn:
        hint = f"; {instead}" if instead else ""
        raise QueryError(
            f"{what} is not part of the SQL that {self._dialect.name} shares with sonde{hint} "
            "(docs/fleet.md lists what is; without --engine all of DuckDB's SQL can be used)"
        )

    def _need(self, construct: str) -> None:
        if construct in self._dialect.lacks:
            self._refuse(construct)

    def _name(self, name: str) -> str:
        quote = self._dialect.quote
        return quote + name.lower().replace(quote, quote * 2) + quote

    def _value(self, value: Node) -> str:
        write = {
            "COLUMN_REF": self._column, "CONSTANT": self._constant, "FUNCTION": self._function,
            "COMPARISON": self._compare, "CONJUNCTION": self._conjoin, "OPERATOR": self._operator,
            "CASE": self._case, "CAST": self._cast, "WINDOW": self._window,
            "SUBQUERY": self._subquery, "BETWEEN": self._between,
        }.get(value["class"])  # fmt: skip
        if write is None:
            self._refuse(name_construct(value["class"]))
        return write(value)

    def _values(self, values: Sequence[Node]) -> str:
        return ", ".join(map(self._value, values))

    def _column(self, value: Node) -> str:
        names = value["column_names"]
        if len(names) == 3 and ".".join(names[:2]).lower() in self._tables:
            names = names[1:]
        if len(names) > 2:
            self._refuse(".".join(names))
        return ".".join(map(self._name, names))

    def _constant(self, value: Node) -> str:
        kind, text = value["literal"]["kind"], value["literal"]["text"]
        if kind == "NULL_LITERAL":
            return "NULL"
        if kind == "STRING":
            return self._text(text)
        if kind == "NUMERIC":  # with an exponent it is a double everywhere, and not a decimal
            return text if "e" in text.lower() else f"{text}e0"
        return str(text)

    def _text(self, text: str) -> str:
        if self._dialect.has_backslash:
            text = text.replace("\\", "\\\\").replace("'", "\\'")
            return f"'{text}'"
        return "'" + text.replace("'", "''") + "'"

    def _compare(self, value: Node) -> str:
        left, right = self._value(value["left"]), self._value(value["right"])
        if value["type"] in COMPARISONS:
            return f"({left} {COMPARISONS[value['type']]} {right})"
        if value["type"] not in ("COMPARE_DISTINCT_FROM", "COMPARE_NOT_DISTINCT_FROM"):
            self._refuse(value["type"])
        same = f"({left} <=> {right})"
        return same if "NOT" in value["type"] else f"(NOT {same})"

    def _conjoin(self, value: Node) -> str:
        word = " AND " if value["type"] == "CONJUNCTION_AND" else " OR "
        return "(" + word.join(map(self._value, value["children"])) + ")"

    def _between(self, value: Node) -> str:
        parts = (self._value(value[name]) for name in ("input", "lower", "upper"))
        return "({} BETWEEN {} AND {})".format(*parts)

    def _pick_rows(self, values: Sequence[Node]) -> str:
        """Write `(a, b) IN ((1, 2), …)`, which few can say, as comparisons."""
        names, *rows = (list(map(self._value, _list_row(one))) for one in values)
        found = (
            " AND ".join(f"{name} = {value}" for name, value in zip(names, row, strict=True))
            for row in rows
        )
        return "(" + " OR ".join(f"({one})" for one in found) + ")"

    def _operator(self, value: Node) -> str:
        if value["type"] == "COMPARE_IN" and all(map(_list_row, value["children"])):
            return self._pick_rows(value["children"])
        kind, parts = value["type"], [self._value(one) for one in value["children"]]
        if kind in ("COMPARE_IN", "COMPARE_NOT_IN"):
            word = "NOT IN" if "NOT" in kind else "IN"
            return f"({parts[0]} {word} ({', '.join(parts[1:])}))"
        if kind == "OPERATOR_NOT":
            return f"(NOT {parts[0]})"
        if kind in ("OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL"):
            return f"({parts[0]} IS {'NOT ' if 'NOT' in kind else ''}NULL)"
        if kind != "OPERATOR_COALESCE":
            self._refuse(name_construct(kind))
        return f"COALESCE({', '.join(parts)})"

    def _case(self, value: Node) -> str:
        text = "CASE"
        for one in value["case_checks"]:
            text += f" WHEN {self._value(one['when_expr'])} THEN {self._value(one['then_expr'])}"
        return f"{text} ELSE {self._value(value['else_expr'])} END"

    def _cast(self, value: Node) -> str:
        kind, child = value["type_expr"]["type_name"].upper(), value["child"]
        if kind.startswith("TIMESTAMP") and child["class"] == "CONSTANT":
            return self._moment(_read_moment(child["literal"]["text"]))
        name = self._dialect.types.get(kind)
        if name is None or value["try_cast"]:
            self._refuse(f"{'TRY_CAST' if value['try_cast'] else 'CAST'} AS {kind}")
        if kind in ("BIGINT", "INTEGER", "VARCHAR") and not self._is_exact(child):
            instead = "use CASE" if kind == "VARCHAR" else "use FLOOR() or ROUND()"
            self._refuse(f"CAST of anything but whole numbers and texts AS {kind}", instead)
        return f"CAST({self._value(child)} AS {name})"

    def _moment(self, us: int | None) -> str:
        if us is None:
            self._refuse("a moment that is not written as TIMESTAMP '2026-01-31 12:30:00'")
        return self._dialect.moment(us)

    def _is_exact(self, value: Node) -> bool:
        if value["class"] == "COLUMN_REF":
            return value["column_names"][-1].lower() in self._exact
        if value["class"] == "CAST":
            return str(value["type_expr"]["type_name"]).upper() == "VARCHAR"
        if value["class"] == "FUNCTION" and value["function_name"] == "||":
            return True
        return bool(value["class"] == "CONSTANT" and value["literal"]["kind"] != "NUMERIC")

    def _subquery(self, value: Node) -> str:
        kind, text = value["subquery_type"], self._node(value["subquery"]["node"])
        if kind == "SCALAR":
            return f"({text})"
        if kind in ("EXISTS", "NOT_EXISTS"):
            self._need("EXISTS")
            return f"({kind.replace('_', ' ')} ({text}))"
        if kind != "ANY" or value["comparison_type"] != "COMPARE_EQUAL":
            self._refuse(f"{kind} (SELECT …)")
        return f"({self._value(value['child'])} IN ({text}))"

    def _orders(self, orders: Sequence[Node]) -> str:
        parts = []
        for one in orders:
            if one["expression"]["class"] == "STAR":
                self._refuse("ORDER BY ALL")
            falls = " DESC" if one["type"] == "DESCENDING" else ""
            nulls = "FIRST" if "FIRST" in one["null_order"] else "LAST"
            parts.append(f"{self._value(one['expression'])}{falls} NULLS {nulls}")
        return ", ".join(parts)

    # ---- functions -------------------------------------------------------------------------------

    def _function(self, value: Node) -> str:
        name = value["function_name"].lower()
        name = SAME_NAME.get(name, name)
        values = [one["expression"] for one in list_arguments(value)]
        if name in ARITHMETIC and value["is_operator"]:
            parts = [self._value(one) for one in values]
            return f"({parts[0]} {name} {parts[1]})" if len(parts) > 1 else f"({name}{parts[0]})"
        if name in AGGREGATES:
            return self._aggregate(value, name, values)
        if name.startswith("to_") and name.removeprefix("to_").rstrip("s") in UNITS:
            return self._interval(name, values[0])
        write = {"||": self._join_texts, "make_timestamptz": self._make_moment,
                 **dict.fromkeys(LIKES, self._like)}.get(name)  # fmt: skip
        return write(name, values) if write else self._call(name, list(map(self._value, values)))

    def _join_texts(self, _name: str, values: Sequence[Node]) -> str:
        if not all(map(self._is_exact, values)):
            self._refuse("|| of anything but whole numbers and texts")
        return self._call("||", list(map(self._value, values)))

    def _make_moment(self, name: str, values: Sequence[Node]) -> str:
        if len(values) != 1 or values[0]["class"] != "CONSTANT":
            self._refuse(f"{name}() of anything but a number")
        return self._moment(int(values[0]["literal"]["text"]))

    def _call(self, name: str, parts: Sequence[str]) -> str:
        how = self._dialect.find_function(name)
        if how is None:
            self._refuse(name_construct(f"{name}()") if name.isidentifier() else name)
        return how.format(*parts) if "{" in how else f"{how}({', '.join(parts)})"

    def _like(self, name: str, values: Sequence[Node]) -> str:
        pattern = values[1]
        if pattern["class"] != "CONSTANT":
            self._refuse(f"{LIKES[name]} with a pattern that is no plain text")
        text = pattern["literal"]["text"]
        if "\\" in text:
            self._refuse(f"{LIKES[name]} with a backslash")
        return f"({self._value(values[0])} {LIKES[name]} {self._text(text)})"

    def _interval(self, name: str, value: Node) -> str:
        unit = name.removeprefix("to_").rstrip("s").upper()
        numbers = [one["literal"]["text"] for one in walk(value) if one.get("class") == "CONSTANT"]
        if len(numbers) != 1 or not re.fullmatch(r"\d+", numbers[0]):
            self._refuse("INTERVAL of anything but a whole number")
        return f"INTERVAL '{numbers[0]}' {unit}"

    def _aggregate(self, value: Node, name: str, values: list[Node]) -> str:
        if name in self._dialect.lacks:
            self._refuse(f"{name}()")
        orders = value["order_bys"]["orders"]
        condition = self._value(value["filter"]) if value["filter"] else ""
        parts = [self._value(one) for one in values]
        if name == "quantile_cont" and len(orders) == 1 and len(parts) == 1:
            if orders[0]["type"] == "DESCENDING":
                self._refuse("WITHIN GROUP (ORDER BY … DESC)")
            parts = [self._value(orders[0]["expression"]), parts[0]]
        elif orders:
            self._refuse(f"{name}(… ORDER BY …)")
        if name in ("arg_max", "arg_min"):  # DuckDB passes over rows without a value
            condition = " AND ".join(filter(None, (condition, f"{parts[0]} IS NOT NULL")))
        if condition and not self._dialect.has_filter:
            if len(parts) > 1:
                self._refuse(f"{name}() with FILTER")
            name = "count" if name == "count_star" else name
            parts, condition = (
                [f"CASE WHEN {condition} THEN {(parts or ['1'])[0]} ELSE NULL END"],
                "",
            )
        if value["distinct"]:
            parts[0] = f"DISTINCT {parts[0]}"
        text = "COUNT(*)" if name == "count_star" else self._call(name, parts)
        return f"{text} FILTER (WHERE {condition})" if condition else text

    def _window(self, value: Node) -> str:
        name = SAME_NAME.get(value["function_name"].lower(), value["function_name"].lower())
        values = [one["expression"] for one in list_arguments(value)]
        if name not in RANKING | AGGREGATES or name in self._dialect.lacks:
            self._refuse(f"{name}() OVER (…)")
        for key, what in (("ignore_nulls", "IGNORE NULLS"), ("distinct", "DISTINCT in a window"),
                          ("filter_expr", "FILTER in a window"), ("arg_orders", "ORDER BY within a "
                           "window's function")):  # fmt: skip
            if value.get(key):
                self._refuse(what)
        if value["exclude_clause"] != "NO_OTHER":
            self._refuse("EXCLUDE in a window")
        if name in RANKING:
            text = f"{name}({self._values(values)})"
        elif name == "count_star":
            text = "COUNT(*)"
        else:
            text = self._call(name, [self._value(one) for one in values])
        parts = []
        if value["partitions"]:
            parts.append(f"PARTITION BY {self._values(value['partitions'])}")
        if value["orders"]:
            parts.append(f"ORDER BY {self._orders(value['orders'])}")
        return f"{text} OVER ({' '.join([*parts, *self._frame(value)])})"

    def _frame(self, value: Node) -> list[str]:
        ends = (value["start"], value["end"])
        if ends == ("UNBOUNDED_PRECEDING", "CURRENT_ROW_RANGE"):
            is_sum = value["orders"] and value["type"] == "WINDOW_AGGREGATE"
            return ["RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"] if is_sum else []
        kinds = {end.rpartition("_")[2] for end in ends} & {"ROWS", "RANGE", "GROUPS"}
        if kinds != {"ROWS"} and kinds:
            self._refuse("RANGE and GROUPS in a window")
        bounds = []
        for end, count in zip(ends, (value["start_expr"], value["end_expr"]), strict=True):
            bare = end.removesuffix("_ROWS")
            if bare in _FRAME:
                bounds.append(_FRAME[bare])
            else:
                bounds.append(f"{self._value(count)} {bare.rpartition('_')[2]}")
        return [f"ROWS BETWEEN {bounds[0]} AND {bounds[1]}"]


def _list_row(value: Node) -> list[Node]:
    """Return the parts of (a, b); none if a value is something else."""
    if value["class"] != "FUNCTION" or value["function_name"] != "row":
        return []
    return [one["expression"] for one in list_arguments(value)]


def _read_moment(text: str) -> int | None:
    """Return the microseconds since 1970 of a moment, in UTC; None if it is not written in full."""
    try:
        moment = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return (moment - _EPOCH) // timedelta(microseconds=1)
