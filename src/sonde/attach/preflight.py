"""The checks before a process is attached to; each has an error of its own."""

from __future__ import annotations

import os
import pwd
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sonde import plugins
from sonde.attach.elf import Elf, NotElf
from sonde.attach.procfs import ProcessFiles
from sonde.attach.symbols import (
    Libraries,
    Library,
    Replaced,
    find_calls,
    find_python,
    find_restorer,
)
from sonde.errors import Error
from sonde.session import list_sessions

OLDEST, NEWEST = (3, 10), (3, 15)
_SYS_PTRACE = 19
_ASK_S = 20.0  # for a Python to start and say whether it has sonde
PACKAGE = plugins.PACKAGE


class CannotAttach(Error):
    """The process cannot be attached to; nothing was touched."""


class NoSuchProcess(CannotAttach):
    """There is no process with that pid."""

    exit_code = 3


class OtherUser(CannotAttach):
    """The process belongs to another user."""


class NotRunning(CannotAttach):
    """The process has ended, or is stopped."""


class TracingRefused(CannotAttach):
    """The process cannot be traced; a new Python may take a script all the same: see script.py."""


class AlreadyTraced(TracingRefused):
    """A debugger is attached to the process."""


class Forbidden(CannotAttach):
    """The kernel does not allow it."""


class TracingForbidden(Forbidden, TracingRefused):
    """The kernel does not allow tracing, or not the calls that a visitor needs."""


class OtherContainer(CannotAttach):
    """The process is in another container, with other pids or other files."""


class OtherMachine(CannotAttach):
    """The process is not 64-bit, or is for another kind of processor."""


class NotPython(CannotAttach):
    """There is no Python interpreter in the process."""


class NoSymbols(TracingRefused):
    """The interpreter does not export what is needed."""


class OtherVersion(CannotAttach):
    """A Python that this sonde is not built for."""


class AlreadyRecorded(CannotAttach):
    """The process is being recorded already."""


@dataclass(frozen=True)
class VisitPlan:
    """What is needed to start a visitor in a process."""

    process: ProcessFiles
    calls: list[tuple[int, bytes]]
    restorer: int
    python: str  # the file that the interpreter is in
    text: list[tuple[int, int]]  # its code, where a running thread may be stopped
    version: tuple[int, int]
    fits: bool  # this package can be loaded there
    is_free: bool = False  # it is built to run without a GIL


def check(pid: int, root: str, proc: str = "/proc") -> VisitPlan:
    """Check everything and touch nothing; raise the first obstacle, else return the plan."""
    process = ProcessFiles(pid, proc)
    with explained(process, proc):
        status = process.read_status()
        _check_tracer(process, status)
        check_process(process, status, root, proc)
        if "shstk" in status.get("x86_Thread_features", ""):
            raise TracingForbidden(
                f"process {pid} has a shadow stack, which forbids calls from outside"
            )
        return plan(process)


def check_process(process: ProcessFiles, status: dict[str, str], root: str, proc: str) -> None:
    """Check everything but whether the process can be traced."""
    _check_state(process, status)
    check_user(process, status)
    _check_container(process)
    _check_recorded(process.pid, root)
    _check_rights(process, proc)
    _check_machine(process, status)


@contextmanager
def explained(process: ProcessFiles, proc: str) -> Iterator[None]:
    """Say what it means that files of a process are gone or closed to us."""
    pid = process.pid
    try:
        yield
    except (FileNotFoundError, ProcessLookupError):
        raise NoSuchProcess(f"there is no process {pid}, or it has just ended") from None
    except PermissionError as error:
        raise Forbidden(
            f"process {pid} may not be inspected ({error.filename}): {explain_refusal(proc)}"
        ) from None


# ---- the process -------------------------------------------------------------------------------


def _check_state(process: ProcessFiles, status: dict[str, str]) -> None:
    pid, state = process.pid, status.get("State", "?")[:1]
    if pid == os.getpid():
        raise CannotAttach("that is this very process; use sonde.start()")
    if int(status.get("Tgid", pid)) != pid:
        raise CannotAttach(f"{pid} is a thread of process {status['Tgid']}; attach to that")
    if state in ("Z", "X"):
        raise NotRunning(f"process {pid} has ended; its parent has not waited for it yet")
    if state in ("T", "t"):
        raise NotRunning(f"process {pid} is stopped; `kill -CONT {pid}` resumes it")


def _check_tracer(process: ProcessFiles, status: dict[str, str]) -> None:
    tracer = int(status.get("TracerPid", 0))
    if tracer:
        name = name_process(tracer)
        raise AlreadyTraced(f"process {process.pid} is being traced by {name}; end that first")


def name_process(pid: int) -> str:
    """Return the name and number of a process."""
    try:
        return f"{ProcessFiles(pid).read('comm').decode(errors='replace').strip()} ({pid})"
    except OSError:
        return f"process {pid}"


def check_user(process: ProcessFiles, status: dict[str, str]) -> None:
    """Raise OtherUser if a process belongs to somebody else."""
    owners = {int(word) for word in status["Uid"].split()}
    if owners != {os.geteuid()}:
        theirs = min(owners - {os.geteuid()})
        try:
            name = pwd.getpwuid(theirs).pw_name
        except KeyError:
            name = f"#{theirs}"
        raise OtherUser(
            f"process {process.pid} belongs to {name}; "
            f"run `sudo -u {name} sonde attach {process.pid}`"
        )


def _check_container(process: ProcessFiles) -> None:
    """Check that pids and paths mean the same there: the recording is found by both."""
    inside = "run `sonde attach` in its container (docker exec, kubectl exec)"
    if process.read_link("ns/pid") != os.readlink("/proc/self/ns/pid"):
        raise OtherContainer(f"process {process.pid} is in another container; {inside}")
    if process.read_link("ns/mnt") != os.readlink("/proc/self/ns/mnt") and not _sees(
        process, PACKAGE
    ):
        raise OtherContainer(f"process {process.pid} does not see {PACKAGE}; {inside}")


def _sees(process: ProcessFiles, path: str) -> bool:
    try:
        here, there = os.stat(path), os.stat(process.find_file(path))
    except OSError:
        return False
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def _check_recorded(pid: int, root: str) -> None:
    for known in list_sessions(root):
        if known.pid == pid and known.is_alive():
            raise AlreadyRecorded(
                f"process {pid} is being recorded already: {known.folder}; "
                f"`sonde config {pid}` changes its settings"
            )


def _check_rights(process: ProcessFiles, proc: str) -> None:
    """Open the memory of the process: it takes the same rights as tracing and changes nothing."""
    try:
        with open(f"{process.folder}/mem", "rb"):
            return
    except PermissionError:
        raise Forbidden(
            f"process {process.pid} may not be traced: {explain_refusal(proc)}"
        ) from None


def explain_refusal(proc: str = "/proc") -> str:
    """Say why the kernel does not let us trace a process of the same user, and what helps."""
    try:
        with open(f"{proc}/sys/kernel/yama/ptrace_scope", encoding="ascii") as file:
            scope = int(file.read())
    except (OSError, ValueError):
        scope = 0
    if scope == 3:
        return "kernel.yama.ptrace_scope is 3: nobody may until the machine is restarted"
    if scope:
        return (
            f"kernel.yama.ptrace_scope is {scope}; use sudo, or allow it: "
            "`sudo sysctl kernel.yama.ptrace_scope=0`"
        )
    rights = int(ProcessFiles(os.getpid(), proc).read_status().get("CapEff", "0"), 16)
    if rights >> _SYS_PTRACE & 1:
        return "a security module (SELinux, AppArmor) forbids it"
    return (
        "it has dropped rights or hides its memory; use sudo, and in a container "
        "--cap-add=SYS_PTRACE"
    )


def _check_machine(process: ProcessFiles, status: dict[str, str]) -> None:
    pid, ours = process.pid, os.uname().machine
    try:
        elf = Elf(f"{process.folder}/exe")
    except NotElf:
        raise NotPython(f"process {pid} does not run a program that we can read") from None
    if elf.bits != 64 or elf.machine != ours:
        raise OtherMachine(
            f"process {pid} is {elf.bits}-bit {elf.machine}; this sonde is 64-bit {ours}"
        )
    if status.get("Seccomp") == "1":
        raise Forbidden(f"process {pid} may only read and write (strict seccomp)")


# ---- its Python ----------------------------------------------------------------------------------


def plan(process: ProcessFiles) -> VisitPlan:
    """Find everything that is needed in a process that has been checked."""
    libraries, pid = Libraries(process), process.pid
    try:
        python = require_python(process, libraries)
        libc = list(libraries.find("libc.", "libc-", "libpthread", "ld-musl"))
        calls, missing = find_calls(python, libc)
    except Replaced as error:
        raise CannotAttach(
            f"{error} was replaced since process {pid} started; restart the process"
        ) from None
    restorer = find_restorer(process, libraries, libc)
    if missing or restorer is None:
        lack = ", ".join(missing) or "a signal return"
        raise NoSymbols(
            f"the Python of process {pid} ({python.path}) does not export {lack}: it is static or "
            "stripped; start the program with `sonde run`"
        )
    version, fits = check_version(process, python)
    # None if an allocator is linked into it: a thread may be stopped while it holds a lock.
    text = [] if python.elf.find_symbols(["malloc"]) else python.text
    is_free = is_free_threaded(python)
    return VisitPlan(process, calls, restorer, python.path, text, version, fits, is_free)


def require_python(process: ProcessFiles, libraries: Libraries) -> Library:
    """Return the file with the interpreter; NotPython if there is none."""
    python = find_python(process, libraries)
    if python is None:
        link = process.read_link("exe")
        raise NotPython(f"process {process.pid} does not run Python: {link}")
    return python


def list_text(plan: VisitPlan) -> list[tuple[int, int]]:
    """Return all code in which a running thread may be stopped, of all libraries loaded so far."""
    return plan.text + Libraries(plan.process).list_other_text(plan.python)


def read_version(python: Library) -> tuple[int, int]:
    """Return the version of the Python."""
    symbol = python.elf.find_symbols(["Py_Version", "PyIter_Send"])
    if "Py_Version" in symbol:  # since 3.11
        data = python.elf.read(symbol["Py_Version"].address, 4)
        number = int.from_bytes(data, "little")
        return number >> 24, number >> 16 & 0xFF
    return (3, 10) if "PyIter_Send" in symbol else (3, 9)


def is_free_threaded(python: Library) -> bool:
    """Tell whether the Python is built to run without a GIL."""
    return bool(python.elf.find_symbols(["_Py_DecRefShared"]))  # which only such a Python has


def check_version(process: ProcessFiles, python: Library) -> tuple[tuple[int, int], bool]:
    """Return the version of the process's Python, and whether this package can be loaded there."""
    version = read_version(python)
    if not OLDEST <= version <= NEWEST:
        word = "older than" if version < OLDEST else "newer than"
        limit = OLDEST if version < OLDEST else NEWEST
        shown = "3.9 or older" if version == (3, 9) else f"{version[0]}.{version[1]}"
        raise OtherVersion(
            f"process {process.pid} is Python {shown}, {word} {limit[0]}.{limit[1]}: not supported"
        )
    is_free = is_free_threaded(python)
    if version in list_cores(is_free):
        return version, True
    if is_free and not has_own(process):
        raise OtherVersion(
            f"process {process.pid} is free-threaded Python without sonde: install sonde there"
        )
    if not has_own(process):
        cores = ", ".join(
            f"{one[0]}.{one[1]}{kind}" for kind in ("", "t") for one in list_cores(kind == "t")
        )
        raise OtherVersion(
            f"process {process.pid} is Python {version[0]}.{version[1]} without sonde, and this "
            f"sonde has a core for {cores} only: {describe_python(process)} -m pip install sonde"
        )
    return version, False


def list_cores(is_free: bool = False) -> list[tuple[int, int]]:
    """Return the versions of (free-threaded) Python that this package has a core for: all of them
    if it is from a wheel, ours alone if it was built here."""
    kind = "t" if is_free else ""
    found = re.findall(rf"\b_core\.cpython-(\d)(\d+){kind}-", " ".join(os.listdir(PACKAGE)))
    return sorted((int(major), int(minor)) for major, minor in found)


def describe_python(process: ProcessFiles) -> str:
    """Return the command that starts the Python of a process, in its own virtual environment."""
    words = process.read_words("cmdline")
    named = words[0] if words else ""
    if not os.path.basename(named).startswith("python"):
        return process.read_link("exe")
    # Whoever reads this is in another folder. The process may have left the one it was started in.
    whole = os.path.normpath(os.path.join(process.read_link("cwd"), named))
    return whole if "/" in named and os.access(whole, os.X_OK) else named


def has_own(process: ProcessFiles, timeout_s: float = _ASK_S) -> bool:
    """Tell whether sonde is installed for the interpreter of a process, by running it once."""
    environ = dict(word.partition("=")[::2] for word in process.read_words("environ") if word)
    command = process.read_words("cmdline")
    try:
        done = subprocess.run(
            # With its own argv[0]: that is how Python finds its virtual environment.
            [command[0] or "python", "-c", "import sonde.job, sonde._core"],
            executable=process.read_link("exe"), cwd=process.read_link("cwd"),
            env={**environ, "SONDE": "0"}, stdin=subprocess.DEVNULL, capture_output=True,
            timeout=timeout_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise CannotAttach(
            f"the Python of process {process.pid} did not say within {timeout_s:g} s whether "
            "it has sonde: the machine is too busy; try again"
        ) from None
    except OSError:
        return False
    return done.returncode == 0
