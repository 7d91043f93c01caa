"""The portable core of SQL: what every engine can say with the same answer, and how each spells it.

A function or a construct that is not listed here is refused by its name: another engine may lack
it, or answer differently without an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

AGGREGATES = {
    "any_value", "arg_max", "arg_min", "avg", "bool_and", "bool_or", "count", "count_star", "max",
    "median", "min", "quantile_cont", "stddev", "stddev_samp", "sum",
}  # fmt: skip
SAME_NAME = {"mean": "avg", "max_by": "arg_max", "min_by": "arg_min", "pow": "power",
             "ceiling": "ceil", "substr": "substring", "char_length": "length",
             "prefix": "starts_with", "suffix": "ends_with", "**": "power"}  # fmt: skip
RANKING = {"dense_rank", "first_value", "lag", "last_value", "lead", "rank", "row_number"}
ARITHMETIC = {"+", "-", "*", "/", "%"}
LIKES = {"~~": "LIKE", "!~~": "NOT LIKE", "~~*": "ILIKE", "!~~*": "NOT ILIKE"}
COMPARISONS = {
    "COMPARE_EQUAL": "=", "COMPARE_NOTEQUAL": "<>", "COMPARE_LESSTHAN": "<",
    "COMPARE_GREATERTHAN": ">", "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
}  # fmt: skip
UNITS = ("year", "month", "day", "hour", "minute", "second")
_ALIKE = ("abs", "ceil", "exp", "floor", "greatest", "least", "length", "ln", "lower", "ltrim",
          "nullif", "power", "replace", "round", "rtrim", "sign", "sqrt", "substring", "trim",
          "upper", "date_trunc")  # fmt: skip

# What a person calls the parts of a tree that have no other name.
_CONSTRUCTS = {
    "ARRAY_EXTRACT": "a list element x[…]", "ARRAY_SLICE": "a slice x[…:…]",
    "COLLATE": "COLLATE", "EXPRESSION_LIST": "VALUES", "LAMBDA": "a lambda",
    "PARAMETER": "a parameter", "PIVOT": "PIVOT", "POSITIONAL_REFERENCE": "#1",
    "RECURSIVE_CTE_NODE": "WITH RECURSIVE", "CTE_NODE": "WITH", "SHOW_REF": "DESCRIBE",
    "STRUCT_EXTRACT": "a struct's field", "list_value()": "a list […]",
    "struct_pack()": "a struct {…}", "row()": "a row (…, …)", "OPERATOR_TRY": "TRY",
    "GROUPING_FUNCTION": "GROUPING()",
}  # fmt: skip


def name_construct(kind: str) -> str:
    """Return what a person calls a part of a tree."""
    return _CONSTRUCTS.get(kind, kind)


@dataclass(frozen=True)
class Dialect:
    """How one engine spells the core, and what of it the engine cannot say."""

    name: str  # for messages
    quote: str  # around names
    types: Mapping[str, str]
    moment: Callable[[int], str]  # writes microseconds since 1970 as a moment
    functions: Mapping[str, str]  # that differ: another name, or a text with {0}, {1}, …
    has_backslash: bool = False  # a backslash in a text is read as a beginning of something else
    has_filter: bool = True
    mixes_names: bool = False  # of two tables of a JOIN with a column x, b.x means a.x
    lacks: frozenset[str] = field(default_factory=frozenset)

    def find_function(self, name: str) -> str | None:
        """Return how a function is written; None if it is not in the core."""
        if name in self.lacks:
            return None
        return self.functions.get(name) or (name if name in (*_ALIKE, *AGGREGATES) else None)
