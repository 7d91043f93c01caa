"""How sonde starts processes: the recorded program, the collector and other helpers."""

from __future__ import annotations

import os
import sys

from sonde import environ
from sonde import settings as config
from sonde.errors import Error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


# The Python of the tool that attached to this process and lent it its own sonde: the processes that
# we start are then of that Python, whose version may be another than ours.
lender: str | None = None
# Signals that `sonde run` holds back, and that are the program's: see __main__.py and cli/run.py.
held: set[int] = set()
_FOR_OURS = ("PYTHONHOME", "PYTHONPATH", "PYTHONSTARTUP", "__PYVENV_LAUNCHER__")


def collector_lock(root: str, *, create: bool = True) -> str:
    """Return the file that the host's one collector keeps locked; create it if need be."""
    path = _name_file(root, "lock")
    if create:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    return path


def collector_report(root: str) -> str:
    """Return the file that says why the host's collector last failed; it exists only then."""
    return _name_file(root, "failed")


def agent_report(root: str) -> str:
    """Return the file that says why the agent that the collector started last failed."""
    return os.path.join(root, f".agent-{os.uname().nodename}.failed")


def collector_starts(root: str) -> str:
    """Return the file that holds a byte for each start since a collector proved itself."""
    return _name_file(root, "starts")


def _name_file(root: str, kind: str) -> str:
    return os.path.join(root, f".collector-{os.uname().nodename}.{kind}")


def has_collector(root: str) -> bool:
    """Return whether the host's collector is running."""
    import fcntl  # only in the tool

    try:
        fd = os.open(_name_file(root, "lock"), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        # Shared: two that look at once must not take each other for the collector.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass  # the file system has no locks, so there is no collector
    finally:
        os.close(fd)
    return False


def read_archive_problem(root: str) -> str | None:
    """Return why the host's collector archives nothing, as it wrote below its pid; None if it
    does."""
    try:
        with open(_name_file(root, "lock"), encoding="utf-8", errors="replace") as file:
            lines = file.read(1000).splitlines()
    except OSError:
        return None
    return lines[1] if len(lines) > 1 else None


def make_job_environment(argv: list[str], job: str | None = None, **more: str) -> dict[str, str]:
    """Return the environment of a program that is to record itself and all that it starts."""
    return environ.make_child_environment(
        SONDE="1",
        SONDE_DIR=environ.find_root(),  # absolute: the program may change its folder
        **environ.name_command(argv, job),
        **more,
    )


def make_commands(
    root: str, folder: str, values: Mapping[str, config.Value]
) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """Return the commands that start the collector and write a snapshot, and the environment of
    both; empty if this Python's executable is unknown."""
    settings = environ.name_settings(values, ("retain.bytes", "retain.age"))
    return (
        make_command("collector.loop", folder, root, report=collector_report(root)),
        make_command("session.snapshots", folder),
        make_environment(SONDE="0", **settings) if _find_python() else [],
    )


def make_command(module: str, *words: str, report: str = "") -> list[bytes]:
    """Return the command that runs `main()` of one of our modules; empty if the executable of this
    Python is unknown. The file `report` gets one line if it fails."""
    python = _find_python()
    if python is None:
        return []
    # By its path: the process does not have the job's sys.path.
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "background.py")
    return [os.fsencode(word) for word in (python, script, report, module, *words)]


def make_environment(**changes: str) -> list[bytes]:
    """Return the environment of such a process."""
    env = environ.make_child_environment(**changes)
    left_out = _FOR_OURS if lender else ()
    return [os.fsencode(f"{n}={value}") for n, value in env.items() if n not in left_out]


def _find_python() -> str | None:
    # A program that embeds Python (a web server, say) names itself here: never start that.
    named = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for path in (lender, sys.executable, os.path.join(sys.exec_prefix, "bin", named)):
        if path and os.path.basename(path).startswith("python") and os.access(path, os.X_OK):
            return path
    return None


def find_program(argv: list[str]) -> str:
    """Return the path of a program; warn on stderr if its Python cannot be recorded."""
    from shutil import which  # only in the tool

    path = which(argv[0])
    if path is None:
        raise Error(f"{argv[0]}: there is no such program")
    # The last: programs that start another one, such as env, nice and timeout.
    named = (path, _read_interpreter(path), *argv[1:])
    python = next(filter(None, (which(word) for word in named if _is_python(word))), None)
    if python and _lacks_sonde(python):
        print(
            f"sonde: {python} has no sonde, so nothing is recorded; install it there: "
            f"{python} -m pip install sonde; or use `sonde attach` when the program runs",
            file=sys.stderr,
        )
    return path


def is_this_python(path: str) -> bool:
    """Tell whether a program is the Python of this process, with all that is installed in it."""
    folders = {os.path.dirname(os.path.abspath(one)) for one in (path, sys.executable)}
    return len(folders) == 1 and os.path.realpath(path) == os.path.realpath(sys.executable)


def _is_python(path: str) -> bool:
    name = os.path.basename(path)
    return name.startswith("python") and not name[6:].strip("0123456789.td")


def _read_interpreter(path: str) -> str:
    """Return the interpreter that the first line of a script names; empty if it names none."""
    try:
        with open(path, "rb") as file:
            line = os.fsdecode(file.readline(1000))
    except OSError:
        return ""
    words = line[2:].split() if line.startswith("#!") else []
    if words and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    return words[0] if words else ""


def _lacks_sonde(python: str) -> bool:
    """Tell whether this is another Python, in which sonde is not installed."""
    if is_this_python(python):
        return False
    import subprocess  # only in the tool

    # The hook is the proof: it runs, and finds that another process is to be recorded.
    none = {"SONDE_PROFILER_AUTOSTART": "0", "MXNET_PROFILER_AUTOSTART": "0"}
    found = subprocess.run(
        [python, "-c", "import sys; sys.exit('sonde.job.autostart' not in sys.modules)"],
        stdin=subprocess.DEVNULL, capture_output=True, check=False,
        env=environ.make_child_environment(SONDE="1", SONDE_ONLY="0", **none),
    )  # fmt: skip
    return found.returncode != 0
