"""Write a recording in a format that other viewers open."""

from __future__ import annotations

import argparse
import os
import sys
import time
from types import ModuleType

from sonde import _core, environ, plugins
from sonde.analysis import timeline_sql
from sonde.analysis.clocks import correct_clocks
from sonde.analysis.profile import Profile, Selection
from sonde.analysis.region_layout import FOREVER_NS
from sonde.analysis.window import LAST, Window, find_window
from sonde.cli import _options
from sonde.cli._missing import tell_missing
from sonde.cli._recordings import open_any, tell_missing_hosts
from sonde.errors import Error
from sonde.export.files import open_file, write_file
from sonde.session import runs
from sonde.store.recording import Recording
from sonde.words import show_duration

GROUP = "export"
_SUMS = ("collapsed", "flamegraph", "pprof", "pstats", "svg")  # formats without an axis of time
EXAMPLES = (
    "sonde export 4242 --to flamegraph                  an HTML page of its own",
    "sonde export 4242 --to chrome --since 30s -o t.json   the last 30 s on a timeline",
    "sonde export train-7 --to pprof --by cpu --thread 'Pool*'",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = plugins.list_names("export.formats")
    helps = "\n".join(f"  {name:<12}{plugins.read_help('export.formats', name)}" for name in names)
    _options.add_note(parser, f"formats:\n{helps}\n")
    _options.add_target(parser, "the recording to export", cluster=True)
    parser.add_argument("--to", choices=names, required=True, metavar="FORMAT",
                        help="one of the formats below")  # fmt: skip
    _options.add_output(
        parser, "the file to write (default: named after the session); - is stdout, .gz compresses"
    )
    _options.add_window(parser)
    _options.add_by(parser)
    parser.add_argument(
        "--thread", metavar="NAME|ID", action="append", default=[],
        help="only this thread; may be a pattern like 'Pool*'; may be repeated",
    )  # fmt: skip
    parser.add_argument("--lines", action="store_true", help="tell the lines of a function apart")
    parser.add_argument(
        "--idle", action="store_true",
        help="also threads and event loops without work (formats on a time axis always have them)",
    )  # fmt: skip
    _options.add_span(
        parser,
        "--follow",
        what="write the file again, this often, while the target runs; --to chrome",
    )
    _options.add_cluster_timeout(parser)


def run(args: argparse.Namespace) -> int:
    exporter = plugins.load("export.formats", args.to)
    recording = open_any(args.target, args.timeout)
    tell_missing(recording.sessions)
    path = args.output or name_file(recording, exporter.SUFFIX)
    if args.follow is not None:
        return _follow(recording, path, args)
    whole = getattr(exporter, "TIMELINE", False)
    # Many queries: the tables are opened once, and stand still.
    with recording.freeze(" ".join(timeline_sql.TABLES) if whole else "") as still:
        last = timeline_sql.LAST if whole else LAST
        window = _find_window(still, args, last)
        if whole and not args.until:
            window = _reach_open(still, window)
        if whole:
            window = _correct_clocks(still, window)
        selection = Selection(
            window, tuple(args.thread), args.by, args.lines, args.idle or args.to not in _SUMS
        )
        profile = Profile(still, selection)
        if args.output == "-":
            write_stdout(exporter, profile)
            return tell_missing_hosts(recording)
        write_file(path, exporter, profile)
    if sys.stderr.isatty():
        how = exporter.OPEN.format(file=path)
        print(
            f"wrote {path} ({os.path.getsize(path):,} bytes); open it with {how}", file=sys.stderr
        )
        if profile.rest:
            rest = show_duration(sum(stack.ns[0] for stack in profile.rest))
            how = "the page can show it" if args.to == "flamegraph" else "--idle keeps it"
            print(f"{rest} of threads without work is left out: {how}", file=sys.stderr)
    return tell_missing_hosts(recording)


def _correct_clocks(recording: Recording, window: Window) -> Window:
    """Place the rows of several hosts by one clock; return the window with room for that."""
    said = correct_clocks(recording, window)
    if said:
        print(f"sonde: {said}", file=sys.stderr)
    ahead = [one.ahead_ns for one in recording.sessions]
    return Window(window.since_ns - max(0, *ahead, 0), window.until_ns - min(0, *ahead, 0))


def _follow(recording: Recording, path: str, args: argparse.Namespace) -> int:
    """Keep a trace current until the target ends or somebody presses Ctrl-C."""
    if args.to != "chrome" or args.output == "-" or args.until:
        raise Error("--follow needs --to chrome and a file, and takes no --until")
    from sonde.export.live_trace import LiveTrace

    since_ns = find_window(recording, args.since, None, last=timeline_sql.LAST).since_ns
    windows = [Window(since_ns, FOREVER_NS)]
    trace = LiveTrace(recording.sessions, path, threads=args.thread)
    try:
        while any(session.find_state() == "running" for session in recording.sessions):
            trace.refresh(lambda: windows)
            _wait(recording, max(args.follow, trace.least_wait_s))
    except KeyboardInterrupt:
        pass
    finally:
        trace.finish(lambda: windows)
    return 0


def _wait(recording: Recording, wait_s: float) -> None:
    """Wait this long, or until no process is left."""
    deadline_s = time.monotonic() + wait_s
    while (left_s := deadline_s - time.monotonic()) > 0:
        if not any(session.is_alive() for session in recording.sessions):
            return
        time.sleep(min(left_s, 0.5))


def _find_window(recording: Recording, args: argparse.Namespace, last: str) -> Window:
    """Return the window that --since and --until name; of a run, what it covers."""
    if runs.is_id(args.target) and not (args.since or args.until):
        run = runs.find_run(args.target, environ.find_root())
        begin_ns, end_ns = run.read_times()
        offset_ns = run.session.wall_offset_ns
        return Window(begin_ns + offset_ns, (end_ns or _core.clock_ns()) + offset_ns)
    return find_window(recording, args.since, args.until, last=last)


def _reach_open(recording: Recording, window: Window) -> Window:
    """Extend a window to the last region that began: nothing follows where a program was killed."""
    rows = recording.query("SELECT host, pid, MAX(t_ns) AS t_ns FROM event.open_span GROUP BY ALL")
    offsets = {(one.host, one.pid): one.wall_offset_ns for one in recording.sessions}
    begun = [row["t_ns"] + offsets[row["host"], row["pid"]] for row in rows.to_pylist()]
    return window._replace(until_ns=max([window.until_ns, *begun]))


def name_file(recording: Recording, suffix: str) -> str:
    """Return a file name made from the session, or from the job if there are several sessions."""
    sessions = recording.sessions
    jobs = {session.meta.job for session in sessions}
    if len(sessions) == 1:
        name = sessions[0].id
    elif len(jobs) == 1 and None not in jobs:
        name = str(jobs.pop())
    else:
        name = f"{sessions[0].id}-and-{len(sessions) - 1}-more"
    return name.replace(os.sep, "_") + suffix


def write_stdout(exporter: ModuleType, profile: Profile) -> None:
    """Write a profile to stdout."""
    if not exporter.TEXT and sys.stdout.isatty():
        raise Error("this format cannot be shown on a terminal; give -o FILE or use a pipe")
    if sys.stdout.isatty():
        exporter.write(profile, sys.stdout)
        return
    sys.stdout.flush()
    # A descriptor of our own: text must be UTF-8 whatever the encoding of stdout is.
    with open_file(os.dup(sys.stdout.fileno()), exporter.TEXT) as file:
        exporter.write(profile, file)
