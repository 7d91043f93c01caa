"""Profiles and captures of all processes of a cluster, for the commands of these names."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from typing import Any

from sonde.cli import _runs, _table
from sonde.cli._missing import tell_hosts
from sonde.errors import Error, HostsMissing
from sonde.fleet.cluster import Gathered, ask_all
from sonde.fleet.hosts import Cluster
from sonde.fleet.job_requests import DONE_COLUMNS
from sonde.session.records import RunResult
from sonde.session.run_result import Result, merge
from sonde.words import count_things

_ANSWER_S = 20.0  # beyond the time of the work itself


def profile_cluster(cluster: Cluster, duration_s: float, args: argparse.Namespace) -> int:
    """Profile all processes at the same time, and show the sum."""
    request = {"request": "profile", "duration_s": duration_s, "every_s": args.every,
               "sources": args.source, "tags": args.tag}  # fmt: skip
    found, rows = _ask(cluster, request, duration_s + args.timeout)
    results = []
    for row in rows:
        try:
            values = json.loads(row["found"] or "null")
            results.append(Result(RunResult.load(values, "its answer")))
        except (Error, ValueError) as error:
            _complain({**row, "note": row["note"] or error})
    if not results:
        raise Error("none of the processes was profiled")
    _runs.show_result(merge(results, args.name or cluster.target), args)
    done = tell_hosts(found)
    return done or int(len(results) < len(rows))


def capture_cluster(cluster: Cluster, request: Mapping[str, Any], span_s: float) -> int:
    """Capture steps of all processes; the traces stay on their hosts, and their rows are asked for
    in SQL."""
    found, rows = _ask(cluster, {"request": "capture", **request}, 4 * span_s)
    shown = [[row[name] for name in ("host", "rank", "pid", "found")]
             for row in rows if row["found"] is not None]  # fmt: skip
    for row in rows:
        if row["found"] is None:
            _complain(row)
    if not shown:
        raise Error("none of the processes made a capture")
    _table.draw_table(("host", "rank", "pid", "trace on that host"), shown, sys.stdout)
    print(f"{count_things(len(shown), 'capture')}: python.torch_op and python.torch_kernel of "
          f"{cluster.target}@… have the rows of all of them", file=sys.stderr)  # fmt: skip
    done = tell_hosts(found)
    return done or int(len(shown) < len(rows))


def _ask(
    cluster: Cluster, request: Mapping[str, Any], span_s: float
) -> tuple[Gathered, list[dict[str, Any]]]:
    found = ask_all(cluster, request, span_s + _ANSWER_S)
    found.require_some(cluster.target)
    rows: list[dict[str, Any]] = []
    for host, table in sorted(found.tables.items()):
        if table.schema.equals(DONE_COLUMNS):
            rows += table.to_pylist()
        else:
            found.failures[host] = HostsMissing("it answered something else")
    return found, rows


def _complain(row: Mapping[str, Any]) -> None:
    who = f"process {row['pid']}" if row["rank"] is None else f"rank {row['rank']}"
    print(f"sonde: {who} on {row['host']}: {row['note']}", file=sys.stderr)
