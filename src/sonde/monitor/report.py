"""The report, made with SQL at the end: report.json, report.md, report.html and the pictures."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Iterator
from typing import IO, Any

from sonde.errors import Error
from sonde.monitor import chart_lines, findings, page, pictures, report_text, statistics
from sonde.monitor.folder import open_new
from sonde.monitor.watch import Measurement
from sonde.session import Session
from sonde.session.files import Replacement
from sonde.store.recording import Recording
from sonde.words import clean, show_moment

FORMAT = 1
Report = dict[str, Any]


def write(measured: Measurement, file: IO[str]) -> None:
    """Write all files of the report, and its summary for people to `file`."""
    session = Session(measured.session)
    with Recording([session]).freeze() as recording:
        numbers = statistics.compute(recording, measured.window, measured.gpus)
        drawn = chart_lines.read(recording, measured.window, measured.gpus)
        missing = list(_list_missing(recording, measured, numbers))
    report = _make(measured, session, numbers)
    report |= findings.advise(measured, session, numbers["readings"])
    report["missing"] = missing
    report["pictures"], hint = pictures.write(measured.folder, drawn)
    report["missing"] += [hint] if hint else []
    problems = _write_files(measured, report, drawn, findings.find_jobs(measured, session))
    for line in _describe_report(report, measured, problems):
        file.write(clean(line) + "\n")


def _write_files(
    measured: Measurement, report: Report, drawn: chart_lines.ChartLines, jobs: list[Session]
) -> list[str]:
    """Write each file on its own: a full disk may still have room for the small ones."""
    makers: dict[str, Callable[[], str]] = {
        "report.json": lambda: json.dumps(report, indent=1) + "\n",
        "report.md": lambda: report_text.write_markdown(report),
        "report.html": lambda: page.make(measured, report, drawn, jobs),
    }
    problems = []
    for name, make in makers.items():
        try:
            _write(os.path.join(measured.folder, name), make())
        except OSError as error:
            problems.append(f"{name} could not be written: {error.strerror}")
        except Error as error:
            problems.append(f"{name} could not be written: {error}")
    return problems


def _write(path: str, whole: str) -> None:
    """Write a file completely or not at all, with the permissions of the user's other files."""
    with Replacement(path) as hidden, open_new(hidden) as file:
        file.write(whole)


def _make(measured: Measurement, session: Session, numbers: Report) -> Report:
    window = measured.window
    offset_ns = session.wall_offset_ns
    begin, end = (show_moment(t_ns + offset_ns) for t_ns in (window.begin_ns, window.end_ns))
    what = clean(shlex.join(measured.command)) or window.scope.describe()
    about = [
        f"watched: {window.scope.describe()}",
        f"from {begin} to {end}: {window.seconds:.1f} s, {numbers['readings']} readings, one every "
        f"{window.every_ns / 1e9:g} s",
        f"it ended because {measured.reason}",
    ]
    about += [measured.began] if measured.began else []
    return {
        "format": FORMAT,
        "title": f"Hardware under {what} on {session.host}",
        "about": about,
        "host": session.host,
        "command": measured.command,
        "scope": window.scope.describe(),
        "pid": window.scope.pid,
        "begin": begin,
        "end": end,
        "duration_ns": window.end_ns - window.begin_ns,
        "every_ns": window.every_ns,
        "reason": measured.reason,
        "session": session.folder,
        "begin_t_ns": window.begin_ns,
        "end_t_ns": window.end_ns,
        "statistics": numbers,
    }


def _list_missing(recording: Recording, measured: Measurement, numbers: Report) -> Iterator[str]:
    """Yield what could not be measured, and where there are gaps."""
    if numbers["readings"]:
        yield from _list_unknown(measured, numbers)
    else:
        yield measured.began or "nothing was measured: the monitor ended before the second reading"
    yield from _list_troubles(recording)


def _list_unknown(measured: Measurement, numbers: Report) -> Iterator[str]:
    readings = numbers["readings"]
    if measured.gpus == []:
        yield "no GPU is known to have memory of what was watched; --gpus all takes all"
    elif not numbers["gpus"]:
        yield "no GPU was seen"
    spreads = {"CPU": numbers["cpu_pct"], "memory": numbers["memory_used_bytes"]}
    spreads |= {f"GPU {gpu['gpu']}": gpu["util_pct"] for gpu in numbers["gpus"]}
    # The reading after the command ended does not include it.
    empty = 1 if measured.command else 0
    for label, spread in spreads.items():
        if spread["readings"] + empty < readings:
            yield f"{label} is unknown in {readings - spread['readings']} of {readings} readings"
    for label, key in (("disk traffic", "read_bytes"), ("network traffic", "received_bytes")):
        if numbers[key]["volume_bytes"] is None:
            yield f"{label} is unknown"


def _list_troubles(recording: Recording) -> Iterator[str]:
    try:
        rows = recording.query(
            "SELECT source, state, detail FROM sonde.source "
            "WHERE state IN ('failed', 'unavailable') ORDER BY source"
        ).to_pylist()
        losses = recording.query(
            "SELECT table_name, overwritten + dropped AS lost FROM sonde.loss "
            "WHERE table_name LIKE 'system.%' AND overwritten + dropped > 0"
        ).to_pylist()
    except Error as error:
        yield str(error)
        return
    for row in rows:
        yield f"sensor {row['source']} is {row['state']}: {row['detail'] or 'no reason is known'}"
    for row in losses:
        yield f"{row['lost']} rows of {row['table_name']} were lost"


def _describe_report(report: Report, measured: Measurement, problems: list[str]) -> Iterator[str]:
    yield from report["about"]
    yield ""
    if report["statistics"]["readings"]:
        yield from report_text.say_statistics(report["statistics"])
        yield ""
    yield from report_text.say_findings(report)
    yield from report["patterns"]
    yield ""
    yield from (f"not measured: {line}" for line in report["missing"])
    yield from problems
    if not any(problem.startswith("report.html") for problem in problems):
        yield f"report: {os.path.join(measured.folder, 'report.html')}"
