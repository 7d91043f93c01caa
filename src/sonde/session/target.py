"""Targets: how users name recordings."""

from __future__ import annotations

import os

from sonde.errors import Damaged, NoSession
from sonde.session import runs, stack_table
from sonde.session.files import META, find_refusal
from sonde.session.folder import Session, list_sessions
from sonde.session.process import read_start_ticks
from sonde.words import WORKER, name_program, shorten_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypeVar

    S = TypeVar("S", bound=Session)


def find_sessions(target: str, root: str) -> list[Session]:
    """Return the sessions that a TARGET names: a pid, folder, session id, run, job, program,
    beginning of a command, or `all`.

    Several targets are separated by commas. A pid names its newest session; a job whose id is also
    a pid is `job:NUMBER`."""
    found: dict[str, Session] = {}
    if os.path.isdir(target) and os.sep in target:
        return _find_folder(target)  # its name may contain a comma
    for part in filter(None, (word.strip() for word in target.split(","))):
        for session in _find_allowed(part, root):
            found[session.folder] = session
    if not found:
        raise NoSession("no target given; `sonde ps` lists all recordings")
    return list(found.values())


def add_children(sessions: list[Session]) -> list[Session]:
    """Return sessions and those of their children: a loader's workers belong to its job, and the
    ranks to their launcher."""
    roots = {os.path.dirname(session.folder) for session in sessions}
    return add_known_children(sessions, [one for root in roots for one in list_sessions(root)])


def add_known_children(sessions: list[S], known: Iterable[S]) -> list[S]:
    """Return sessions and those of `known` that they have forked or launched."""
    found = {session.folder: session for session in sessions}
    ids = {session.id for session in sessions}
    pids = {(session.host, session.meta.job, session.pid) for session in sessions}
    for one in sorted(known, key=lambda session: session.start_wall_ns):  # parents come first
        is_started = one.meta.job is not None and (one.host, one.meta.job, one.meta.ppid) in pids
        if one.meta.parent in ids or is_started:
            ids.add(one.id)
            pids.add((one.host, one.meta.job, one.pid))
            found.setdefault(one.folder, one)
    return list(found.values())


def find_workers(sessions: Iterable[Session]) -> set[str]:
    """Return the ids of those that others of these have forked, or that multiprocessing has started
    for them as a part of their own rank: from Python 3.14 on, a server that forks the workers. Any
    other program that a rank starts may be the one that trains."""
    known = list(sessions)
    ids = {one.id for one in known}
    ranks: dict[tuple[object, ...], int] = {}
    for one in known:
        if one.rank is not None:
            key = (*_name_rank(one), one.pid)
            ranks[key] = min(one.start_wall_ns, ranks.get(key, one.start_wall_ns))
    return {
        one.id
        for one in known
        if one.meta.parent in ids
        or (
            ranks.get((*_name_rank(one), one.meta.ppid), one.start_wall_ns) < one.start_wall_ns
            and shorten_command(" ".join(map(str, one.meta.argv))) == WORKER
        )
    }


def _name_rank(session: Session) -> tuple[object, ...]:
    # SLURM's rank of a launcher may have the number of a rank that it starts.
    return session.host, session.meta.job, session.meta.launcher, session.rank


def find_newest(root: str) -> str:
    """Return the target that means what was begun last, of what runs if anything does: the job of a
    process, with all that belong to it."""
    sessions = sorted(list_sessions(root), key=lambda one: one.start_wall_ns)
    if not sessions:
        raise NoSession("nothing is recorded yet; `sonde run SCRIPT` records a program")
    newest = ([session for session in sessions if session.is_alive()] or sessions)[-1]
    return newest.meta.job or newest.id


def add_ranks(sessions: list[Session]) -> list[Session]:
    """Return sessions, and the other ranks of the job if one of them waits for these in a
    collective: only they tell who has not come."""
    jobs = {one.meta.job for one in sessions if one.rank is not None and _is_in_collective(one)}
    jobs.discard(None)
    found = {session.folder: session for session in sessions}
    for root in {os.path.dirname(session.folder) for session in sessions} if jobs else ():
        for one in list_sessions(root):
            if one.rank is not None and one.meta.job in jobs:
                found.setdefault(one.folder, one)
    return list(found.values())


def _is_in_collective(session: Session) -> bool:
    """Return whether the newest collective of a rank is one that has not ended."""
    try:
        rows = list(stack_table.read_newest_rows(session, "python.collective", 8))
    except (FileNotFoundError, Damaged):
        return False
    ended = {row["seq"] for row in rows if row["state"] == "ended"}
    return any(row["state"] == "running" and row["seq"] not in ended for row in rows)


def _find_allowed(part: str, root: str) -> list[Session]:
    try:
        return _find_part(part, root)
    except NoSession:
        refusal = find_refusal(part if os.sep in part else root)
        if refusal is None:
            raise
        raise NoSession(refusal) from None


def _find_part(part: str, root: str) -> list[Session]:
    if os.sep in part or part in (".", ".."):
        return _find_folder(part)
    if part.isdecimal():
        return _find_pid(int(part), root)
    if runs.is_id(part):
        return [runs.find_run(part, root).session]
    sessions = list(list_sessions(root))
    job = part.removeprefix("job:")
    if part == "all":
        if sessions:
            return sessions
        raise NoSession(f"nothing has been recorded in {root}")
    named = [session for session in sessions if session.id == part]
    jobs = [session for session in sessions if session.meta.job == job]
    if named or jobs:
        return named or jobs
    folder = os.path.join(root, part)
    found = [Session(folder)] if os.path.isdir(folder) else _find_program(part, sessions)
    if found:
        return found
    raise NoSession(
        f"there is no recording called {part}; {_suggest(part, sessions)}"
        "`sonde ps` lists all recordings"
    )


def _find_program(name: str, sessions: list[Session]) -> list[Session]:
    """Return what runs of the jobs whose program has this name, or whose command begins with these
    words; the newest of them if none runs."""
    found = [s for s in sessions if name in _name_both(s) or _begins(name, s)]
    live = [s for s in found if s.is_alive()]
    jobs = {s.meta.job for s in live or found[-1:]} - {None}
    same = [s for s in sessions if s in (live or found[-1:]) or s.meta.job in jobs]
    return [s for s in same if s.is_alive()] if live else same


def _name_both(session: Session) -> set[str]:
    """Return the name of a program with and without its suffix."""
    name = name_program(session.meta.argv)
    return {name, name.removesuffix(".py")}


def _begins(words: str, session: Session) -> bool:
    """Return whether the command of a session, as `sonde ps` shows it, begins with these words:
    one program is told from another of its name by what it was told to do."""
    if " " not in words:
        return False
    command = shorten_command(" ".join(map(str, session.meta.argv)))
    return f"{command} ".startswith(f"{words} ")


def _suggest(part: str, sessions: list[Session]) -> str:
    known = {name for s in sessions for name in (*_name_both(s), s.meta.job or s.id)}
    return find_nearest_name(part, known)


def find_nearest_name(part: str, known: Iterable[str]) -> str:
    """Return a question that names the nearest of the known names; empty if none is near."""
    from difflib import get_close_matches  # only when something is wrong: 4 ms

    names = sorted(known)
    near = [name for name in names if name.startswith(part)] or get_close_matches(part, names, 1)
    return f"did you mean {near[0]}? " if near else ""


def _find_folder(path: str) -> list[Session]:
    if "://" in path or os.path.isdir(os.path.join(path.partition("#")[0], "sonde.session")):
        raise NoSession(
            f"{path} is a shared place, and this command needs a recording of this host"
        )
    if not os.path.isdir(path):
        raise NoSession(f"{path} is not a folder")
    if not os.path.exists(os.path.join(path, META)):
        sessions = list(list_sessions(path))
        if sessions:
            return sessions
    return [Session(path)]


def _find_pid(pid: int, root: str) -> list[Session]:
    host = os.uname().nodename
    mine = [s for s in list_sessions(root) if s.pid == pid and s.host == host]
    if mine:
        return mine[-1:]
    jobs = [s for s in list_sessions(root) if s.meta.job == str(pid)]
    if jobs:
        return jobs
    if read_start_ticks(pid) is None:
        raise NoSession(f"there is no process {pid}, and no recording; `sonde ps` lists recordings")
    raise NoSession(
        f"process {pid} is not being recorded; `sonde attach {pid}` records it without a restart"
    )
