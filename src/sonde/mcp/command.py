"""One command of sonde, run in a process of its own, and what it says as a short text."""

from __future__ import annotations

import re
import subprocess
import sys

from sonde import environ
from sonde.errors import Error, NotAnswering

MOST = 6000  # characters of an answer: about 1,500 tokens
_TIMEOUT_S = 120.0
_GAP = re.compile(r"(?<=[^\s│]) {3,}")  # columns that are lined up for the eye cost tokens


def run_command(name: str, *options: str, words: tuple[str, ...] = ()) -> str:
    """Return what a command prints. `words` come from the agent and cannot become options: some
    options write files."""
    command = [sys.executable, "-m", "sonde", name, *options, *(("--", *words) if words else ())]
    # Not the modules of the folder that the agent works in, and no recording of our own.
    env = environ.make_child_environment(PYTHONSAFEPATH="1", SONDE="0")
    try:
        done = subprocess.run(
            command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=_TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise NotAnswering(f"no answer within {_TIMEOUT_S:g} s; ask for less time") from None
    if done.returncode:
        said = done.stderr.strip().removeprefix("sonde: ")
        raise Error(shorten(said, 1000) or f"it ended with code {done.returncode}")
    return done.stdout


def shorten(text: str, most: int = MOST) -> str:
    """Return a text without the room between its columns, and no longer than `most`."""
    lines = [_GAP.sub("  ", line.rstrip()) for line in text.strip("\n").splitlines()]
    kept, used = list[str](), 0
    for line in lines:
        used += len(line) + 1
        if used > most:
            kept.append(f"(… {len(lines) - len(kept)} more lines are left out: ask for less)")
            break
        kept.append(line)
    return "\n".join(kept)
