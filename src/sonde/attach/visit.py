"""Start and end a recording in a process that already runs, from outside.

A thread of the process is stopped at a safe place and made to start one more thread, the visitor.
The visitor runs job/attached.py with the GIL held, and ends. The C part is in _core/attach/. If
the process cannot be traced, its Python may take a script instead: see script.py."""

from __future__ import annotations

import errno
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext

from sonde import _core, environ
from sonde import settings as config
from sonde.attach import preflight, script
from sonde.attach.preflight import CannotAttach, TracingRefused, VisitPlan
from sonde.attach.procfs import ProcessFiles
from sonde.errors import Error, NotAnswering
from sonde.session import Session, process, steering, writer
from sonde.session.files import read_json
from sonde.session.records import AttachAnswer
from sonde.session.target import find_sessions

TIMEOUT_S = 5.0
_ANSWER = "answer.json"
_NAP_S = 0.002
_ENDING_S = 1.0  # a process that is killed may need this long on a busy machine
_GRACE_NS = 150_000_000  # then busy threads are held; again after twice that time, and so on
_HOLD_NS = 200_000_000
_FAR_NS = 50_000_000  # then we move to the processor of each thread
_PICKY_NS = 500_000_000  # then a thread may also be stopped in code of other libraries
_LAST_S = 0.05  # within this time a script that has begun has been read
_POLITE_S = 0.3  # a main thread that runs Python code notices a request within this time


class NoSafePlace(NotAnswering):
    """No thread reached a place where it could be stopped without harm."""


def attach(
    pid: int, settings: Mapping[str, object] | None = None, timeout_s: float = TIMEOUT_S
) -> Session:
    """Have a running process record itself, without a restart; return its session.

    Raises CannotAttach if that is not possible, and NotAnswering if it did not happen in time; then
    it will not happen later either."""
    values = config.read_values(settings or {})
    root = writer.make_root(environ.find_root())
    answer = _send(find_way(pid, root), root, timeout_s, {"action": "start", "settings": values})
    if answer.session is None:
        raise CannotAttach(f"process {pid} does not record, and does not say why")
    if not answer.is_new:
        raise preflight.AlreadyRecorded(
            f"process {pid} is being recorded already: {answer.session}"
        )
    return Session(answer.session)


def find_way(pid: int, root: str) -> VisitPlan | script.ScriptPlan:
    """Check a process and touch nothing; return how it will be attached to."""
    try:
        return preflight.check(pid, root)
    except TracingRefused as refusal:
        return script.plan(pid, root, refusal)


def detach(target: Session | int, timeout_s: float = TIMEOUT_S) -> None:
    """End a recording, given as a session or a pid; the process goes on as before. NotAnswering if
    the recording does not end in time.

    The main thread ends it at its next safe point. If there is none soon (the thread waits, or is
    in one long C call), a visitor does."""
    begin = time.monotonic()
    if isinstance(target, int):
        target = find_sessions(str(target), environ.find_root())[0]
    try:
        steering.stop(target, min(timeout_s / 4, _POLITE_S))
        return
    except NotAnswering:
        if not target.is_alive():
            raise
    left_s = timeout_s - (time.monotonic() - begin)
    root = writer.make_root(environ.find_root())
    try:
        way = preflight.plan(ProcessFiles(target.pid))
    except (FileNotFoundError, ProcessLookupError):
        return  # the process has just ended, and the recording with it
    _send(way, root, left_s, {"action": "stop"})


# ---- the visit ---------------------------------------------------------------------------------


def _send(
    way: VisitPlan | script.ScriptPlan, root: str, timeout_s: float, request: dict[str, object]
) -> AttachAnswer:
    """Have a visitor or a script do the request; return its answer."""
    pid, deadline_ns = way.process.pid, time.monotonic_ns() + round(timeout_s * 1e9)
    try:
        folder = tempfile.mkdtemp(prefix=".attach-", dir=root)
    except OSError as error:
        raise Error(f"{root}: {error.strerror}") from None
    request.update(folder=folder, root=root, package=preflight.PACKAGE, fits=way.fits)
    request["python"] = sys.executable
    request["deadline_ns"] = deadline_ns
    text = _make_text(request)
    try:
        if isinstance(way, VisitPlan):
            try:
                answer = _send_visitor(way, text, folder, deadline_ns)
            except TracingRefused as refusal:
                way = script.plan_checked(way.process, refusal)
        if not isinstance(way, VisitPlan):
            answer = _send_script(way, text, folder, deadline_ns)
    except (FileNotFoundError, ProcessLookupError):
        raise NotAnswering(f"process {pid} has ended") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if answer.error is not None:
        raise CannotAttach(f"process {pid} does not record: {answer.error}")
    return answer


def _send_visitor(plan: VisitPlan, text: bytes, folder: str, deadline_ns: int) -> AttachAnswer:
    visitor = _visit(plan, text, deadline_ns)
    if plan.is_free:
        # There is no GIL to get; the visitor may wait until all threads stand still, and a thread
        # that is held never tells it that it does.
        why = "did not come to it in time (it has no GIL; other threads may keep its processors)"
    else:
        _help(plan.process.pid, visitor, folder, deadline_ns)
        why = "did not release the GIL in time (a long C call may hold it)"
    return _wait(plan.process.pid, visitor, folder, deadline_ns, why)


def _send_script(
    plan: script.ScriptPlan, text: bytes, folder: str, deadline_ns: int
) -> AttachAnswer:
    pid, path = plan.process.pid, os.path.join(folder, "request.py")
    with open(path, "wb") as file:
        file.write(text)
    request = script.ScriptRequest(plan, path)
    try:
        while not _is_answered(folder, time.monotonic_ns() + _GRACE_NS):
            if time.monotonic_ns() > deadline_ns or not _is_there(pid, pid):
                break
    finally:
        request.withdraw()
    if not os.path.exists(os.path.join(folder, _ANSWER)):
        time.sleep(_LAST_S)  # it may have just seen the request
    why = "ran no Python code in its main thread in time"
    return _wait(pid, pid, folder, deadline_ns, why)


def _make_text(request: Mapping[str, object]) -> bytes:
    """Return the Python text that the visitor runs: it loads attached.py and calls its run()."""
    path = os.path.join(preflight.PACKAGE, "job", "attached.py")
    return (
        f"names = {{'__name__': 'sonde.job.attached'}}\n"
        f"with open({path!r}, encoding='utf-8') as file:\n"
        f"    exec(compile(file.read(), {path!r}, 'exec'), names)\n"
        f"names['run'](names['AttachRequest'](**{dict(request)!r}))\n"
    ).encode("utf-8", "surrogateescape")


def _help(pid: int, visitor: int, folder: str, deadline_ns: int) -> None:
    """Wait for the answer; if there is none soon, get the GIL for the visitor.

    A thread that keeps releasing the GIL for mere moments takes it back before the threads that
    wait for it have woken up, and Python never makes it wait for them."""
    grace_ns = _GRACE_NS
    while not _is_answered(folder, min(deadline_ns, time.monotonic_ns() + grace_ns)):
        now_ns = time.monotonic_ns()
        if now_ns > deadline_ns or not _is_there(pid, visitor):
            return
        try:
            _core.hold(pid, visitor, min(deadline_ns, now_ns + _HOLD_NS))
        except OSError as error:
            raise _explain(pid, error) from None
        grace_ns *= 2


def _is_answered(folder: str, until_ns: int) -> bool:
    while not os.path.exists(os.path.join(folder, _ANSWER)):
        if time.monotonic_ns() > until_ns:
            return False
        time.sleep(_NAP_S)
    return True


def _is_there(pid: int, visitor: int) -> bool:
    return os.path.exists(f"/proc/{pid}/task/{visitor}")


def _visit(plan: VisitPlan, text: bytes, deadline_ns: int) -> int:
    """Start a visitor that runs the text, through the first thread found at a safe place; return
    the visitor's thread id."""
    begin_ns = time.monotonic_ns()
    text_ns, ranges = begin_ns + _PICKY_NS, plan.text
    while time.monotonic_ns() < deadline_ns:
        caught = int(plan.process.read_status()["SigCgt"], 16)
        if time.monotonic_ns() > text_ns:
            text_ns, ranges = time.monotonic_ns() + _PICKY_NS, preflight.list_text(plan)
        # First threads that wait; then also threads that run, each stopped for a moment.
        for some in ([], ranges):
            is_near = bool(some) and time.monotonic_ns() > begin_ns + _FAR_NS
            for tid in plan.process.list_threads():
                with _near(plan.process, tid) if is_near else nullcontext():
                    visitor = _try(plan, tid, some, caught, (text, deadline_ns))
                if visitor:
                    return visitor
        # A random pause, so as not to be in step with the program.
        time.sleep(_NAP_S * random.random())
    raise NoSafePlace(
        f"no thread of process {plan.process.pid} reached a place where it could be stopped "
        "without harm; nothing was changed: try again, or with a longer --timeout"
    )


@contextmanager
def _near(process: ProcessFiles, tid: int) -> Iterator[None]:
    """Run on the processor of a thread, so that the thread is preempted wherever it is.

    From another processor it is stopped where it next enters the kernel, and that may always be the
    same unsafe place."""
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {process.find_processor(tid)})
    except OSError:
        pass  # we may not use that processor, or the thread has ended
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _try(
    plan: VisitPlan,
    tid: int,
    ranges: list[tuple[int, int]],
    caught: int,
    errand: tuple[bytes, int],
) -> int:
    pid = plan.process.pid
    try:
        return _core.visit(pid, tid, ranges, caught, plan.restorer, plan.calls, *errand)
    except ProcessLookupError:
        return 0  # this thread has ended; if all have, reading the process fails next
    except PermissionError:
        # We may read its memory, so it is ptrace itself that is refused.
        raise preflight.TracingForbidden(
            f"process {pid} may not be traced: ptrace is forbidden here (seccomp of a container); "
            "allow it with --cap-add=SYS_PTRACE"
        ) from None
    except OSError as error:
        raise _explain(pid, error) from None


def _explain(pid: int, error: OSError) -> Error:
    if error.errno == errno.ESTALE:
        return CannotAttach(f"process {pid} has become another program; try again")
    if error.errno in (errno.ETIMEDOUT, errno.EBUSY):
        return NotAnswering(f"process {pid} is too busy to be attached to; nothing was changed")
    return CannotAttach(f"process {pid} could not make a thread: {error.strerror}")


def _has_ended(pid: int, late: bool) -> bool:
    """Tell whether the process has ended. If its visitor is gone although the answer was not late,
    wait a little for the end: threads end before the process that is killed."""
    deadline = time.monotonic() + (0 if late else _ENDING_S)
    while process.read_start_ticks(pid) is not None:
        if time.monotonic() > deadline:
            return False
        time.sleep(_NAP_S)
    return True


def _wait(pid: int, visitor: int, folder: str, deadline_ns: int, why: str) -> AttachAnswer:
    """Wait for the answer until the deadline and return it; after that it is not wanted. `why` is
    what a process that did not answer in time did or did not do."""
    path = os.path.join(folder, _ANSWER)
    while not os.path.exists(path):
        late = time.monotonic_ns() > deadline_ns
        if late or not _is_there(pid, visitor):
            # From here on no answer can arrive, and the visitor undoes what it has begun.
            over = folder + ".over"
            os.rename(folder, over)
            path = os.path.join(over, _ANSWER)
            if os.path.exists(path):
                break
            shutil.rmtree(over, ignore_errors=True)
            if _has_ended(pid, late):
                raise NotAnswering(f"process {pid} has ended")
            if not late:
                raise CannotAttach(
                    f"process {pid} could not leave its answer in {os.path.dirname(folder)}: the "
                    "disk is full, or it was just about to end; nothing was changed"
                )
            raise NotAnswering(
                f"process {pid} {why}; nothing was changed: try again, or with a longer --timeout"
            )
        time.sleep(_NAP_S)
    try:
        return AttachAnswer.load(read_json(path), path)
    finally:
        shutil.rmtree(os.path.dirname(path), ignore_errors=True)
