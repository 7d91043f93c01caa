"""Verdicts, each made in a process of its own: what the rules read does not stay in memory."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from sonde.advice.compare import compare
from sonde.advice.finding import show_evidence
from sonde.advice.judge import advise
from sonde.analysis.code_names import shorten_file
from sonde.analysis.window import Window
from sonde.errors import Error
from sonde.session import Session
from sonde.web.answer import PageAnswer
from sonde.web.own_process import run_module
from sonde.words import show_moment

_TIMEOUT_S = 900.0  # a day of eight ranks takes minutes
_NICENESS = 10  # a tenth of what others get: nobody has to wait for a verdict that is on its way
_ADVICE_SQL = ("-- `sonde advise` says the same; each rule is SQL, see docs/advice.md",)
_MOST = 40  # rows of a comparison


def read_advice(sessions: Sequence[Session], window: Window | None = None) -> PageAnswer:
    """Return what is wrong; each finding comes with its evidence as people read it."""
    times = ["", ""] if window is None else list(map(show_moment, window))
    found = _ask_process(
        "advise", *times, *(session.folder for session in sessions), niceness=_NICENESS
    )
    return PageAnswer({"advice": found}, _ADVICE_SQL)


def read_comparison(target: str, asked: Mapping[str, str]) -> PageAnswer:
    """Return what changed by more than noise, from one time (of another recording, `against`, or of
    this one) to another."""
    before = _name_part(asked.get("against") or target, asked.get("pinFrom"), asked.get("pinTo"))
    after = _name_part(target, asked.get("from"), asked.get("to"))
    return PageAnswer(
        {"comparison": _ask_process("compare", before, after), "before": before, "after": after},
        [f"-- `sonde compare '{before}' '{after}'` says the same"],
    )


def _name_part(target: str, since: str | None, until: str | None) -> str:
    if since is None or until is None:
        return target
    return f"{target}@+{float(since) / 1e9:g}s..+{float(until) / 1e9:g}s"


def _ask_process(*words: str, niceness: int = 0) -> Any:
    too_late = f"there was no verdict after {_TIMEOUT_S:g} s"
    return json.loads(run_module(__name__, list(words), _TIMEOUT_S, too_late, niceness=niceness))


def make_advice(folders: Sequence[str], since: str | None, until: str | None) -> str:
    """Return the advice about sessions as JSON."""
    advice = advise(folders, since=since, until=until)
    whole = json.loads(advice.to_json())
    for made, finding in zip(whole["findings"], advice.findings, strict=True):
        made["place"] = shorten_file(finding.line, advice.folder)
        made["shown"] = [show_evidence(name, value) for name, value in finding.evidence.items()]
    for made, place in zip(whole["places"], advice.places, strict=True):
        made["place"] = place.show_place(advice.folder)
    return json.dumps(whole)


def make_comparison(before: str, after: str) -> str:
    """Return what changed as JSON: what counts, the largest first."""
    whole = json.loads(compare(before, after).to_json())
    rows = [*whole["changes"], *whole["code"]]
    order = ("worse", "better", "different")
    shown = sorted(
        (row for row in rows if row["verdict"] in order),
        key=lambda row: order.index(row["verdict"]),
    )
    return json.dumps({"verdict": whole["verdict"], "compared": len(rows), "rows": shown[:_MOST],
                       "missing": whole["missing"]})  # fmt: skip


def _print_verdict(kind: str, first: str, second: str, *folders: str) -> int:
    try:
        if kind == "compare":
            print(make_comparison(first, second))
        else:
            print(make_advice(folders, first or None, second or None))
    except Error as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_print_verdict(*sys.argv[1:]))
