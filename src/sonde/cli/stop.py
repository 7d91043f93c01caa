"""End a recording and leave the process as it was."""

from __future__ import annotations

import argparse

from sonde import environ
from sonde.attach import visit
from sonde.cli import _options
from sonde.session import steering
from sonde.session.target import find_sessions

GROUP = "record"
EXAMPLES = (
    "sonde stop 4242",
    "sonde stop all",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.add_target(parser, "the recording to end; what it holds stays on disk")
    _options.add_timeout(parser, f"{visit.TIMEOUT_S:g}s")


def run(args: argparse.Namespace) -> int:
    for session in steering.select_alive(find_sessions(args.target, environ.find_root())):
        visit.detach(session, args.timeout)
    return 0
