"""Write the page of `sonde ui` as one file that holds its data: to keep, or to mail."""

from __future__ import annotations

import argparse
import os
import sys

from sonde import environ, settings
from sonde.analysis import timeline_sql
from sonde.analysis.window import find_window
from sonde.cli import _options
from sonde.cli._missing import tell_missing
from sonde.cli._terminal import fill
from sonde.errors import ConfigError
from sonde.export.files import write_with
from sonde.session.ending import wait_for_statuses
from sonde.session.target import add_children, find_sessions
from sonde.store.recording import Recording
from sonde.web.opened import Opened
from sonde.web.report import MOST_BYTES, make_report

GROUP = "export"
EXAMPLES = (
    "sonde report 4242 -o report.html         any browser opens it, without a network",
    "sonde report job:train --since 10min",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.add_target(parser, "the recording to report on")
    _options.add_output(parser, "the file to write (default: report.html)")
    _options.add_window(parser)
    parser.add_argument(
        "--most", metavar="SIZE", default=str(MOST_BYTES),
        help="how large the file may be, such as 20MB; time gets coarser to fit (default: 10 MB)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    sessions = add_children(find_sessions(args.target, environ.find_root()))
    tell_missing(sessions)
    wait_for_statuses(sessions)
    recording = Recording(sessions)
    window = None
    if args.since or args.until:
        window = find_window(recording, args.since, args.until, last=timeline_sql.LAST)
    opened = Opened(args.target, sessions, window)
    try:
        page, thinned = make_report(opened, _read_size(args.most))
    finally:
        opened.close()
    path = args.output or "report.html"
    write_with(path, True, False, lambda file: print(page, file=file))
    told = f"wrote {path} ({os.path.getsize(path):,} bytes): {thinned}; open it with any browser"
    print(fill(told, sys.stdout))
    return 0


def _read_size(text: str) -> int:
    try:
        return settings.parse_size(text)
    except (KeyError, ValueError):
        raise ConfigError(f"--most {text!r} is not a size; write 20MB or plain bytes") from None
