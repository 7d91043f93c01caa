"""Show the settings and where each comes from; change those of a live recording."""

from __future__ import annotations

import argparse
import os
import sys

from sonde import environ, settings
from sonde.cli import _options, _table
from sonde.errors import ConfigError
from sonde.fleet.hosts import Cluster, find_cluster
from sonde.session import steering
from sonde.session.records import Meta
from sonde.session.target import find_sessions

GROUP = "record"
EXAMPLES = (
    "sonde config                             what a program started here would be recorded with",
    "sonde config 4242                        the settings of a live recording",
    "sonde config 4242 stack.every=5ms        change one; the program runs on",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.add_target(
        parser, "the live recording; without it, what a program started here would have",
        optional=True,
        cluster=True,
    )  # fmt: skip
    parser.add_argument("changes", metavar="KEY=VALUE", nargs="*", help="a setting to change")
    _options.add_timeout(parser, "2s")


def run(args: argparse.Namespace) -> int:
    changes = _options.split_settings(args.changes)
    if args.target and "=" in args.target and not os.path.exists(args.target):
        raise ConfigError(
            f"{args.target} is no recording: `sonde config TARGET {args.target}` changes a setting "
            f"of a live one, `sonde run --set {args.target} …` or a file that of the next"
        )
    if args.target is None:
        return _show_all()
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
        rows = [
            (session.pid, key.name, key.show(values[key.name]),
             _find_origin(session.meta, key, values[key.name]), key.doc)
            for key in known
        ]  # fmt: skip
        names = ("pid", "setting", "value", "from", "meaning")
        _table.draw_table(names, _table.wrap_text(names, rows, sys.stdout), sys.stdout)
    return 0


def _show_all() -> int:
    """Show what a program that is started now, in this folder, would be recorded with."""
    values, complaints = environ.load_settings({})
    rows = []
    for key in settings.list_keys().values():
        origin = values.origins.get(key.name)
        source = "default" if origin is None else _shorten(origin)
        if origin is not None and values[key.name] != key.default:
            source += f" (default {key.show(key.default)})"
        when = "any time" if key.changeable else "at start"
        rows.append((key.name, key.show(values[key.name]), source, when, key.doc))
    names = ("setting", "value", "from", "change", "meaning")
    shown = _table.wrap_text(names, rows, sys.stdout)
    _table.write_text(None, lambda file: _table.draw_table(names, shown, file))
    sys.stdout.write(_HOW)
    for complaint in complaints:
        print(f"sonde: {complaint}", file=sys.stderr)
    return 0


_HOW = """
To set stack.every, for example; the first of these that is there counts:
  sonde run --set stack.every=5ms train.py    or sonde.start(stack_every="5ms")
  SONDE_STACK_EVERY=5ms                       in the environment
  stack.every = "5ms"                         in pyproject.toml, below [tool.sonde]
  stack.every = "5ms"                         in ~/.config/sonde/config.toml
"""


def _find_origin(meta: Meta, key: settings.Key, value: settings.Value) -> str:
    """Return where a live recording has a value from."""
    if key.name in meta.config and meta.config[key.name] != value:
        return "changed since"
    origin = (meta.config_from or {}).get(key.name)
    return _shorten(origin) if origin else "default" if value == key.default else environ.GIVEN


def _shorten(origin: str) -> str:
    """Return a path as the user would write it here."""
    for folder, short in ((os.getcwd(), ""), (os.path.expanduser("~"), "~/")):
        if origin.startswith(f"{folder}/"):
            return short + origin[len(folder) + 1 :]
    return origin


def _ask_cluster(cluster: Cluster, changes: dict[str, str], timeout_s: float) -> int:
    from sonde.cli._missing import show_answer  # only here: Flight takes a while to import
    from sonde.fleet.cluster import ask_all

    request = {"request": "configure", "changes": changes} if changes else {"request": "settings"}
    found = ask_all(cluster, request, timeout_s)
    found.require_some(cluster.target)
    rows = [row for table in found.tables.values() for row in table.to_pylist()]
    shown = [row for row in rows if not changes or row["setting"] in changes]
    names = ("host", "rank", "pid", "setting", "value")
    cells = [[row.get(name) for name in names] for row in shown]
    return show_answer(found, lambda: _table.draw_table(names, cells, sys.stdout))
