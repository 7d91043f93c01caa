"""See and change the settings of a live recording."""

from __future__ import annotations

import argparse
import sys

from sonde import environ, settings
from sonde.cli import _table
from sonde.errors import ConfigError
from sonde.session import steering
from sonde.session.target import find_sessions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target", metavar="TARGET", nargs="?", help="default: the settings and their defaults"
    )
    parser.add_argument("changes", metavar="KEY=VALUE", nargs="*")
    parser.add_argument(
        "--timeout", type=float, default=2.0, metavar="SECONDS", help="default: %(default)g"
    )


def run(args: argparse.Namespace) -> int:
    changes = dict(_split(change) for change in args.changes)
    if args.target is None:
        rows = [_describe(key) for key in settings.list_keys().values()]
        _table.draw_table(
            ("setting", "default", "change", "environment", "meaning"), rows, sys.stdout
        )
        return 0
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


def _describe(key: settings.Key) -> tuple[str, ...]:
    when = "live" if key.live else "at start"
    return key.name, key.show(key.default), when, environ.variable_of(key.name), key.doc


def _split(change: str) -> tuple[str, str]:
    name, equals, value = change.partition("=")
    if not equals:
        raise ConfigError(f"{change} is not KEY=VALUE")
    return name, value
