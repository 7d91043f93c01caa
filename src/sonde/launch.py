"""How processes of a recording are started: the job, and the collector as seen from the job."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from sonde import environ
from sonde import settings as config


def collector_lock(root: str) -> str:
    """The file that the host's one collector holds locked; made if need be."""
    path = os.path.join(root, f".collector-{os.uname().nodename}.lock")
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    return path


def make_job_environment(argv: list[str], job: str | None = None, **more: str) -> dict[str, str]:
    """The environment of a program that is to record itself, and all that it starts."""
    return environ.make_child_environment(
        SONDE="1",
        SONDE_DIR=environ.find_root(),  # the same one wherever the program goes from here
        **environ.name_command(argv, job),
        **more,
    )


def make_commands(
    root: str, folder: str, values: Mapping[str, config.Value]
) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """How to start the collector, how to write a snapshot, and the environment of both; nothing if
    this Python's executable is unknown."""
    settings = environ.name_settings(values, ("retain.bytes", "retain.age"))
    return (
        make_command("collector.loop", root),
        make_command("session.snapshots", folder),
        make_environment(SONDE="0", **settings) if _find_python() else [],
    )


def make_command(module: str, *words: str) -> list[bytes]:
    """How to start `main()` of a module of ours; nothing if this Python's executable is unknown."""
    python = _find_python()
    if python is None:
        return []
    # From the folder we were imported from: the job's sys.path is not theirs.
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    code = f"import sys; sys.path[0] = sys.argv.pop(1); from sonde.{module} import main; main()"
    return [os.fsencode(word) for word in (python, "-c", code, here, *words)]


def make_environment(**changes: str) -> list[bytes]:
    """The environment of such a process."""
    env = environ.make_child_environment(**changes)
    return [os.fsencode(f"{name}={value}") for name, value in env.items()]


def _find_python() -> str | None:
    # An embedding program (a web server, say) names itself here: never start that.
    named = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for path in (sys.executable, os.path.join(sys.exec_prefix, "bin", named)):
        if path and os.path.basename(path).startswith("python") and os.access(path, os.X_OK):
            return path
    return None
