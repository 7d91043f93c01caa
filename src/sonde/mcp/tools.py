"""The tools: each asks one command, and ends with the next useful question.

The docstring of a tool is what the agent reads about it, so it has few words."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sonde import environ
from sonde.errors import Error
from sonde.mcp.command import MOST, run_command, shorten
from sonde.session.target import find_sessions

_MOST_RECORDINGS = 10
_MOST_FINDINGS = 3
_MOST_CELL = 200  # characters


def recordings() -> str:
    """List what is or was recorded, the newest first. Begin here. Each line begins with a target,
    which all other tools take."""
    found: list[dict[str, Any]] = json.loads(run_command("ps", "--format", "json"))
    if not found:
        raise Error("nothing is recorded yet; `sonde run SCRIPT` or `sonde attach PID` records")
    found.sort(key=lambda row: -row["start_wall_ns"])
    running = [row for row in found if row["state"] in ("running", "paused")]
    first = _name_target((running or found)[0], found)
    lines = [_describe(row) for row in found[:_MOST_RECORDINGS]]
    if len(found) > len(lines):
        lines.append(f"(… and {len(found) - len(lines)} older ones)")
    return _answer("\n".join(lines), f'verdict(target="{first}"): what is wrong with it')


def _name_target(row: Mapping[str, Any], found: Sequence[Mapping[str, Any]]) -> str:
    """Return the job if it has several processes: the one that is to blame may be any of them."""
    together = [one for one in found if row["job"] is not None and one["job"] == row["job"]]
    return f"job:{row['job']}" if len(together) > 1 else str(row["pid"])


def _describe(row: Mapping[str, Any]) -> str:
    state = row["exit_reason"] or row["state"]
    seconds = "" if row["dur_ns"] is None else f", lasted {row['dur_ns'] / 1e9:.0f} s"
    rank = "" if row["rank"] is None else f", rank {row['rank']}"
    job = "" if row["job"] is None else f", job:{row['job']}"
    return f"{row['pid']}: {row['command'][:_MOST_CELL]}: {state}{seconds}{rank}{job}"


def verdict(target: str, since: str = "", until: str = "") -> str:
    """Say what is wrong with a job: the cause, the evidence, the line of code and what to do.
    since and until: "30s" before the end, "+30s" after the start, or an ISO time."""
    text = run_command("advise", *_window(since, until), words=(target,))
    found = text.split("\n\n")
    if len(found) > _MOST_FINDINGS + 1:  # the last part says how much was looked at
        found[_MOST_FINDINGS:-1] = [f"({len(found) - _MOST_FINDINGS - 1} lesser findings left out)"]
    ask = f'tree(target="{target}"): which calls lead to that line, and what else takes time'
    if _is_live(target):
        ask += f'; stacks(target="{target}") if it stands still'
    return _answer("\n".join(found), ask)


def stacks(target: str) -> str:
    """Show what every thread does at this moment, equal stacks once. Any pid works, recorded or
    not; of a process that has ended, its last stacks."""
    text = run_command("stacks", words=(target,))
    ask = "stacks again: what has not moved is stuck" if _is_live(target) else ""
    return _answer(text, ask or f'verdict(target="{target}"): why it is so')


def tree(
    target: str, since: str = "", until: str = "", sort: str = "total", limit: int = 20
) -> str:
    """Show where the time went: the user's own code as a call tree with file:line and source, each
    library call as one line, waiting apart. sort: total, working, waiting or cpu."""
    text = run_command("tree", *_window(since, until), f"--sort={sort}", f"--limit={limit}",
                       words=(target,))  # fmt: skip
    return _answer(text, f'after a change: compare(before="{target}", after=…): whether it helped')


def compare(before: str, after: str) -> str:
    """Compare two recordings, or two parts of one (TARGET@SINCE..UNTIL): what changed by more than
    noise, numbers first, then code."""
    text = run_command("compare", words=(before, after))
    return _answer(text, f'tree(target="{after}"): where the time goes now')


def tables(target: str, table: str = "") -> str:
    """List the tables of a recording; with table, its columns with units and meaning."""
    listing = f"DESCRIBE {table}" if table else "SHOW TABLES"
    rows = json.loads(run_command("query", "--format", "json", words=(target, listing)))
    if table:
        lines = [f"{row['column_name']} {row['column_type']}: {_add_unit(row)}" for row in rows]
        ask = f'sql(target="{target}", sql="SELECT … FROM {table} LIMIT 20")'
    else:
        lines = [f"{row['table']}: {row['meaning']}" for row in rows]
        ask = f'tables(target="{target}", table="NAME"): its columns'
    return _answer("\n".join(lines), ask)


def _add_unit(row: Mapping[str, Any]) -> str:
    return f"{row['meaning']} ({row['unit']})" if row["unit"] else str(row["meaning"])


def sql(target: str, sql: str) -> str:
    """Ask a recording in DuckDB's SQL: one SELECT, read-only. The answer is CSV and is cut when it
    is long, so aggregate, or add LIMIT."""
    text = run_command("query", "--format", "csv", "--timeout", "30s", "--memory", "1GiB",
                       words=(target, sql))  # fmt: skip
    lines = [line[: 4 * _MOST_CELL] for line in text.splitlines()]
    return _answer("\n".join(lines), f'tables(target="{target}") has more to ask about')


TOOLS: tuple[Callable[..., str], ...] = (recordings, verdict, stacks, tree, compare, tables, sql)


def _answer(text: str, ask: str) -> str:
    return f"{shorten(text, MOST)}\n\nNext: {ask}"


def _window(since: str, until: str) -> list[str]:
    named = (("--since", since), ("--until", until))
    return [f"{name}={value}" for name, value in named if value]


def _is_live(target: str) -> bool:
    try:
        return any(one.is_alive() for one in find_sessions(target, environ.find_root()))
    except Error:
        return True  # a process that is not recorded, or else the command would have failed
