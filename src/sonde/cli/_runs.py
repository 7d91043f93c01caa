"""What the commands about profiling runs share: their options, and how a result is shown."""

from __future__ import annotations

import argparse
import json
import os
import sys

from sonde import environ, plugins
from sonde.analysis.profile_process import ProfileOptions
from sonde.cli import _options
from sonde.cli._terminal import fill
from sonde.errors import ConfigError, Error
from sonde.session import runs
from sonde.session.run import SUCCEEDED, Run
from sonde.session.run_result import Result


def add_run(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """Add RUN."""
    parser.add_argument("run_id", metavar="RUN", nargs="?" if optional else None,
                        help="the id of a run, or a pid, for the newest run of that process; "
                        "`sonde profile list` shows them")  # fmt: skip


def find_run(args: argparse.Namespace) -> Run:
    """Return the run that the arguments name."""
    return runs.find_run(args.run_id, environ.find_root())


def add_profile_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how to profile."""
    how = parser.add_argument_group("the profile")
    _options.add_span(how, "--every", what="time between two samples", default="1ms")
    how.add_argument("--source", metavar="NAME", action="append", default=[],
                     help="also record this source meanwhile, such as call; "
                     "may be repeated")  # fmt: skip
    how.add_argument("--tag", metavar="TAG", action="append", default=[],
                     help="a tag to find the run by; may be repeated")  # fmt: skip
    how.add_argument("--name", help="what the run is a profile of")


def make_options(args: argparse.Namespace) -> ProfileOptions:
    """Return how to profile, as the arguments say."""
    return ProfileOptions(args.every, args.source, args.tag, args.name)


def add_result_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how to show a result."""
    names = _list_formats()
    shown = parser.add_argument_group("the result")
    _options.add_by(shown, None)
    _options.add_limit(shown, 20, "functions")
    _options.add_format(shown, ("table", "json"))
    shown.add_argument("--to", choices=names, metavar="FORMAT",
                       help=f"write a file for other viewers: {', '.join(names)}")  # fmt: skip
    _options.add_output(shown, "the file that --to writes (default: named after the run)")


def _list_formats() -> list[str]:
    """Return the formats that do without the order of time, which a result does not have."""
    names = plugins.list_names("export.formats")
    return [name for name in names if not plugins.read_in_order("export.formats", name)]


def check_output(args: argparse.Namespace) -> None:
    """Refuse a file that cannot be written, before anything is profiled for it."""
    if args.output and not args.to:
        raise ConfigError("-o needs --to FORMAT; one of " + ", ".join(_list_formats()))
    if args.output and not os.path.isdir(os.path.dirname(args.output) or "."):
        raise Error(f"{os.path.dirname(args.output)} is not a folder")


def show_result(result: Result, args: argparse.Namespace) -> int:
    """Print a result, or write it for other viewers."""
    if args.to:
        name = result.run_id.replace(os.sep, "_")  # a tag may be anything
        path = args.output or name + plugins.load("export.formats", args.to).SUFFIX
        from sonde.export.run_profile import export_result

        export_result(result, path, args.to, args.by)
        print(path)
    elif args.format == "json":
        rows = result.table(args.by, args.limit or None)
        print(json.dumps({**result.describe(), "functions": rows}, indent=1))
    else:
        for at, line in enumerate(result.show(args.by, args.limit or None).splitlines()):
            print(fill(line, sys.stdout, " " * (4 if at else 2)))
    return 0


def say_state(state: str) -> int:
    """Print how a run ended and return the exit code: 1 unless it succeeded."""
    print(state)
    return 0 if state == SUCCEEDED else 1
