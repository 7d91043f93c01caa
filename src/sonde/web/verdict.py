"""The verdict, made in a process of its own: what its rules read does not stay in memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

from sonde.advice.finding import show_evidence
from sonde.advice.judge import advise
from sonde.analysis.window import Window
from sonde.errors import Error
from sonde.session import Session
from sonde.web.answer import PageAnswer
from sonde.words import show_moment

_TIMEOUT_S = 300.0
_SQL = ("-- `sonde advise` says the same; each rule is SQL, see docs/advice.md",)


def read_advice(sessions: Sequence[Session], window: Window | None = None) -> PageAnswer:
    """Return what is wrong; each finding comes with its evidence as people read it."""
    times = ["", ""] if window is None else list(map(show_moment, window))
    command = [sys.executable, "-m", __name__, *times, *(session.folder for session in sessions)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise Error(f"the rules had no verdict after {_TIMEOUT_S:g} s") from None
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise Error(lines[-1] if lines else f"it ended with code {done.returncode}")
    return PageAnswer({"advice": json.loads(done.stdout)}, _SQL)


def make_advice(folders: Sequence[str], since: str | None, until: str | None) -> str:
    """Return the advice about sessions as JSON."""
    advice = advise(folders, since=since, until=until)
    whole = json.loads(advice.to_json())
    for made, finding in zip(whole["findings"], advice.findings, strict=True):
        made["shown"] = [show_evidence(name, value) for name, value in finding.evidence.items()]
    return json.dumps(whole)


if __name__ == "__main__":
    print(make_advice(sys.argv[3:], sys.argv[1] or None, sys.argv[2] or None))
