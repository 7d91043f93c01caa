"""Write sampled stacks in a format that other viewers open."""

from __future__ import annotations

import argparse
import os
import sys
from types import ModuleType

from sonde import _core, config, layers, plugins, runs
from sonde.errors import Error
from sonde.output import open_file, write_file
from sonde.query import Recording, open_recording
from sonde.selection import WEIGHTS, Profile, Selection
from sonde.window import LAST, Window, find_window

TIMES = "10s or 5m before the end, +30s after the start, or an ISO time (UTC)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = plugins.list_names("exporters")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    helps = "\n".join(f"  {name:<12}{plugins.read_help('exporters', name)}" for name in names)
    parser.epilog = f"formats:\n{helps}\n\n{parser.epilog or ''}"
    parser.add_argument("target", metavar="TARGET")
    parser.add_argument("--to", choices=names, required=True, metavar="FORMAT", help="see below")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="default: SESSION.SUFFIX here; - is stdout"
    )
    parser.add_argument("--since", metavar="TIME", help=TIMES)
    parser.add_argument("--until", metavar="TIME", help="likewise")
    parser.add_argument(
        "--thread", metavar="NAME|ID", action="append", default=[],
        help="only this one; may be a pattern like 'Pool*', and given several times",
    )  # fmt: skip
    parser.add_argument("--lines", action="store_true", help="tell the lines of a function apart")
    weights = parser.add_mutually_exclusive_group()
    for weight, said in zip(
        WEIGHTS, ("elapsed time; the default", "CPU time", "time holding the GIL"), strict=True
    ):
        weights.add_argument(
            f"--{weight}", dest="weight", action="store_const", const=weight, help=said
        )
    parser.set_defaults(weight=WEIGHTS[0])


def run(args: argparse.Namespace) -> int:
    exporter = plugins.load("exporters", args.to)
    recording = open_recording(args.target)
    path = args.output or name_file(recording, exporter.SUFFIX)
    whole = getattr(exporter, "TIMELINE", False)
    # Many queries: the tables are opened once, and stand still.
    with recording.freeze(" ".join(layers.TABLES) if whole else "") as still:
        last = layers.LAST if whole else LAST
        selection = Selection(
            _find_window(still, args, last), tuple(args.thread), args.weight, args.lines
        )
        profile = Profile(still, selection)
        if args.output == "-":
            write_stdout(exporter, profile)
            return 0
        write_file(path, exporter, profile)
    if sys.stderr.isatty():
        how = exporter.OPEN.format(file=path)
        print(
            f"wrote {path} ({os.path.getsize(path):,} bytes); open it with {how}", file=sys.stderr
        )
    return 0


def _find_window(recording: Recording, args: argparse.Namespace, last: str) -> Window:
    """What --since and --until say; without them, of a run what it covers."""
    if runs.is_id(args.target) and not (args.since or args.until):
        run = runs.find_run(args.target, config.find_root())
        begin_ns, end_ns = run.read_times()
        offset_ns = run.session.wall_offset_ns
        return Window(begin_ns + offset_ns, (end_ns or _core.clock_ns()) + offset_ns)
    return find_window(recording, args.since, args.until, last=last)


def name_file(recording: Recording, suffix: str) -> str:
    """The session's name, or the job's if it has several; in the current folder."""
    sessions = recording.sessions
    jobs = {session.meta.get("job") for session in sessions}
    if len(sessions) == 1:
        name = sessions[0].id
    elif len(jobs) == 1 and None not in jobs:
        name = str(jobs.pop())
    else:
        name = f"{sessions[0].id}-and-{len(sessions) - 1}-more"
    return name.replace(os.sep, "_") + suffix


def write_stdout(exporter: ModuleType, profile: Profile) -> None:
    if not exporter.TEXT and sys.stdout.isatty():
        raise Error("this format is not for a terminal; give -o FILE or a pipe")
    sys.stdout.flush()
    # A descriptor of our own: text must be UTF-8 whatever the terminal's encoding is.
    with open_file(os.dup(sys.stdout.fileno()), exporter.TEXT) as file:
        exporter.write(profile, file)
