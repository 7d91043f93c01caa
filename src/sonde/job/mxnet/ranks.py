"""Send profiler calls to the other ranks of the job on this machine: profile_process='server'.

A request is written to the session folder of the other process, and its control page wakes it. Its
profiler obeys at the next safe point of its main thread, and answers which file it will write."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from sonde import _core, environ
from sonde.errors import Damaged, Error, NoSession, NotYours
from sonde.job.mxnet.settings import NOWHERE, MxnetSettings
from sonde.job.mxnet.state import DUMP_S, state
from sonde.job.notice import print_notice
from sonde.job.recorder import recorder
from sonde.session import Session, files, list_sessions
from sonde.session.records import ProfilerAnswer, ProfilerRequest, ProfilerRequests

REQUESTS, ANSWER = "profiler.json", "profiler.answer.json"
OBEY_S = 5.0
_MAX_REQUESTS = 32  # kept per process; one that has not obeyed so many is gone


def send_request(what: str, values: dict[str, object], path: str | None = None) -> None:
    """Make the other ranks do this; print which of them did not answer in time."""
    if path is not None:
        values = {**values, "filename": path}
    number, wall_ns = _core.clock_ns(), time.time_ns()
    asked = [one for one in _find_others() if _ask(one, number, what, values)]
    late = _wait(asked, OBEY_S, lambda one: _read_answer(one).number >= number)
    done = [one for one in asked if one not in late]
    refused = [f"process {one.pid}: {error}" for one in done if (error := _find_error(one, number))]
    if what == "dump" and not refused:
        late += _wait(done, DUMP_S, lambda one: _is_written(one, wall_ns))
    if late:
        pids = ", ".join(str(one.pid) for one in late)
        print_notice(f"profiler: no answer yet from process {pids}; it will obey when it can")
    if refused:
        raise Error("; ".join(refused))


def obey(folder: str, done: int) -> int:
    """Handle the requests to this process after number `done`; return the number of the last."""
    errors: dict[str, str] = {}
    for request in _read_requests(os.path.join(folder, REQUESTS)):
        if request.number > done:
            done = request.number
            try:
                _do(request.what, request.values)
            except Error as error:
                errors[str(done)] = str(error)  # reported to the process that asked
            path = state.last_path if state.profile is None else state.profile.path
            answer = ProfilerAnswer(
                number=done, path=None if path == NOWHERE else path, errors=errors
            )
            answer.write(os.path.join(folder, ANSWER))
    return done


def _do(what: str, values: dict[str, object]) -> None:
    if what == "configure":
        rank = environ.read_identity().rank
        state.configure(
            MxnetSettings(values), f"-pid_{os.getpid()}" if rank is None else f"rank{rank}_"
        )
    elif what == "dump":
        # With no timeout, because the main thread has its own work to do.
        state.dump(bool(values["finished"]), 0)
    else:
        {"run": state.run, "halt": state.halt, "resume": state.resume}[what]()


def _find_others() -> list[Session]:
    """Return one session for each other rank of the job: the oldest live one."""
    own = environ.read_identity()
    if own.job is None:
        raise Error(
            "profile_process='server' means the other ranks of the job, but this process belongs "
            "to no job; start it with `sonde run`, torchrun or Slurm, or set SONDE_JOB"
        )
    root = environ.find_root() if recorder.session is None else recorder.session.root
    found: dict[object, Session] = {}
    for one in list_sessions(root):
        is_other = one.pid != os.getpid() and one.meta.parent is None
        if one.meta.job != own.job or not is_other or not one.is_here():
            continue
        key = one.pid if one.rank is None else ("rank", one.rank)
        if (one.rank is None or one.rank != own.rank) and key not in found and one.is_alive():
            found[key] = one
    return list(found.values())


def _ask(one: Session, number: int, what: str, values: dict[str, object]) -> bool:
    try:
        with files.OwnFolder(one.folder) as folder, files.Locked(folder, OBEY_S):
            path = os.path.join(folder, REQUESTS)
            request = ProfilerRequest(number=number, what=what, values=values)
            requests = [*_read_requests(path), request]
            ProfilerRequests(requests=requests[-_MAX_REQUESTS:]).write(path)
        _core.control_ask(one.map_control(writable=True))
    except (OSError, NoSession, NotYours):
        return False  # the process has just ended, or it is another user's
    return True


def _wait(
    asked: list[Session], timeout_s: float, is_done: Callable[[Session], bool]
) -> list[Session]:
    """Return the sessions that missed the deadline."""
    deadline = time.monotonic() + timeout_s
    while True:
        asked = [one for one in asked if not is_done(one) and one.is_alive()]
        if not asked or time.monotonic() > deadline:
            return asked
        time.sleep(0.01)


def _find_error(one: Session, number: int) -> str | None:
    """Return why a rank refused the request, or None if it did not."""
    return _read_answer(one).errors.get(str(number))


def _is_written(one: Session, wall_ns: int) -> bool:
    path = _read_answer(one).path
    try:
        return path is None or os.stat(path).st_mtime_ns >= wall_ns
    except OSError:
        return False


def _read_requests(path: str) -> list[ProfilerRequest]:
    try:
        return ProfilerRequests.read(path).requests
    except (OSError, Damaged):
        return []


def _read_answer(one: Session) -> ProfilerAnswer:
    try:
        return ProfilerAnswer.read(one.path(ANSWER))
    except (OSError, Damaged):
        return ProfilerAnswer(number=0, path=None, errors={})
