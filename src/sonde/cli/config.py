"""Show and change the settings of a live recording."""

from __future__ import annotations

import argparse
import sys

from sonde import environ, settings
from sonde.cli import _options, _table
from sonde.fleet.hosts import Cluster, find_cluster
from sonde.session import steering
from sonde.session.target import find_sessions

GROUP = "record"
EXAMPLES = (
    "sonde config                             every setting, its default and its variable",
    "sonde config 4242                        the settings of a live recording",
    "sonde config 4242 stack.every=5ms        change one; the program runs on",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.add_target(
        parser, "the live recording; without it, list all settings and defaults", optional=True,
        cluster=True,
    )  # fmt: skip
    parser.add_argument("changes", metavar="KEY=VALUE", nargs="*", help="a setting to change")
    _options.add_timeout(parser, "2s")


def run(args: argparse.Namespace) -> int:
    changes = _options.split_settings(args.changes)
    if args.target is None:
        rows = [_describe(key) for key in settings.list_keys().values()]
        _table.draw_table(
            ("setting", "default", "change", "environment", "meaning"), rows, sys.stdout
        )
        return 0
    if "@" in args.target and (cluster := find_cluster(args.target)) is not None:
        return _ask_cluster(cluster, changes, args.timeout)
    sessions = steering.select_alive(find_sessions(args.target, environ.find_root()))
    for session in sessions:
        values = (
            steering.configure(session, changes, args.timeout) if changes else session.read_config()
        )
        keys = settings.list_keys()
        shown = changes or values
        known = [keys[name] for name in shown if name in keys]
        rows4 = [(session.pid, key.name, key.show(values[key.name]), key.doc) for key in known]
        _table.draw_table(("pid", "setting", "value", "meaning"), rows4, sys.stdout)
    return 0


def _ask_cluster(cluster: Cluster, changes: dict[str, str], timeout_s: float) -> int:
    from sonde.cli._missing import tell_hosts  # only here: Flight takes a while to import
    from sonde.fleet.cluster import ask_all

    request = {"request": "configure", "changes": changes} if changes else {"request": "settings"}
    found = ask_all(cluster, request, timeout_s)
    found.require_some(cluster.target)
    rows = [row for table in found.tables.values() for row in table.to_pylist()]
    shown = [row for row in rows if not changes or row["setting"] in changes]
    names = ("host", "rank", "pid", "setting", "value")
    _table.draw_table(names, [[row.get(name) for name in names] for row in shown], sys.stdout)
    return tell_hosts(found)


def _describe(key: settings.Key) -> tuple[str, ...]:
    when = "any time" if key.changeable else "at start"
    return key.name, key.show(key.default), when, environ.variable_of(key.name), key.doc
