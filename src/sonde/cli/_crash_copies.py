"""Unwinds the native stacks that a program has left at a fault, where no collector is there to.

Such a collector was killed shortly before the program, say. The next one would do it, but the
copies may hold secrets, and whoever looks now wants to see the result."""

from __future__ import annotations

import os
import subprocess

from sonde import launch
from sonde.session import Session, crash_file
from sonde.session.files import remove_quietly

_MOST_S = 60.0  # the debugging symbols of big libraries take seconds


def unwind_copies(session: Session) -> str | None:
    """Unwind what a session of ours has left; return why that failed, if it did."""
    path = session.path(crash_file.NAME)
    try:
        is_ours = os.lstat(path).st_uid == os.geteuid()
    except OSError:
        return None  # as usual: there is nothing to unwind
    is_here = session.host == os.uname().nodename  # elsewhere are other libraries
    if not (is_ours and is_here) or launch.has_collector(os.path.dirname(session.folder)):
        return None
    command = launch.make_command("attach.crash_stacks", session.folder)
    if not command:
        return None
    try:
        done = subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_MOST_S,
        )
    except subprocess.TimeoutExpired:
        remove_quietly(path)
        return f"no native stacks: it took longer than {_MOST_S:.0f} s"
    why = (done.stderr.splitlines() or ["their process has ended"])[-1]
    return f"no native stacks: {why}" if done.returncode else None
