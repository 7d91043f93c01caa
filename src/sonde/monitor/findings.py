"""What the advice rules say about the measured time."""

from __future__ import annotations

import json
import math
from typing import Any

from sonde import environ
from sonde.advice import judge
from sonde.advice.finding import name_votes
from sonde.advice.period import Period, find_job_gpus, find_warm_up
from sonde.errors import Error
from sonde.monitor import report_text
from sonde.monitor.watch import Measurement
from sonde.session import Session, list_sessions
from sonde.store.held import HeldRecording
from sonde.store.recording import Recording

# The four patterns of OpenPAI's profiler by rule; `compat` makes a rule judge as the original did.
PATTERNS = {
    "gpu_memory_uneven": "There is mal-distribution of the GPU memory between the multiple GPUs.",
    "gpu_free": "Both the GPU and GPU memory have free resource.",
    "gpu_memory_full": "GPU memory is full, but the GPU utilization has free resource.",
    "alternating": "IO, CPU and GPU raise alternately.",
}


def advise(measured: Measurement, session: Session, readings: int) -> dict[str, Any]:
    """Return the parts `advice` and `patterns` of a report."""
    if not readings:
        nothing = "nothing can be said: there was not enough time to measure"
        return {"advice": {"findings": [], "outcomes": [], "summary": nothing}, "patterns": []}
    try:
        return _judge(measured, session)
    except Error as error:  # the recording of the job cannot be read; the measured numbers can
        reason = f"nothing can be said: {error}"
        return {"advice": {"findings": [], "outcomes": [], "summary": reason}, "patterns": []}


def _judge(measured: Measurement, session: Session) -> dict[str, Any]:
    rules = judge.load_rules()
    with HeldRecording([session, *find_jobs(measured, session)]) as recording:
        period = _find_period(measured, recording)
        advice = judge.judge(recording, rules, period)
        patterns = _vote(recording, period)
    made = json.loads(advice.to_json())
    judged = sum(1 for outcome in advice.outcomes if outcome.judged)
    if judged:
        made["summary"] = f"nothing is wrong, as far as {judged} rules can see"
    else:
        made["summary"] = "nothing can be said: no rule has the data it needs"
    return {"advice": made, "patterns": patterns}


def _vote(recording: HeldRecording, period: Period) -> list[str]:
    """Return the original's sentences for the patterns that could be judged."""
    rules = judge.load_rules(list(PATTERNS), {f"{rule}.compat": 1 for rule in PATTERNS})
    return [
        report_text.say_pattern(PATTERNS[one.rule], name_votes(one.fired, one.judged))
        for one in judge.judge(recording, rules, period).outcomes
        if one.judged
    ]


def _find_period(measured: Measurement, recording: Recording) -> Period:
    """The time that was measured, without the job's first steps unless its start is out of it
    already."""
    start_ns = measured.window.begin_ns + recording.sessions[0].wall_offset_ns
    length_ns = round(measured.window.seconds * 1e9)
    warm_up_ns = 0
    if not measured.began:
        warm_up_ns = find_warm_up(recording, start_ns, start_ns + length_ns)
    # What is left at the end is a piece if most of one; a short time is one piece.
    count = max(1, math.floor((length_ns - warm_up_ns) / 1e9 / measured.piece_s + 0.5))
    gpus = measured.gpus
    if gpus is None:
        chosen = find_job_gpus(recording)
    else:
        chosen = f"(gpu IN ({', '.join(map(str, gpus)) or 'NULL'}))"
    return Period(start_ns + warm_up_ns, measured.piece_s, count, warm_up_ns / 1e9, chosen)


def find_jobs(measured: Measurement, session: Session) -> list[Session]:
    """Return the recordings of the watched processes from the same time."""
    scope, below = measured.window.scope, _find_processes(measured, session)
    begin_ns, end_ns = (
        t_ns + session.wall_offset_ns for t_ns in (measured.window.begin_ns, measured.window.end_ns)
    )
    return [
        one
        for one in list_sessions(environ.find_root())
        if one.is_here()
        and not one.is_monitor
        and (not scope.is_tree or one.pid in below)
        and one.start_wall_ns < end_ns
        and _find_end(one) > begin_ns
    ]


def _find_end(session: Session) -> int:
    """Return when a session ended, by the wall clock; far in the future if it has not."""
    try:
        sealed = session.read_sealed()
    except Error:
        return 0  # damaged: it cannot be queried
    return 2**63 if sealed is None else sealed.end_wall_ns


def _find_processes(measured: Measurement, session: Session) -> set[int]:
    window = measured.window
    rows = Recording([session]).query(
        "SELECT DISTINCT process FROM system.process "
        f"WHERE t_ns > {window.begin_ns} AND depth >= {window.scope.depth}"
    )
    return set(rows["process"].to_pylist())
