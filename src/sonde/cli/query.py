"""Ask a recording in SQL."""

from __future__ import annotations

import argparse
import sys

from sonde import settings
from sonde.cli import _options, _table
from sonde.cli._missing import show_answer, tell_missing
from sonde.errors import ConfigError
from sonde.fleet.hosts import CLUSTER_TIMEOUT_S, Cluster, find_cluster
from sonde.store.engine import limited
from sonde.store.place import is_place
from sonde.store.recording import MEMORY, TIMEOUT_S, open_recording
from sonde.store.remote import BUILT_IN, check_address, open_remote

GROUP = "ask"
EXAMPLES = (
    "sonde query 4242 'SELECT * FROM python.gc_pause ORDER BY dur_ns DESC LIMIT 5'",
    "sonde query train-7@slurm 'SELECT rank, COUNT(*) FROM python.torch_step GROUP BY rank'",
    "sonde query all - --format parquet -o rows.parquet < question.sql",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.add_target(parser, "the recording to ask; `sonde tables TARGET` lists its tables",
                        cluster=True)  # fmt: skip
    parser.add_argument("sql", metavar="SQL", help="one SELECT, in DuckDB's SQL; - reads stdin")
    _options.add_format(parser)
    _options.add_output(parser)
    _options.add_span(parser, "--timeout", what="give up after this long (default: "
                      f"{TIMEOUT_S:g}s; of a cluster, 10s)")  # fmt: skip
    parser.add_argument("--memory", default=MEMORY, metavar="SIZE",
                        help="the most memory it may use (default: %(default)s)")  # fmt: skip
    parser.add_argument("--engine", default=BUILT_IN, metavar="ENGINE", help="what works it out, "
                        "over a shared place: duckdb here (default), sc://host:15002 (Spark "
                        "Connect), ray://host:10001 (Daft on Ray)")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    sql = sys.stdin.read() if args.sql == "-" else args.sql
    check_address(args.engine)
    if args.engine != BUILT_IN:
        return _ask_engine(sql, args)
    if is_place(args.target):
        # Before the limit: with its libraries comes an address space that nobody uses.
        import pyarrow.dataset  # noqa: F401
    with limited(_check_size(args.memory)):
        if "@" in args.target and (cluster := find_cluster(args.target)) is not None:
            return _ask_cluster(cluster, sql, args)
        recording = open_recording(args.target)
        rows = recording.query(sql, timeout_s=args.timeout or TIMEOUT_S, memory=args.memory)
        _table.write_rows(rows, args.format, args.output)
    tell_missing(recording.sessions)
    return 0


def _ask_cluster(cluster: Cluster, sql: str, args: argparse.Namespace) -> int:
    from sonde.fleet.query import query_cluster  # only here: Flight takes a while to import

    timeout_s = args.timeout or CLUSTER_TIMEOUT_S
    rows, found = query_cluster(cluster, sql, timeout_s, args.memory)
    return show_answer(found, lambda: _table.write_rows(rows, args.format, args.output))


def _ask_engine(sql: str, args: argparse.Namespace) -> int:
    memory, timeout_s = _check_size(args.memory), args.timeout or TIMEOUT_S
    recording = open_remote(args.target, args.engine)
    rows = recording.query(sql, timeout_s=timeout_s, memory=memory)
    _table.write_rows(rows, args.format, args.output)
    return 0


def _check_size(text: str) -> str:
    try:
        settings.parse_size(text)
    except (KeyError, ValueError):
        raise ConfigError(f"--memory {text!r} is not a size; write 500MiB or 2GiB") from None
    return text
