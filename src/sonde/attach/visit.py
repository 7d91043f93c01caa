"""Start and end a recording in a process that runs already, from outside.

A thread of the process is stopped at a safe place and made to start one more thread, which runs
inside.py under the GIL and is gone again; the C part is in _core/visit.c."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext

from sonde import _core, environ
from sonde import settings as config
from sonde.attach import preflight
from sonde.attach.preflight import CannotAttach, Plan
from sonde.attach.procfs import Process
from sonde.errors import Error, NotAnswering
from sonde.session import Session, process, steering, writer
from sonde.session.target import find_sessions

TIMEOUT_S = 5.0
_ANSWER = "answer.json"
_NAP_S = 0.002
_GRACE_NS = 150_000_000  # then busy threads are held, and again after twice that, and so on
_HOLD_NS = 200_000_000
_FAR_NS = 50_000_000  # then we come to the processor of each thread
_PICKY_NS = 500_000_000  # then a thread may also be stopped in code of other libraries
_POLITE_S = 0.3  # what a main thread that runs Python code needs at most, to hear of it


class NoSafePlace(NotAnswering):
    """No thread came to a place where it could be stopped without harm."""


def attach(
    pid: int, settings: Mapping[str, object] | None = None, timeout_s: float = TIMEOUT_S
) -> Session:
    """Have a running process record itself, without a restart; its session.

    Raises CannotAttach if that is not possible, and NotAnswering if it did not happen in time: then
    it will not happen later, either."""
    values = config.read_values(settings or {})
    root = writer.make_root(environ.find_root())
    plan = preflight.check(pid, root)
    answer = _send(plan, root, timeout_s, {"action": "start", "settings": values})
    folder = str(answer["session"])
    if not answer.get("is_new"):
        raise preflight.AlreadyRecorded(f"process {pid} is being recorded already: {folder}")
    return Session(folder)


def detach(target: Session | int, timeout_s: float = TIMEOUT_S) -> None:
    """End a recording, given or of a pid; the process goes on as before. Raises NotAnswering if it
    does not in time.

    The main thread does it at its next safe point. If there is none soon (it waits, or is in one
    long C call), another thread does."""
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
        plan = preflight.plan(Process(target.pid))
    except (FileNotFoundError, ProcessLookupError):
        return  # it has just ended, and the recording with it
    _send(plan, root, left_s, {"action": "stop"})


# ---- the visit ---------------------------------------------------------------------------------


def _send(plan: Plan, root: str, timeout_s: float, request: dict[str, object]) -> dict[str, object]:
    """Have the request done inside; what inside.py answers."""
    deadline_ns = time.monotonic_ns() + round(timeout_s * 1e9)
    try:
        folder = tempfile.mkdtemp(prefix=".attach-", dir=root)
    except OSError as error:
        raise Error(f"{root}: {error.strerror}") from None
    request.update(folder=folder, root=root, package=preflight.PACKAGE, fits=plan.fits)
    request["deadline_ns"] = deadline_ns
    try:
        visitor = _visit(plan, _make_text(request), deadline_ns)
        _help(plan.process.pid, visitor, folder, deadline_ns)
        answer = _wait(plan.process.pid, visitor, folder, deadline_ns)
    except (FileNotFoundError, ProcessLookupError):
        raise NotAnswering(f"process {plan.process.pid} has ended") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if "error" in answer:
        raise CannotAttach(f"process {plan.process.pid} does not record: {answer['error']}")
    return answer


def _make_text(request: Mapping[str, object]) -> bytes:
    """The Python text that is run there: it reads inside.py and calls its run()."""
    path = os.path.join(preflight.PACKAGE, "job", "attached.py")
    return (
        f"names = {{'__name__': 'sonde.inside'}}\n"
        f"with open({path!r}, encoding='utf-8') as file:\n"
        f"    exec(compile(file.read(), {path!r}, 'exec'), names)\n"
        f"names['run']({dict(request)!r})\n"
    ).encode("utf-8", "surrogateescape")


def _help(pid: int, visitor: int, folder: str, deadline_ns: int) -> None:
    """Wait for the answer; get the GIL for the visitor if there is none soon.

    A thread that gives the GIL away for moments only, again and again, takes it back before those
    that wait have woken up, and Python never makes it wait for them."""
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


def _visit(plan: Plan, text: bytes, deadline_ns: int) -> int:
    """Bring the text there, through the first thread that is found at a safe place; the new
    thread that runs it."""
    begin_ns = time.monotonic_ns()
    text_ns, ranges = begin_ns + _PICKY_NS, plan.text
    while time.monotonic_ns() < deadline_ns:
        caught = int(plan.process.read_status()["SigCgt"], 16)
        if time.monotonic_ns() > text_ns:
            text_ns, ranges = time.monotonic_ns() + _PICKY_NS, preflight.list_text(plan)
        # First those that wait; then also those that run, a moment at a time.
        for some in ([], ranges):
            is_near = bool(some) and time.monotonic_ns() > begin_ns + _FAR_NS
            for tid in plan.process.list_threads():
                with _near(plan.process, tid) if is_near else nullcontext():
                    visitor = _try(plan, tid, some, caught, (text, deadline_ns))
                if visitor:
                    return visitor
        # Not in step with whatever the program does.
        time.sleep(_NAP_S * random.random())
    raise NoSafePlace(
        f"no thread of process {plan.process.pid} came to a place where it could be stopped "
        "without harm; nothing was changed: try again, or with a longer --timeout"
    )


@contextmanager
def _near(process: Process, tid: int) -> Iterator[None]:
    """On the processor of a thread, which gives way then wherever it is. From another one it is
    stopped where it next meets the kernel, and that may always be the same unsafe place."""
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {process.find_processor(tid)})
    except OSError:
        pass  # not one of ours, or the thread has ended
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _try(
    plan: Plan,
    tid: int,
    ranges: list[tuple[int, int]],
    caught: int,
    errand: tuple[bytes, int],
) -> int:
    pid = plan.process.pid
    try:
        return _core.visit(pid, tid, ranges, caught, plan.restorer, plan.calls, *errand)
    except ProcessLookupError:
        return 0  # this thread has ended; if all have, the next look at the process says so
    except PermissionError:
        # Its memory may be read, so it is ptrace itself that is refused.
        raise preflight.Forbidden(
            f"process {pid} may not be traced: ptrace is forbidden here (seccomp of a container); "
            "allow it with --cap-add=SYS_PTRACE"
        ) from None
    except OSError as error:
        raise _explain(pid, error) from None


def _explain(pid: int, error: OSError) -> Error:
    if error.errno == errno.ESTALE:
        return CannotAttach(f"process {pid} has become another program; try again")
    if error.errno in (errno.ETIMEDOUT, errno.EBUSY):
        return NotAnswering(f"process {pid} is too busy to be attached to; it goes on as it was")
    return CannotAttach(f"process {pid} could not make a thread: {error.strerror}")


def _wait(pid: int, visitor: int, folder: str, deadline_ns: int) -> dict[str, object]:
    """The answer; it is waited for until the deadline, and then not wanted any more."""
    path = os.path.join(folder, _ANSWER)
    while not os.path.exists(path):
        late = time.monotonic_ns() > deadline_ns
        if late or not _is_there(pid, visitor):
            # From here on no answer can come in: what was begun is undone over there.
            over = folder + ".over"
            os.rename(folder, over)
            path = os.path.join(over, _ANSWER)
            if os.path.exists(path):
                break
            shutil.rmtree(over, ignore_errors=True)
            if process.read_start_ticks(pid) is None:
                raise NotAnswering(f"process {pid} has ended")
            if not late:
                raise CannotAttach(
                    f"process {pid} could not leave its answer in {os.path.dirname(folder)}: the "
                    "disk is full, or it was just about to end; nothing was changed"
                )
            raise NotAnswering(
                f"process {pid} did not give the GIL away in time (a long C call may hold it); "
                "nothing was changed: try again, or with a longer --timeout"
            )
        time.sleep(_NAP_S)
    with open(path, encoding="utf-8") as file:
        answer = json.load(file)
    shutil.rmtree(os.path.dirname(path), ignore_errors=True)
    return dict(answer)
