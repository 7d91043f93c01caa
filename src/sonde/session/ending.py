"""When a session ended, and why, without Arrow."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence

from sonde import _core, launch
from sonde.errors import Damaged
from sonde.session import stack_table
from sonde.session.folder import Session
from sonde.session.kernel_kills import find_kill
from sonde.session.memory_kills import find_kept_kill
from sonde.session.process import WHOLE_MACHINE
from sonde.session.records import Exit
from sonde.session.ring import SUFFIX as RING
from sonde.session.ring import Ring
from sonde.words import name_program, shorten_file

_PATIENCE_S = 2.0  # the collector looks once a second
_JUST_NS = 5 * 10**9
_MOST_ENDS, _MOST_PIDS = 5, 5  # sentences, and what each names
_MOST_CHARS = 200  # of what sys.exit was told
_NEWEST = 1024  # rows to look at: they may be a little out of order
_LAST_NS = 10**9  # of samples after a fault: nobody is sampled later, unless the program went on


def find_end_wall_ns(session: Session) -> int:
    """Return when a session ended: as its control page says, or when its newest row was written.

    Modification times of files are no help: stores to mapped memory do not change them."""
    control = session.read_control()
    if control["state"] in (_core.STOPPED, _core.EXITED):
        return control["state_t_ns"] + session.wall_offset_ns
    times = [_find_newest_ns(path) for path in session.find_rings()]
    newest = max((t for t in times if t is not None), default=None)
    return time.time_ns() if newest is None else newest + session.wall_offset_ns


def _find_newest_ns(path: str) -> int | None:
    """Return the time of the newest row of a ring; None if it has none, or has just gone."""
    try:
        ring = Ring(path)
    except FileNotFoundError:
        return None
    head = ring.head
    batch = ring.read(max(0, head - _NEWEST), head)
    place = [field.name for field in ring.schema.fields].index("t_ns")
    times = batch.buffers[2 * place]
    assert times is not None
    return max(memoryview(times).cast("q")[: batch.rows], default=None)


# ---- why it ended ---------------------------------------------------------------------------


class Ending:
    """Why a process ended."""

    def __init__(self, state: str, known: Exit | None) -> None:
        self.state = state  # ended or killed
        status = None if known is None else known.status
        number = 0 if status is None else status & 0x7F
        self.signal = _name_signal(number) if number else None
        self.code = None if status is None or number else status >> 8 & 0xFF
        self.out_of_memory = None if known is None else known.out_of_memory
        self.certainty = "sure" if known is None else known.certainty  # of that
        exception = None if known is None else known.exception
        # An interactive Python goes on after an exception, and ends in order.
        self.exception = None if self.code == 0 else exception
        self.is_guess = known is not None and known.is_guess
        is_so = known is not None and self.code is not None and known.call_code == self.code
        self.call = known.call if is_so and known is not None else None

    @property
    def is_unseen(self) -> bool:
        """Whether it was killed, and nothing is known of by what."""
        return self.state == "killed" and not self.signal and not self.out_of_memory

    @property
    def word(self) -> str:
        """The reason in a word or two, for a table."""
        if self.out_of_memory and self.certainty != "possible":
            return "out of memory" if self.certainty == "sure" else "out of memory?"
        if self.exception:
            return self.exception.partition(":")[0].rpartition(".")[2]
        if self.signal:
            return f"{self.signal}?" if self.is_guess else self.signal
        return f"exit {self.code}" if self.code else self.state

    @property
    def sentence(self) -> str:
        """The reason as the end of a sentence that begins with the process."""
        if self.out_of_memory:
            return self._describe_lack()
        code = "" if self.code is None else f" (exit code {self.code})"
        if self.exception:
            return f"ended with an uncaught {self.exception}{code}"
        if self.signal:
            return f"was {'most likely ' if self.is_guess else ''}ended by {self.signal}"
        if self.code is not None:
            call = "" if self.call is None else f"; it last called {self.call}"  # perhaps in vain
            return f"ended with exit code {self.code}{call}"
        if self.state == "killed":
            return "was killed (nobody saw by what)"
        return "has ended"

    def _describe_lack(self) -> str:
        whose = "its cgroup" if self.out_of_memory == "cgroup" else "the machine"
        lack = f"by the kernel: {whose} was out of memory"
        if self.certainty == "possible":
            return f"was killed, perhaps {lack}, but nobody saw which processes it killed"
        return f"was killed{'' if self.certainty == 'sure' else ', most likely'} {lack}"


def _name_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def find_ending(session: Session) -> Ending | None:
    """Return why the process of a session ended; None if it runs, or nothing can be known."""
    state = session.find_state()
    if state not in ("ended", "killed"):
        return None
    known = session.read_exit()
    if known is None or known.exception is None:
        exception = find_exception(session)
        if exception is not None:
            status = None if known is None else known.status
            known = Exit(status=status, exception=exception)
    if known is not None and known.exception is None and known.call is None:
        known.call, known.call_code = find_exit_call(session)
    is_told = known is not None and (known.status is not None or known.out_of_memory is not None)
    if state == "killed" and not is_told:
        known = _find_unseen_end(session) or known
    return Ending(state, known)


def wait_for_statuses(sessions: Sequence[Session], patience_s: float = _PATIENCE_S) -> None:
    """Give the collector a moment to learn how processes ended that are gone since just now. Until
    then, one that ran no exit hook, such as one that had become another program, looks killed."""
    deadline, newest_ns = time.monotonic() + patience_s, time.time_ns() - _JUST_NS
    waiting = [one for one in sessions if one.read_sealed() is None and one.is_here()]
    while time.monotonic() < deadline:
        waiting = [one for one in waiting if _is_untold(one) and find_end_wall_ns(one) > newest_ns]
        if not any(launch.has_collector(os.path.dirname(one.folder)) for one in waiting):
            return
        time.sleep(0.02)


def _is_untold(session: Session) -> bool:
    """Tell whether a process looks killed, and nobody has said yet by what."""
    if session.read_sealed() is not None or session.find_state() != "killed":
        return False
    known = session.read_exit()
    return known is None or known.status is None


def _find_unseen_end(session: Session) -> Exit | None:
    """Return how a process ended that nobody saw, if by a fault or because memory had run out."""
    fault = find_fault(session)
    if fault is not None:
        return fault
    lack = find_logged_lack(session)
    if lack is None and session.read_sealed() is None:
        return find_kept_kill(session, find_end_wall_ns(session))
    return Exit(status=int(signal.SIGKILL), out_of_memory=lack) if lack else None


def find_logged_lack(session: Session) -> str | None:
    """Return whose memory was full when the kernel killed a process, as its log says: `cgroup` or
    `machine`; an empty text if it did not kill it, None if the log does not tell."""
    # The log numbers processes as the whole machine does, and tells of this one only.
    if not session.is_here() or session.meta.pid_namespace != WHOLE_MACHINE:
        return None
    sealed = session.read_sealed()
    end_wall_ns = find_end_wall_ns(session) if sealed is None else sealed.end_wall_ns
    return find_kill(session.pid, end_wall_ns - session.wall_offset_ns)


def choose_ended(sessions: list[Session]) -> list[Session]:
    """Return those of the newest job that did not end in order; without such, the newest."""
    last = sessions[-1]
    job = [one for one in sessions if one.meta.job is not None and one.meta.job == last.meta.job]
    ends = [(one, find_ending(one)) for one in job]
    return [one for one, end in ends if end is not None and end.word != "ended"] or [last]


def find_ended_by_parents(sessions: Sequence[Session]) -> set[str]:
    """Return the ids of processes that SIGTERM has ended, or nobody saw what, and whose parent has
    ended in order: a pool ends its workers so."""
    return _find_calm([(one, find_ending(one)) for one in sessions])


def _find_calm(ends: Sequence[tuple[Session, Ending | None]]) -> set[str]:
    # As Pool.terminate does, or the end of its `with`; and a program with a server that it started.
    orderly = {(one.host, one.pid) for one, end in ends if end is not None and end.word == "ended"}
    return {
        one.id for one, end in ends
        if end is not None and (end.word == "SIGTERM" or end.is_unseen)
        and (one.host, one.meta.ppid) in orderly
    }  # fmt: skip


def describe_ends(sessions: Sequence[Session]) -> list[str]:
    """Return sentences about the processes that did not end in order, those that ended like most
    others first."""
    ends_known = [(one, find_ending(one)) for one in sessions]
    calm = _find_calm(ends_known)
    alike: dict[str, list[Session]] = {}
    for one, end in ends_known:
        if end is None or (end.word in ("ended", "killed") and not end.out_of_memory):
            continue
        if one.id not in calm:
            alike.setdefault(end.sentence, []).append(one)
    told = sorted(alike.items(), key=lambda item: -len(item[1]))
    ends = [f"{_name_processes(those)} {sentence}" for sentence, those in told[:_MOST_ENDS]]
    more = sum(len(those) for _, those in told[_MOST_ENDS:])
    return ends if not more else [*ends, f"{more} more processes did not end in order either"]


def _name_processes(sessions: Sequence[Session]) -> str:
    if len(sessions) == 1:
        return f"{name_program(sessions[0].meta.argv)} (pid {sessions[0].pid})"
    pids = ", ".join(str(one.pid) for one in sessions[:_MOST_PIDS])
    more = ", \N{HORIZONTAL ELLIPSIS}" if len(sessions) > _MOST_PIDS else ""
    return f"{len(sessions)} processes ({pids}{more}): each"


def find_exception(session: Session) -> str | None:
    """Return the exception that ended the main thread, as long as its row is in the ring."""
    try:
        rows = list(stack_table.read_rows(session, "python.exception"))
    except (FileNotFoundError, Damaged):
        return None
    found = [row for row in rows if row["thread"] == session.pid]
    if not found:
        return None
    name, message = str(found[-1]["type"]).removeprefix("builtins."), found[-1]["message"]
    return name if not message else f"{name}: {message}"


def find_fault(session: Session) -> Exit | None:
    """Return how a process ended that nobody saw, if it told of a fault in its last moment, and did
    not go on after an earlier one, as a Java machine does; as long as the row is in the ring."""
    try:
        rows = list(stack_table.read_rows(session, "python.fatal_signal"))
        newest_ns = _find_newest_ns(session.path("python.stack_sample" + RING))
    except (FileNotFoundError, Damaged):
        return None
    if not rows or max(newest_ns or 0, rows[-1]["t_ns"]) > rows[0]["t_ns"] + _LAST_NS:
        return None
    number = signal.Signals.__members__.get(str(rows[-1]["signal"]))  # a damaged file has any text
    return None if number is None else Exit(status=int(number), is_guess=True)


def find_exit_call(session: Session) -> tuple[str, int] | tuple[None, None]:
    """Return the call of sys.exit that may have ended the process, in words, and the exit code that
    it asked for; as long as its row is in the ring."""
    try:
        rows = list(stack_table.read_rows(session, "python.exit_call"))
    except (FileNotFoundError, Damaged):
        return None, None
    if not rows:
        return None, None
    row, said = rows[-1], rows[-1]["message"]
    if said is not None:
        (first, *more) = str(said).strip().splitlines() or [""]
        cut = first[:_MOST_CHARS]
        said = f'"{cut}\N{HORIZONTAL ELLIPSIS}"' if more or cut != first else f'"{first}"'
    place = f"{shorten_file(str(row['file']))}:{row['lineno']}"
    said = row["code"] if said is None else said
    return f"sys.exit({said}) in {row['func']} ({place})", int(row["code"])
