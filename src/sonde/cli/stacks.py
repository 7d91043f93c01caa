"""Show what every thread is doing now, whatever the process is stuck in."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Iterator

from sonde import _core, environ
from sonde.analysis import code_names
from sonde.attach.native_text import is_ours
from sonde.cli import _options
from sonde.cli._crash_copies import unwind_copies
from sonde.cli._recorded_stacks import read_raised_of, read_stacks
from sonde.cli._stack_text import Painter, StackText
from sonde.errors import ConfigError, NoSession, NotYours
from sonde.session import Session, stack_table, steering
from sonde.session.ending import choose_ended, find_ending, wait_for_statuses
from sonde.session.held_lock import HeldLock
from sonde.session.lock_waits import add_locks, read_lock_waits
from sonde.session.missing_names import describe_missing_names
from sonde.session.native_stacks import read_notes
from sonde.session.stack_table import StackFrame, ThreadStack
from sonde.session.target import find_sessions
from sonde.words import clean, shorten_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sonde.fleet.hosts import Cluster

GROUP = "watch"
EXAMPLES = (
    "sonde stacks 4242",
    "sonde stacks train-7                     all ranks of a job as one tree, who is behind first",
    "sonde stacks train-7@slurm               the same of all nodes: see `sonde agent`",
)
_TIMEOUT_S = 2.0
_LOOK_S = 0.5  # a sample takes a millisecond; on an overloaded machine, a few


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.add_target(
        parser,
        "the processes to look at, recorded or not; of one that has ended, its last stacks",
        cluster=True,
    )
    parser.add_argument("--locals", action="store_true", help="also show local variables")
    parser.add_argument("--tasks", action="store_true", help="also show asyncio's tasks")
    parser.add_argument(
        "--native", action="store_true",
        help="also show the functions of C and C++; each thread is stopped for about a millisecond",
    )  # fmt: skip
    parser.add_argument(
        "--each", action="store_true",
        help="of several processes, show each in full instead of all as one tree",
    )  # fmt: skip
    parser.add_argument(
        "--all-frames", action="store_true",
        help="also the frames of libraries that lead to your own code",
    )  # fmt: skip
    _options.add_span(parser, "--timeout", what="how long --locals and --tasks may wait for the "
                      "GIL (default: 2s), or a cluster for its hosts (default: 10s)")  # fmt: skip
    _options.add_format(parser, ("table", "json"))


def run(args: argparse.Namespace) -> int:
    if "@" in args.target:
        from sonde.fleet.hosts import find_cluster  # only here: few targets name a cluster

        cluster = find_cluster(args.target)
        if cluster is not None:
            return _ask_cluster(cluster, args)
    shown = _look(args)
    if shown is None:
        return 0
    if args.format == "json":
        print(json.dumps([one.as_json() for one in shown], indent=1))
    else:
        in_full = args.all_frames or args.locals or args.native
        print("\n\n".join("\n".join(one.as_text(all_frames=in_full)) for one in shown))
    return 0


def _look(args: argparse.Namespace) -> list[_Shown] | None:
    """Return the processes to show one by one; None if they were shown as one tree."""
    try:
        sessions = find_sessions(args.target, environ.find_root())
    except NoSession:
        if not (args.target.isdecimal() and os.path.exists(f"/proc/{args.target}")):
            raise
        return [(_Native if args.native else _Outside)(int(args.target), args)]
    alive = [session for session in sessions if session.is_alive()]
    if not alive:
        wait_for_statuses(sessions)
    in_full = args.each or args.locals or args.tasks or args.native or args.format == "json"
    if len(alive) > 1 and not in_full:
        _print_tree(sessions, all_frames=args.all_frames)
        return None
    return [
        _Native(session.pid, args, session) if args.native and _is_here(session)
        else _Recorded(session, args)
        for session in (alive or choose_ended(sessions))
    ]  # fmt: skip


def _ask_cluster(cluster: Cluster, args: argparse.Namespace) -> int:
    # Only here: Arrow takes longer to import than all else.
    from sonde.cli._missing import show_answer
    from sonde.cli._rank_text import RankText
    from sonde.fleet.cluster import ask_all, read_processes_of
    from sonde.fleet.hosts import CLUSTER_TIMEOUT_S

    if args.each or args.locals or args.tasks or args.native:
        raise ConfigError("--each, --locals, --tasks and --native are for one host")
    found = ask_all(cluster, {"request": "stacks"}, args.timeout or CLUSTER_TIMEOUT_S)
    found.require_some(cluster.target)
    rows = read_processes_of(found)
    if args.format == "json":
        return show_answer(found, lambda: print(json.dumps(rows, indent=1)))
    text = RankText(_make_painter(), rows, _find_width(), all_frames=args.all_frames)
    return show_answer(found, lambda: print("\n".join(text.draw())))


def _print_tree(sessions: list[Session], *, all_frames: bool) -> None:
    # Only here: one process needs neither.
    from sonde.analysis.live_processes import choose_current, read_processes
    from sonde.cli._rank_text import RankText

    rows = read_processes(choose_current(sessions), _LOOK_S)
    text = RankText(_make_painter(), rows, _find_width(), all_frames=all_frames)
    print("\n".join(text.draw()))


def _make_painter() -> Painter:
    return Painter(coloured=sys.stdout.isatty() and environ.uses_colour())


def _find_width() -> int:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 10**6


def _is_here(session: Session) -> bool:
    return session.is_alive() and session.host == os.uname().nodename


class _Shown:
    """The stacks of one process, with notes on what is missing."""

    def __init__(self, pid: int, argv: list[str]) -> None:
        self.pid, self.command, self.notes = pid, " ".join(argv), list[str]()
        self.host = os.uname().nodename
        self.rank: int | None = None
        self.folder: str | None = None  # in which it began
        self.start_ns = 0  # when it began, if its files are here
        self.is_alive, self.ending = True, ""  # how it ended, as the end of a sentence
        self.threads: list[ThreadStack] = []
        self.locals: dict[int, list[dict[str, str]]] = {}  # by thread, then as its frames
        self.tasks: list[list[dict[str, object]]] = []
        self.raised: tuple[str, list[StackFrame]] | None = None  # the exception that ended it

    def as_json(self) -> dict[str, object]:
        return {
            "pid": self.pid, "host": self.host, "rank": self.rank,
            "alive": self.is_alive, "ended": self.ending or None,
            "notes": self.notes, "tasks": self.tasks,
            "raised": self.raised and [
                {"func": frame.func, "file": frame.file, "line": frame.line}
                for frame in self.raised[1]
            ],
            "threads": [
                {"thread": one.thread, "name": one.name, "t_ns": one.t_ns, "gil": one.gil,
                 "idle": one.idle, "wait": one.wait, "since_ns": one.since_ns,
                 "interpreter": one.interpreter, "lock": _describe_lock(one.lock),
                 "frames": [
                    {"func": frame.func, "file": frame.file, "line": frame.line,
                     "native": frame.is_native, "locals": self._find_locals(one, depth)}
                    for depth, frame in enumerate(one.frames)
                 ]}
                for one in self.threads
            ],
        }  # fmt: skip

    def as_text(self, *, all_frames: bool) -> Iterator[str]:
        was = "This is where it was" if self.threads else "No stack is left of its last moment"
        state = "" if self.is_alive else f"; it {self.ending}. {was}"
        rank = "" if self.rank is None else f" (rank {self.rank})"
        text = StackText(
            _make_painter(), self.folder, self.start_ns, _find_width(), all_frames=all_frames
        )
        command = clean(shorten_command(self.command))
        yield from text.draw_head(f"Process {self.pid}{rank}: {command}", state)
        if self.raised:
            yield ""
            yield from text.draw_head("Raised", f" {clean(self.raised[0])}")
            yield from text.draw_frames(self.raised[1])
        yield from text.draw_threads(self.threads, self.locals)
        yield from text.draw_tasks(self.tasks)
        for note in self.notes:
            yield from text.draw_head("", f"({note})")

    def _find_locals(self, one: ThreadStack, depth: int) -> dict[str, str] | None:
        return self.locals[one.thread][depth] if one.thread in self.locals else None


class _Outside(_Shown):
    """A process that is not recorded: its memory is read, and nothing in it is touched."""

    def __init__(self, pid: int, args: argparse.Namespace) -> None:
        from sonde.attach import outside, procfs  # only here: most processes are recorded

        found = outside.read_stacks(pid)
        files = procfs.ProcessFiles(pid)
        super().__init__(pid, files.read_words("cmdline"))
        self.folder, self.start_ns = files.read_link("cwd"), files.find_start()
        self.threads = found.threads
        self.notes += [
            f"thread {thread} ran on while it was read: its frames may be of two moments"
            for thread in found.unsure
        ]
        attach = f"`sonde attach {pid}` starts recording it"
        extra = "no locals and tasks: " if args.locals or args.tasks else ""
        self.notes.append(f"{extra}it is not recorded, so this was read from outside; {attach}")


class _Native(_Shown):
    """A process with the functions of C and C++, recorded or not: each thread is stopped for a
    moment and read from outside."""

    def __init__(self, pid: int, args: argparse.Namespace, session: Session | None = None) -> None:
        from sonde.attach import native, procfs  # only here: it is seldom asked for

        found = native.read_stacks(pid)
        super().__init__(pid, procfs.ProcessFiles(pid).read_words("cmdline"))
        self.threads = [one for one in found.threads if not is_ours(one.frames)]
        self.notes += found.notes
        if args.locals or args.tasks:
            self.notes.append("no locals and tasks: ask for them without --native")
        if session is not None:
            self.rank, self.folder = session.rank, session.meta.cwd
            self.start_ns = session.start_wall_ns
            self._take_names(session)

    def _take_names(self, session: Session) -> None:
        """Add what only the recording knows: names, and since when a thread is where it is."""
        try:
            known = {one.thread: one for one in stack_table.read_newest(session)}
        except FileNotFoundError:
            return  # its stacks are not recorded
        for one in self.threads:
            if one.thread in known:
                one.name, one.interpreter = known[one.thread].name, known[one.thread].interpreter
                if _list_places(one) == _list_places(known[one.thread]):
                    one.since_ns, one.gil = known[one.thread].since_ns, known[one.thread].gil
                    one.wait = known[one.thread].wait
        add_locks(self.threads, read_lock_waits(session))


def _describe_lock(wait: HeldLock | None) -> dict[str, object] | None:
    if wait is None:
        return None
    func, file, line = wait.taken or (None, None, None)
    return {"lock": wait.lock, "kind": wait.kind, "holder": wait.holder, "since_ns": wait.since_ns,
            "taken_func": func, "taken_file": file, "taken_line": line}  # fmt: skip


def _list_places(one: ThreadStack) -> list[tuple[str, str, int]]:
    return [(frame.func, frame.file, frame.line) for frame in one.frames if not frame.is_native]


class _Recorded(_Shown):
    """A process with a recording."""

    def __init__(self, session: Session, args: argparse.Namespace) -> None:
        super().__init__(session.pid, session.meta.argv)
        self.session, self.host, self.rank = session, session.host, session.rank
        self.folder = session.meta.cwd
        if session.host == os.uname().nodename:
            self.start_ns = session.start_wall_ns
        self.is_alive = session.is_alive()
        if not self.is_alive:
            self._find_end()
            self.notes += filter(None, [unwind_copies(session)])
            self.notes += read_notes(session)
        since_ns = _core.clock_ns()
        is_asked = self.is_alive and self._sample()
        self.threads = read_stacks(session)
        for one in self.threads:
            one.frames = [each for each in one.frames if not code_names.is_ours(each.file)]
        if self.raised:  # its thread was last seen in the hook that recorded it
            self.threads = [one for one in self.threads if one.thread != session.pid]
        self.threads = [one for one in self.threads if one.frames or self.is_alive]
        if (args.locals or args.tasks) and is_asked:
            self._inspect(args, since_ns)
        if args.native:
            self.notes.append("no native frames: the process does not run on this machine now")
        self.notes += describe_missing_names([session]).values()

    def _find_end(self) -> None:
        ending = find_ending(self.session)
        self.ending = "is on another machine, or gone" if ending is None else ending.sentence
        if ending is not None and ending.exception is not None:
            self.raised = ending.exception, read_raised_of(self.session)

    def _sample(self) -> bool:
        """Have the process sampled now; return whether it may be asked for more."""
        try:
            if not steering.sample_now(self.session, _LOOK_S):
                self.notes.append("the sampler did not answer: these are the last stacks it saw")
        except NotYours as error:  # reading needs no leave, but asking the process does
            self.notes.append(f"these are the last stacks that it saw: {error}")
            return False
        return True

    def _inspect(self, args: argparse.Namespace, since_ns: int) -> None:
        if not steering.inspect(self.session, args.timeout or _TIMEOUT_S):
            self.notes.append(
                "no locals and tasks: the GIL was not free within "
                f"{args.timeout or _TIMEOUT_S:g} s; a thread in a C call holds it"
            )
            return
        found = stack_table.read_inspection(self.session)
        if found is not None and found.t_ns >= since_ns and not found.threads:
            self.notes.append("no locals and tasks: without a GIL nobody may look at them")
            return
        if args.locals:
            self._take_locals(since_ns)
        if args.tasks:
            self.tasks = list(stack_table.read_tasks(self.session, since_ns))

    def _take_locals(self, since_ns: int) -> None:
        """Take stacks and locals from the inspection, which saw both at one moment: the program
        has moved since it was sampled."""
        found = stack_table.read_inspection(self.session)
        if found is None or found.t_ns < since_ns:
            self.notes.append("no locals: they could not be written; the session's log says why")
            return
        # The main thread has its name even if the sampler has not seen it yet.
        names = {self.session.pid: "MainThread"} | stack_table.read_threads(self.session)[0]
        known = {one.thread: one for one in self.threads}
        for number, frames in found.threads.items():
            thread = int(number)
            one = known.setdefault(thread, ThreadStack(thread, names.get(thread), found.t_ns))
            one.t_ns, one.since_ns = found.t_ns, None
            one.frames = [StackFrame(frame.func, frame.file, frame.line, 0) for frame in frames]
            self.locals[thread] = [frame.locals for frame in frames]
        self.threads = [one for _thread, one in sorted(known.items())]
        for thread in sorted(known.keys() - self.locals.keys()):
            self.notes.append(
                f"no locals of thread {thread}: it has just ended, or Python did not start it"
            )
