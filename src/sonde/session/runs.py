"""Runs: bounded profiles of a process, each with an id, states and a result: when one may begin.

A run is a folder in its session with the request and the stack sums that the job's native thread
wrote at its start and at its end. So a run needs no Python thread, no server and no open file: any
process of the same user can start it, end it and read it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence

from sonde import _core, environ
from sonde.errors import Damaged, Error, NoSession, NotProfiled, RunActive
from sonde.session import process
from sonde.session.folder import Session, list_sessions
from sonde.session.records import RunAbout
from sonde.session.run import ABOUT, FINAL, FOLDER, PROCESSING, Run, locked

EVERY_S, MAX_S = 0.001, 600.0
_FOREVER_NS = 2**62


class RunOptions:
    """The options of a run."""

    __slots__ = (
        "by", "environment", "every_s", "max_frames", "max_s", "name", "sources", "tags", "user",
    )  # fmt: skip

    def __init__(
        self,
        *,
        every_s: float = EVERY_S,
        max_s: float | None = MAX_S,
        sources: Sequence[str] = (),
        tags: Sequence[str] = (),
        name: str | None = None,
        by: str = "code",
        user: str | None = None,
        environment: Sequence[str] = (),
        max_frames: int | None = None,
    ) -> None:
        self.user, self.max_frames = user or environ.read_user(), max_frames
        self.environment = environ.read_variables(environment)
        self.every_s, self.max_s, self.name, self.by = every_s, max_s, name, by
        self.sources, self.tags = tuple(sources), tuple(tags)


def start(
    target: Session, options: RunOptions, page: _core.Map | None = None, *, is_whole: bool = False
) -> Run:
    """Request a run and return it in state PREPARING; raise RunActive if one is in progress.

    `page` is the control page, if the caller knows that the process is alive. With `is_whole` the
    run covers the recording from its start, not from now."""
    page = _open_page(target) if page is None else page
    with locked(target) as folder:
        control = _core.control_get(page)
        active = find_active(target) if control["run_asked"] != control["run_ended"] else None
        if active is not None:
            raise RunActive(active.id, target.pid)
        now_ns = _core.clock_ns()
        end_ns = _FOREVER_NS if options.max_s is None else now_ns + round(options.max_s * 1e9)
        run_id = _make_id(target.pid)
        os.mkdir(os.path.join(folder, run_id), 0o700)
        every_ns = round(options.every_s * 1e9)
        about = RunAbout(
            id=run_id, session=target.id, number=control["run_asked"] + 1,
            name=options.name, by=options.by, tags=list(options.tags),
            sources=list(options.sources), every_ns=every_ns, max_s=options.max_s,
            whole=is_whole, past=False, asked_ns=now_ns, starter_pid=os.getpid(),
            starter_ticks=process.read_start_ticks(os.getpid()), exports=[], user=options.user,
            environment=options.environment, max_frames=options.max_frames,
        )  # fmt: skip
        about.write(os.path.join(folder, run_id, ABOUT))
        _core.run_start(page, run_id, every_ns, end_ns, bool(options.sources))
    return Run(target, run_id, about, page)


def start_past(target: Session, options: RunOptions) -> Run:
    """Return a run that covers the whole of a recording that has ended."""
    with locked(target) as folder:
        run_id = _make_id(target.pid)
        os.mkdir(os.path.join(folder, run_id), 0o700)
        about = RunAbout(
            id=run_id, session=target.id, number=target.read_control()["run_asked"] + 1,
            name=options.name, by=options.by, tags=list(options.tags), sources=[],
            every_ns=0, max_s=None, whole=True, past=True, asked_ns=_core.clock_ns(),
            starter_pid=os.getpid(), starter_ticks=None, exports=[], user=options.user,
            environment=options.environment, max_frames=options.max_frames,
        )  # fmt: skip
        about.write(os.path.join(folder, run_id, ABOUT))
    return Run(target, run_id, about)


def _make_id(pid: int) -> str:
    wall_ns = time.time_ns()
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(wall_ns // 10**9))
    return f"run-{stamp}.{wall_ns % 10**9 // 1000:06d}-{pid}"


def _open_page(target: Session) -> _core.Map:
    if not target.is_alive():
        raise NotProfiled(f"the recording of process {target.pid} has ended; nothing to profile")
    control = target.read_control()
    # A recording that is only starting accepts rows in a moment: the run waits for it.
    if not control["on"] and control["state"] != _core.STARTING:
        raise NotProfiled(f"process {target.pid} is paused; run `sonde resume {target.pid}` first")
    if not target.read_config()["source.stack"]:
        raise NotProfiled(
            f"process {target.pid} samples no stacks; "
            f"run `sonde config {target.pid} source.stack=on` first"
        )
    return target.map_control(writable=True)


def find_active(target: Session) -> Run | None:
    """Return the run that is in progress in a process, if any."""
    control = target.read_control()
    if control["run_asked"] == control["run_ended"]:
        return None
    try:
        name = _core.run_name(target.map_control())
        run = Run(target, name) if is_id(name) else None
    except (Error, OSError):
        return None
    return None if run is None or run.find_state()[0] in (PROCESSING, *FINAL) else run


def list_runs(target: Session) -> list[Run]:
    """Return the runs of a session, the oldest first, without damaged ones."""
    found = []
    for name in list_names(target):
        with contextlib.suppress(Damaged, NoSession):
            found.append(Run(target, name))
    return found


def list_names(target: Session) -> list[str]:
    """Return the ids of a session's runs, the oldest first, without opening any."""
    try:
        return sorted(filter(is_id, os.listdir(target.path(FOLDER))))
    except FileNotFoundError:
        return []


def is_id(word: str) -> bool:
    """Return whether a word is the id of a run."""
    return word.startswith("run-") and os.sep not in word


def find_run(word: str, root: str) -> Run:
    """Find a run in any session: by its id, or by the pid of its process, which means the newest
    one of that process."""
    found = [
        (name, target)
        for target in list_sessions(root)
        for name in ([word] if is_id(word) else list_names(target))
        if (is_id(word) or word == str(target.pid)) and os.path.isdir(target.path(FOLDER, name))
    ]
    if not found:
        raise NoSession(f"there is no run {word}; `sonde profile list` lists all runs")
    name, target = max(found, key=lambda one: one[0])
    return Run(target, name)


def process_all(target: Session) -> None:
    """Compute the result of every run that has ended; the collector calls this before it removes
    texts."""
    for run in list_runs(target):
        run.process()
