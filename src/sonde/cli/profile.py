"""Profile a process for a while: a pid, a new command, or run by run."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable

from sonde import environ, plugins, settings
from sonde.analysis.profile_process import (
    DURATION_S,
    TIMEOUT_S,
    ProfileOptions,
    Watcher,
    find_live_session,
    merge_tagged,
    profile_command,
    profile_process,
    start_run,
)
from sonde.cli import _progress, _table
from sonde.cli._options import TARGET, add_note
from sonde.errors import ConfigError, Error
from sonde.export.run_profile import export_result
from sonde.session import runs
from sonde.session.run import SUCCEEDED, Run
from sonde.session.run_result import Result
from sonde.session.stack_table import WEIGHTS
from sonde.session.target import find_sessions

_USAGE = """\
sonde profile PID [--duration 30] [options]         attach if need be, profile, show the result
       sonde profile [options] -- COMMAND [arguments]      the same for a new process
       sonde profile start TARGET [options]                begin a run, print its id
       sonde profile status|wait|stop|results RUN [options]
       sonde profile list [TARGET]
       sonde profile results --tag TAG [options]           all runs with one tag, merged"""

_COMMANDS = ("start", "status", "wait", "stop", "results", "list")
_LIST = ("run", "state", "process", "began", "lasted", "name", "tags")
GROUP = "profile"
EXAMPLES = (
    "sonde profile 4242 --duration 30s",
    "sonde profile --to flamegraph -o out.html -- python train.py",
    "sonde profile start 4242 --tag nightly; sonde profile results --tag nightly",
)
TAKES_COMMAND = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = _USAGE
    add_note(parser, TARGET)
    _add_options(parser)
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="WHAT", help=argparse.SUPPRESS)


def _add_options(parser: argparse.ArgumentParser) -> None:
    how = parser.add_argument_group("the profile")
    how.add_argument(
        "-d", "--duration", metavar="S", help="how long; default 30, of a command: all"
    )
    how.add_argument("--every", metavar="S", default="1ms", help="between two samples; default 1ms")
    how.add_argument("--source", metavar="NAME", action="append", default=[],
                     help="record this meanwhile, too: call, say")  # fmt: skip
    how.add_argument("--tag", metavar="TAG", action="append", default=[], help="may be repeated")
    how.add_argument("--name", help="what it is a profile of")
    shown = parser.add_argument_group("the result")
    shown.add_argument("--by", choices=WEIGHTS, help="default: cpu, or wall if hardly any was used")
    shown.add_argument("--limit", type=int, default=20, metavar="N", help="functions; default 20")
    shown.add_argument("--to", choices=_list_formats(), metavar="FORMAT",
                       help=f"write it as {', '.join(_list_formats())}")  # fmt: skip
    shown.add_argument("-o", "--output", metavar="FILE", help="where to; needs --to")
    shown.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("--timeout", metavar="S", default="60", help="for waiting; default 60")


def _list_formats() -> list[str]:
    """Those that do without the order of time, which a result does not have."""
    names = plugins.list_names("export.formats")
    return [name for name in names if not plugins.load("export.formats", name).IN_ORDER]


def _parse_rest(args: argparse.Namespace) -> list[str]:
    """Words and options that stand behind the first word, in any order."""
    parser = argparse.ArgumentParser("sonde profile", usage=_USAGE)
    _add_options(parser)
    parser.add_argument("words", nargs="*", metavar="WHAT", help=argparse.SUPPRESS)
    words = args.words
    del args.words
    parser.parse_intermixed_args(words, args)
    found = args.words
    assert isinstance(found, list)
    return found


def run(args: argparse.Namespace) -> int:
    words = _parse_rest(args)
    if args.output and not args.to:
        raise ConfigError("-o needs --to FORMAT; one of " + ", ".join(_list_formats()))
    if args.output and not os.path.isdir(os.path.dirname(args.output) or "."):
        raise Error(f"{os.path.dirname(args.output)} is not a folder")
    if args.rest:
        return _profile_command(args.rest, args)
    first, *more = words or [""]
    if first in _COMMANDS:
        steps: dict[str, Callable[[list[str], argparse.Namespace], int]] = {
            "start": _start, "status": _status, "wait": _wait, "stop": _stop, "results": _results,
            "list": _list,
        }  # fmt: skip
        return steps[first](more, args)
    if not first or more:
        raise ConfigError("give a pid, `-- COMMAND`, or start, status, wait, stop, results, list")
    return _profile_process(first, args)


# ---- run by run ----------------------------------------------------------------------------------


def _options(args: argparse.Namespace) -> ProfileOptions:
    return ProfileOptions(args.every, args.source, args.tag, args.name)


def _read_span(text: str | None, default_s: float) -> float:
    try:
        return default_s if text is None else settings.parse_duration(text)
    except (KeyError, ValueError):
        raise ConfigError(f"{text!r} is not a time; write 30, 90s or 5min") from None


def _start(words: list[str], args: argparse.Namespace) -> int:
    session = find_live_session(_one(words, "a TARGET"))
    options = _options(args).make_run_options(_read_span(args.duration, DURATION_S))
    print(start_run(session, options, _read_span(args.timeout, TIMEOUT_S)).id)
    return 0


def _one(words: list[str], what: str) -> str:
    if len(words) != 1:
        raise ConfigError(f"give {what}")
    return words[0]


def _find_run(words: list[str]) -> Run:
    return runs.find_run(_one(words, "a RUN; `sonde profile list` shows them"), environ.find_root())


def _status(words: list[str], args: argparse.Namespace) -> int:
    run = _find_run(words)
    run.process()
    state, reason = run.find_state()
    if args.format == "json":
        states = [[name, t_ns + run.session.wall_offset_ns] for name, t_ns in run.list_states()]
        print(json.dumps({**run.about.dump(), "state": state, "reason": reason, "states": states}))
    else:
        print(f"{state}" + (f": {reason}" if reason else ""))
    return 0


def _wait(words: list[str], args: argparse.Namespace) -> int:
    run = _find_run(words)
    return _say_state(run.wait(_read_span(args.timeout, TIMEOUT_S)))


def _say_state(state: str) -> int:
    print(state)
    return 0 if state == SUCCEEDED else 1


def _stop(words: list[str], args: argparse.Namespace) -> int:
    run = _find_run(words)
    run.stop(_read_span(args.timeout, TIMEOUT_S))
    return _say_state(run.wait(_read_span(args.timeout, TIMEOUT_S)))


def _results(words: list[str], args: argparse.Namespace) -> int:
    if args.tag and not words:
        return _show(merge_tagged(args.tag), args)
    return _show(_find_run(words).result(_read_span(args.timeout, TIMEOUT_S)), args)


def _list(words: list[str], args: argparse.Namespace) -> int:
    sessions = find_sessions(words[0] if words else "all", environ.find_root())
    found = [run for session in sessions for run in runs.list_runs(session)]
    rows = [_describe(run) for run in found]
    if args.format == "json":
        print(json.dumps([_describe_exactly(run) for run in found], indent=1))
    elif rows:
        _table.draw_table(_LIST, rows, sys.stdout)
    else:
        print("there are no runs; `sonde profile PID` makes one")
    return 0


def _describe(run: Run) -> list[object]:
    run.process()
    begin_ns, end_ns = run.read_times()
    began = lasted = None
    if begin_ns:
        seconds = (begin_ns + run.session.wall_offset_ns) / 1e9
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
        lasted = f"{(end_ns - begin_ns) / 1e9:.2f} s" if end_ns else None
    return [run.id, run.state, run.session.pid, began, lasted, run.about.name,
            ",".join(run.tags) or None]  # fmt: skip


def _describe_exactly(run: Run) -> dict[str, object]:
    """Numbers for a machine: wall clock, nanoseconds since 1970."""
    begin_ns, end_ns = run.read_times()
    state, reason = run.find_state()
    offset_ns = run.session.wall_offset_ns
    return {
        "run": run.id, "state": state, "reason": reason, "pid": run.session.pid,
        "host": run.session.host, "session": run.session.id, "name": run.about.name,
        "tags": run.tags, "begin_wall_ns": begin_ns + offset_ns if begin_ns else None,
        "end_wall_ns": end_ns + offset_ns if end_ns else None,
    }  # fmt: skip


# ---- at once -------------------------------------------------------------------------------------


class _Watcher(Watcher):
    """Draws how a run goes."""

    def __init__(self, duration_s: float | None) -> None:
        self._duration_s = duration_s
        self._bar: _progress.Bar | None = None

    def __enter__(self) -> _Watcher:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._bar is not None:
            self._bar.__exit__()

    def show(self, run: Run, passed_s: float) -> None:
        if self._bar is None:
            self._bar = _progress.Bar(f"profiling {run.session.pid}", self._duration_s)
        self._bar.show(passed_s)

    def stop_early(self, run: Run) -> None:  # noqa: ARG002
        if self._bar is not None:
            self._bar.say("stopping early; what was seen so far is the result")

    def warn(self, problem: Error) -> None:
        print(f"sonde: {problem}", file=sys.stderr)


def _profile_process(target: str, args: argparse.Namespace) -> int:
    duration_s, timeout_s = (
        _read_span(args.duration, DURATION_S),
        _read_span(args.timeout, TIMEOUT_S),
    )
    with _Watcher(duration_s) as watcher:
        result = profile_process(
            target, duration_s, timeout=timeout_s, options=_options(args), watcher=watcher
        )
    return _show(result, args)


def _profile_command(command: list[str], args: argparse.Namespace) -> int:
    """Run a command with its very first moment in the profile; return its exit code."""
    max_s = None if args.duration is None else _read_span(args.duration, DURATION_S)
    with _Watcher(max_s) as watcher:
        done = profile_command(command, max_s, options=_options(args), watcher=watcher)
    if done.result is not None:
        _show(done.result, args)
    elif done.problem is not None:
        print(f"sonde: {done.problem}", file=sys.stderr)
    return done.code


def _show(result: Result, args: argparse.Namespace) -> int:
    if args.to:
        name = result.run_id.replace(os.sep, "_")  # a tag may be anything
        path = args.output or name + plugins.load("export.formats", args.to).SUFFIX
        export_result(result, path, args.to, args.by)
        print(path)
    elif args.format == "json":
        rows = result.table(args.by, args.limit)
        print(json.dumps({**result.describe(), "functions": rows}, indent=1))
    else:
        print(result.show(args.by, args.limit))
    return 0
