"""Write sampled stacks in a format that other viewers open."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from types import ModuleType
from typing import IO, Any

from sonde import plugins
from sonde.errors import Error
from sonde.query import Recording, open_recording
from sonde.selection import WEIGHTS, Profile, Selection
from sonde.window import find_window

_TIMES = "10s or 5m before the end, +30s after the start, or an ISO time (UTC)"


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
    parser.add_argument("--since", metavar="TIME", help=_TIMES)
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
    window = find_window(recording, args.since, args.until)
    selection = Selection(window, tuple(args.thread), args.weight, args.lines)
    profile = Profile(recording, selection)
    if args.output == "-":
        _write_stdout(exporter, profile)
        return 0
    path = args.output or name_file(recording, exporter.SUFFIX)
    write_file(path, exporter, profile)
    if sys.stderr.isatty():
        how = exporter.OPEN.format(file=path)
        print(
            f"wrote {path} ({os.path.getsize(path):,} bytes); open it with {how}", file=sys.stderr
        )
    return 0


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


def write_file(path: str, exporter: ModuleType, profile: Profile) -> None:
    """Write it whole or not at all: beside its place first, then under its name.

    A pipe or a device is written as it is: a file must not take its place."""
    if os.path.exists(path) and not os.path.isfile(path):
        with _open(path, exporter.TEXT) as file:
            exporter.write(profile, file)
        return
    folder, name = os.path.split(path)
    hidden = os.path.join(folder, f".{name}.{os.getpid()}.tmp")
    try:
        with _open(hidden, exporter.TEXT) as file:
            exporter.write(profile, file)
        os.replace(hidden, path)
    except OSError as error:
        raise Error(f"{path}: {error.strerror}") from None
    finally:
        # Gone already if all went well.
        with contextlib.suppress(OSError):
            os.unlink(hidden)


def _open(path: str | int, text: bool) -> IO[Any]:
    if text:
        return open(path, "w", encoding="utf-8", errors="backslashreplace", newline="\n")
    return open(path, "wb")


def _write_stdout(exporter: ModuleType, profile: Profile) -> None:
    if not exporter.TEXT and sys.stdout.isatty():
        raise Error("this format is not for a terminal; give -o FILE or a pipe")
    sys.stdout.flush()
    # A descriptor of our own: text must be UTF-8 whatever the terminal's encoding is.
    with _open(os.dup(sys.stdout.fileno()), exporter.TEXT) as file:
        exporter.write(profile, file)
