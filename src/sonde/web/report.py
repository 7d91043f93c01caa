"""report.html: the page with its data inside, as one file to mail."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa

from sonde.errors import Error
from sonde.web.answer import PageAnswer
from sonde.web.assets import make_single
from sonde.web.opened import Opened
from sonde.web.questions import QUESTIONS, list_longer
from sonde.words import show_bytes, show_duration

MOST_BYTES = 10_000_000
_OVER_TIME = ("steps", "machine", "marks", "events")
_ONCE = ("modules", "advice", "now", "cost", "profiles")


def make_report(
    opened: Opened, most_bytes: int = MOST_BYTES, given: Mapping[str, PageAnswer] | None = None
) -> tuple[str, str]:
    """Return the page, and what was thinned. No time is left out; what gets coarser, if the file
    would be larger than `most_bytes`, are the pieces that a brush can tell apart. Answers that are
    `given` take the place of ours."""
    until, given = opened.find_end(), given or {}
    once = {name: _ask(opened, name, {"to": str(until)}) for name in _ONCE if name not in given}
    stacks = _ask(opened, "stacks", {"to": str(until)})
    first = stacks.data["width"]
    for width in [first, *list_longer(first, until)]:
        asked = {"to": str(until), "width": str(width)}
        if width != first:
            stacks = _ask(opened, "stacks", asked)
        answers = {**once, "stacks": stacks,
                   **{name: _ask(opened, name, asked) for name in _OVER_TIME if name not in given},
                   **given}  # fmt: skip
        about = _ask(opened, "about", {})
        thinned = (
            f"one file, in pieces of {show_duration(width)}; rows and SQL are in the recording"
        )
        said = {"live": False, "thinned": thinned}
        answers["about"] = replace(about, data={**about.data, **said})
        page = make_single(zlib.compress(join_answers(answers), 9))
        if len(page) <= most_bytes:
            return page, thinned
    raise Error(
        f"the report is larger than {show_bytes(most_bytes)} even in pieces of "
        f"{show_duration(width)}; take less time (--since, --until) or fewer processes"
    )


def _ask(opened: Opened, name: str, asked: Mapping[str, str]) -> PageAnswer:
    """Return an answer as it goes into the file: of times, what a person can see. Without a verdict
    the file says why there is none."""
    try:
        answer = QUESTIONS[name](opened, asked)
    except Error as error:
        if name != "advice":
            raise
        return PageAnswer({"advice": None, "problem": str(error)})
    if name != "stacks":
        return answer
    columns = {
        name: _round(column) if pa.types.is_floating(column.type) else column
        for name, column in answer.columns.items()
    }
    return replace(answer, columns=columns)


def _round(column: pa.Array) -> pa.Array:
    """Return nanoseconds as whole microseconds: the digits after that do not compress."""
    return pa.array([round(ns, -3) for ns in column.to_pylist()], column.type)


def join_answers(answers: Mapping[str, PageAnswer]) -> bytes:
    """Return answers one after the other, behind a list of their names, kinds and lengths."""
    bodies = {name: answer.pack() for name, answer in answers.items()}
    head = [[name, answers[name].kind, len(body)] for name, body in bodies.items()]
    text = json.dumps(head).encode()
    return b"".join([len(text).to_bytes(4, "little"), text, *bodies.values()])
