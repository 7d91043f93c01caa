"""Profile a process for a while: a pid, a new command, or run by run."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable

from sonde import environ, plugins, settings
from sonde.cli import _progress, _table
from sonde.cli._options import TARGET, add_note
from sonde.errors import ConfigError, Error, NoSession, NotProfiled
from sonde.export.run_profile import export_result
from sonde.session import Session, runs, steering
from sonde.session.run import FAILED, PREPARING, RUNNING, SUCCEEDED, Run
from sonde.session.run_result import Result, merge
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


def _options(args: argparse.Namespace, max_s: float | None) -> runs.Options:
    every_s = float(settings.read_values({"stack.every": args.every})["stack.every"])
    settings.read_values(dict.fromkeys((f"source.{name}" for name in args.source), True))
    return runs.Options(
        every_s=every_s, max_s=max_s, sources=args.source, tags=args.tag, name=args.name, by="tool"
    )


def _read_span(text: str | None, default_s: float) -> float:
    try:
        return default_s if text is None else settings.parse_span(text)
    except (KeyError, ValueError):
        raise ConfigError(f"{text!r} is not a time; write 30, 90s or 5min") from None


def _find_session(target: str) -> Session:
    sessions = steering.select_alive(find_sessions(target, environ.find_root()))
    if len(sessions) > 1:
        raise Error(f"{target} is {len(sessions)} processes; profile one of them")
    return sessions[0]


def _start(words: list[str], args: argparse.Namespace) -> int:
    session = _find_session(_one(words, "a TARGET"))
    run = runs.start(session, _options(args, _read_span(args.duration, 30.0)))
    _wait_running(run, _read_span(args.timeout, 60.0))
    print(run.id)
    return 0


def _wait_running(run: Run, timeout_s: float) -> None:
    try:
        run.wait_running(timeout_s)
    except NotProfiled as error:
        run.cancel(str(error), FAILED)
        raise


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
        print(json.dumps({**run.about, "state": state, "reason": reason, "states": states}))
    else:
        print(f"{state}" + (f": {reason}" if reason else ""))
    return 0


def _wait(words: list[str], args: argparse.Namespace) -> int:
    run = _find_run(words)
    return _say_state(run.wait(_read_span(args.timeout, 60.0)))


def _say_state(state: str) -> int:
    print(state)
    return 0 if state == SUCCEEDED else 1


def _stop(words: list[str], args: argparse.Namespace) -> int:
    run = _find_run(words)
    run.stop(_read_span(args.timeout, 60.0))
    return _say_state(run.wait(_read_span(args.timeout, 60.0)))


def _results(words: list[str], args: argparse.Namespace) -> int:
    if args.tag and not words:
        return _show(_merge_tag(args.tag), args)
    return _show(_find_run(words).result(_read_span(args.timeout, 60.0)), args)


def _merge_tag(tags: list[str]) -> Result:
    found = []
    for session in find_sessions("all", environ.find_root()):
        for one in runs.list_runs(session):
            one.process()
            if set(tags) <= set(one.tags) and one.state == SUCCEEDED:
                found.append(one.result())
    if not found:
        raise NoSession(f"no run with the tag {', '.join(tags)} has a result")
    return merge(found, "+".join(tags))


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
    return [run.id, run.state, run.session.pid, began, lasted, run.about["name"],
            ",".join(run.tags) or None]  # fmt: skip


def _describe_exactly(run: Run) -> dict[str, object]:
    """Numbers for a machine: wall clock, nanoseconds since 1970."""
    begin_ns, end_ns = run.read_times()
    state, reason = run.find_state()
    offset_ns = run.session.wall_offset_ns
    return {
        "run": run.id, "state": state, "reason": reason, "pid": run.session.pid,
        "host": run.session.host, "session": run.session.id, "name": run.about["name"],
        "tags": run.tags, "begin_wall_ns": begin_ns + offset_ns if begin_ns else None,
        "end_wall_ns": end_ns + offset_ns if end_ns else None,
    }  # fmt: skip


# ---- at once -------------------------------------------------------------------------------------


def _profile_process(target: str, args: argparse.Namespace) -> int:
    duration_s = _read_span(args.duration, 30.0)
    options = _options(args, duration_s)  # what is wrong is said before anything is touched
    session, is_ours = _find_or_attach(target, args)
    try:
        run = runs.start(session, options)
        _wait_running(run, _read_span(args.timeout, 60.0))
        _watch(run, duration_s, session.is_alive)
        result = run.result()
    finally:
        if is_ours:
            _detach(session, args)
    return _show(result, args)


def _find_or_attach(target: str, args: argparse.Namespace) -> tuple[Session, bool]:
    """The recording of a process, and whether it is one that we began."""
    try:
        session = _find_session(target)
        if session.is_alive() or not target.isdecimal():
            return session, False
    except NoSession:
        if not target.isdecimal():
            raise
    from sonde.attach.visit import attach  # only then: it brings a tracer along

    return attach(int(target), {}, _read_span(args.timeout, 60.0)), True


def _detach(session: Session, args: argparse.Namespace) -> None:
    from sonde.attach.visit import detach

    try:
        if session.is_alive():
            detach(session, _read_span(args.timeout, 60.0))
    except Error as error:
        print(f"sonde: {error}", file=sys.stderr)


def _profile_command(command: list[str], args: argparse.Namespace) -> int:
    """Run a command with its very first moment in the profile; its exit code."""
    max_s = None if args.duration is None else _read_span(args.duration, 30.0)
    options = _options(args, max_s)  # what is wrong is said before the command runs
    env = environ.make_child_environment(
        SONDE="1", SONDE_DIR=environ.find_root(), SONDE_STACK_EVERY=args.every
    )
    try:
        process = subprocess.Popen(command, env=env)
    except OSError as error:
        raise Error(f"{command[0]}: {error.strerror}") from None
    result, problem = None, None
    try:
        run = _start_whole(process, options)
        _watch(run, max_s, lambda: process.poll() is None)
        result = run.result()
    except Error as error:
        problem = error
    except KeyboardInterrupt:
        pass  # it has got the same signal
    code = _wait_for(process)
    if result is not None:
        _show(result, args)
    elif problem is not None:
        print(f"sonde: {problem}", file=sys.stderr)
    return code


def _start_whole(process: subprocess.Popen[bytes], options: runs.Options) -> Run:
    """A run from the beginning of a new process on."""
    nap, root = 0.002, environ.find_root()
    while True:
        is_over, session = process.poll() is not None, None
        try:
            session = find_sessions(str(process.pid), root)[0]
            run = runs.start(session, options, is_whole=True)
            run.wait_running()
            return run
        except NoSession:
            pass
        except NotProfiled:
            if not is_over and session is not None and session.is_alive():
                raise
        if is_over and session is not None:
            return runs.start_past(session, options)  # it was quick; all of it is there
        if is_over:
            raise NotProfiled("no Python process was recorded: the command is not one, or has none")
        time.sleep(nap)
        nap = min(nap * 1.5, 0.1)


def _wait_for(process: subprocess.Popen[bytes]) -> int:
    while True:
        try:
            code = process.wait()
            return 128 - code if code < 0 else code
        except KeyboardInterrupt:
            continue  # its own business; it decides when it ends


def _watch(run: Run, duration_s: float | None, goes_on: Callable[[], bool]) -> None:
    """Show how it goes until it has ended; Ctrl-C ends it early, with what there is."""
    with _progress.Bar(f"profiling {run.session.pid}", duration_s) as bar:
        try:
            while goes_on() and run.state in (RUNNING, PREPARING):
                bar.show()
                run._wait(0.2, ended=True)
        except KeyboardInterrupt:
            bar.say("stopping early; what was seen so far is the result")
        run.stop()


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
