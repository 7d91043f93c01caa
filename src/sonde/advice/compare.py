"""What differs between two recordings, by how much, and whether that is more than noise."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean, variance
from typing import NamedTuple

from sonde.advice import compare_awaits, compare_measures, compare_waits
from sonde.advice.compare_measures import Measure
from sonde.advice.compare_runs import did_other_work, find_runs
from sonde.advice.finding import Finding
from sonde.advice.judge import PIECE_S, judge_stretches, load_rules
from sonde.advice.period import Period, find_period
from sonde.analysis.code_names import shorten_file
from sonde.errors import Error
from sonde.store.held import HeldRecording
from sonde.store.recording import open_recording
from sonde.words import shorten_func

PIECES = 20  # that each period is cut into; their spread is the noise
FEWEST = 5  # pieces that must have a number for a verdict
SHORTEST_S = 1.0  # of a piece: the sensors take a reading once a second
_SURE = 1.96  # standard errors: 19 times in 20
_SURE_OF_MANY = 4.0  # of hundreds of functions, some differ by chance
_SMALL = 0.02  # of a step: functions and modules that take less are left out
STARVATION = compare_measures.STARVATION.name
WORSE, BETTER, SAME, UNCLEAR, OTHER = "worse", "better", "same", "unclear", "different"


class Side(NamedTuple):
    """One of the two sides: its target, and the period that counts."""

    target: str
    start_ns: int
    end_ns: int
    pieces: int


@dataclass(frozen=True)
class Change:
    """One number of both sides."""

    name: str
    unit: str
    before: float
    after: float
    low: float  # the change is hardly less than this (95 %), in the unit
    high: float
    verdict: str  # worse, better, different, same, or unclear: noise is larger than what counts
    much: bool

    @property
    def change(self) -> float:
        return self.after - self.before

    @property
    def change_pct(self) -> float | None:
        return 100 * self.change / self.before if self.before else None


@dataclass(frozen=True)
class Comparison:
    """Everything that was compared between two recordings."""

    before: Side
    after: Side
    changes: Sequence[Change]  # the step, its parts, the machine
    code: Sequence[Change]  # functions and modules
    appeared: Sequence[Finding]  # advice that only the second gets
    vanished: Sequence[Finding]
    missing: Sequence[str]  # what could not be compared, and why
    # By name of what became worse in the code: the process of the second that is in it, if one of
    # several is nearly alone.
    alone: Mapping[str, int] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """Return the overall verdict: that of the step or the run if there is one, else the
        worst."""
        names = compare_measures.STEP.name, compare_measures.RUN.name
        steps = [change for change in self.changes if change.name in names]
        if steps and steps[0].verdict == OTHER:  # the runs did not do the same work
            judged = self._find_work(compare_measures.REQUESTS, compare_measures.SPANS)
        else:
            judged = steps or self.requests
        judged = judged or [c for c in self.changes if c.verdict in (WORSE, BETTER)]
        words = [change.verdict for change in judged]
        return next((word for word in (WORSE, BETTER, UNCLEAR) if word in words), SAME)

    @property
    def requests(self) -> list[Change]:
        """The routes and tasks whose time changed by more than noise, the most first."""
        return self._find_work(compare_measures.REQUESTS)

    def _find_work(self, *measures: Measure) -> list[Change]:
        units = [measure.unit for measure in measures]
        return [c for c in self.code if c.unit in units and c.verdict in (WORSE, BETTER)]

    @property
    def is_worse(self) -> bool:
        return any(change.verdict == WORSE for change in self.changes)

    @property
    def is_much_worse(self) -> bool:
        return any(change.verdict == WORSE and change.much for change in self.changes)

    def to_json(self) -> str:
        """Return all of it as JSON."""
        whole = {**asdict(self), "before": self.before._asdict(), "after": self.after._asdict()}
        return json.dumps({"verdict": self.verdict, **whole}, indent=2, allow_nan=False)


def compare(before: str, after: str, *, keeps_memory: bool = False) -> Comparison:
    """Compare two targets; each may end in `@SINCE..UNTIL`, a window of it. `keeps_memory` is for a
    process that ends then: it is a tenth faster."""
    rules = load_rules()
    found = []
    for words in (before, after):
        target, since, until = split_target(words)
        recording = HeldRecording(open_recording(target).sessions, keeps_memory=keeps_memory)
        found.append((words, recording, _cut(words, recording, since, until)))
    try:
        advice = [
            judge_stretches(recording, rules, cut.cut(PIECE_S)) for _, recording, cut in found
        ]
        sides_read = [(recording, cut) for _, recording, cut in found]
        has_window = any(any(split_target(words)[1:]) for words in (before, after))
        owners: compare_waits.Owners = {}
        runs_s = None if has_window else find_runs(sides_read)
        rows, missing = read_changes(sides_read, runs_s, owners)
        rows = _doubt_gains(rows)
        code = order_code([(row, measure) for row, measure in rows if measure.is_keyed])
        sides = [Side(words, cut.start_ns, cut.end_ns, cut.count) for words, _, cut in found]
    finally:
        for _, recording, _ in found:
            recording.close()
    alone = compare_waits.find_alone(owners, len(found[1][1].sessions))
    first, second = ({f.rule: f for f in one.findings} for one in advice)
    return Comparison(
        sides[0],
        sides[1],
        [row for row, measure in rows if not measure.is_keyed],
        code,
        [finding for rule, finding in second.items() if rule not in first],
        [finding for rule, finding in first.items() if rule not in second],
        missing,
        {row.name: alone[row.name] for row in code if row.verdict == WORSE and row.name in alone},
    )


def order_code(rows: Sequence[tuple[Change, Measure]]) -> list[Change]:
    """Return what changed in the code, the most first; a kind of wait after its main function."""
    waits = [change for change, measure in rows if measure.name == compare_waits.WAITING_IN.name]

    def rank(row: tuple[Change, Measure]) -> tuple[float, bool]:
        change, measure = row
        size, is_sum = abs(change.change), measure.name == compare_waits.WAITING_FOR.name
        parts = [abs(one.change) for one in waits if is_sum and one.change * change.change > 0]
        return -max((part for part in parts if size / 2 <= part <= size), default=size), is_sum

    return [change for change, _measure in sorted(rows, key=rank)]


def split_target(words: str) -> tuple[str, str | None, str | None]:
    """Split `TARGET@SINCE..UNTIL`; either end may be left out."""
    target, at, window = words.rpartition("@")
    if not at or ".." not in window:
        return words, None, None
    since, _, until = window.partition("..")
    return target, since or None, until or None


def _cut(name: str, recording: HeldRecording, since: str | None, until: str | None) -> Period:
    """Return the period of a recording, cut into about PIECES pieces."""
    whole = find_period(recording, since, until, SHORTEST_S)
    if whole.count < FEWEST:
        raise Error(
            f"{name}: {whole.count} s without warm-up is too short; it takes at least {FEWEST} s"
        )
    return whole.cut(max(SHORTEST_S, whole.count * SHORTEST_S / PIECES))


def _list_all() -> Iterator[Measure]:
    yield from (compare_measures.STEP, *compare_measures.PARTS, *compare_measures.MACHINE)
    yield from compare_waits.MEASURES
    yield from (
        compare_measures.FUNCTIONS_OF_STEPS,
        compare_measures.FUNCTIONS,
        compare_measures.MODULES,
        compare_measures.REQUESTS,
        compare_measures.SPANS,
    )


# ---- numbers -------------------------------------------------------------------------------------

Pieces = dict[str, list[float]]  # by key


def read_changes(
    sides: Sequence[tuple[HeldRecording, Period]], runs_s: Sequence[float] | None = None,
    owners: compare_waits.Owners | None = None,
) -> tuple[list[tuple[Change, Measure]], list[str]]:  # fmt: skip
    """Return the change of every measure that both sides have, and what is missing. `runs_s` has
    the seconds of both if they are whole runs; `owners` learns which processes of the second
    waited where."""
    found, missing = list[tuple[Change, Measure]](), list[str]()
    step_ms: float | None = None
    requests = compare_measures.REQUESTS
    known = [{**compare_waits.read_waits(recording, cut, learns),
              requests.name: _read(recording, cut, requests)}
             for (recording, cut), learns in zip(sides, (None, owners), strict=True)]  # fmt: skip
    if not _find_lack(requests, [one[requests.name] for one in known]):
        runs_s = None  # who answers requests is compared by them: it runs for as long as it is let
    other_work = runs_s is not None and did_other_work(sides, runs_s)
    for measure in _list_all():
        # By steps where both have them.
        if measure is (
            compare_measures.FUNCTIONS if step_ms else compare_measures.FUNCTIONS_OF_STEPS
        ):
            continue
        numbers = [one[measure.name] if measure.name in one else _read(recording, cut, measure)
                   for one, (recording, cut) in zip(known, sides, strict=True)]  # fmt: skip
        why = _find_lack(measure, numbers)
        if why:
            missing.append(f"{measure.name}: {why}")
            continue
        counts = [cut.count for _, cut in sides]
        is_work = measure.unit in compare_measures.SHARES and measure.name != STARVATION
        by_run = runs_s if is_work and step_ms is None and not other_work else None
        found += _weigh_all(measure, numbers, counts, step_ms, by_run)
        if measure is compare_measures.STEP:
            step_ms = max(row.before for row, _ in found)
    found += _weigh_awaits(sides)
    if runs_s is not None and step_ms is None:
        run = _weigh_runs(*runs_s)
        run = replace(run, verdict=OTHER) if other_work and run.verdict != SAME else run
        found.insert(0, (run, compare_measures.RUN))
    return found, missing


def _weigh_all(
    measure: Measure, numbers: list[Pieces], counts: Sequence[int], step_ms: float | None,
    runs_s: Sequence[float] | None,
) -> Iterator[tuple[Change, Measure]]:  # fmt: skip
    """Yield the change of a measure, for each key that is worth it."""
    scales = [1.0, 1.0]
    if runs_s is not None:
        scales = [run_s / 100 for run_s in runs_s]
        measure = measure.count_by_run(min(runs_s))
    if measure.is_keyed:
        numbers = [numbers[0], match_keys(*numbers)]
    by_step = measure.unit == compare_measures.A_STEP and measure.is_keyed
    least = _SMALL * step_ms if by_step and step_ms else measure.least
    for key in sorted({*numbers[0], *numbers[1]}):
        values = [[scale * value for value in _fill(side.get(key, []), count, measure)]
                  for side, count, scale in zip(numbers, counts, scales, strict=True)]  # fmt: skip
        if all(values) and max(map(fmean, values)) >= least:
            yield weigh(measure, key, values[0], values[1], step_ms), measure


def _weigh_awaits(
    sides: Sequence[tuple[HeldRecording, Period]],
) -> Iterator[tuple[Change, Measure]]:
    """Yield the change of what asyncio's tasks await."""
    measure = compare_awaits.AWAITS
    if any(recording.find_empty([compare_awaits.TABLE]) for recording, _ in sides):
        return
    numbers = [compare_awaits.read_all(recording, cut) for recording, cut in sides]
    for name, old, new, low, high in compare_awaits.compare_awaits(numbers, _SURE_OF_MANY):
        yield _make_change(measure, name, (old, new), (low, high), None), measure


def _doubt_gains(rows: Sequence[tuple[Change, Measure]]) -> list[tuple[Change, Measure]]:
    """Return the changes without gains that are none: a program that runs for a given time, and
    that waits longer, or its tasks do, takes less of everything because it does less."""
    worse = [(c, measure) for c, measure in rows if c.verdict == WORSE]
    is_late = any(m is compare_awaits.AWAITS or (c.much and m.name == "waiting") for c, m in worse)
    is_given = any(c.verdict == SAME for c, measure in rows if measure is compare_measures.RUN)
    if not (is_late and is_given):
        return [*rows]
    return [
        (replace(c, verdict=OTHER), measure)
        if c.verdict == BETTER and c.unit == compare_measures.A_RUN
        else (c, measure)
        for c, measure in rows
    ]


def _weigh_runs(before: float, after: float) -> Change:
    """Return the change of the whole run. There is one of each: nothing is known of the noise."""
    change, measure = after - before, compare_measures.RUN
    limit, much = measure.find_limits(before, None)
    verdict = _judge(measure, change) if abs(change) >= limit else SAME
    return Change(measure.name, measure.unit, before, after, change, change, verdict,
                  abs(change) >= much)  # fmt: skip


_KEY = re.compile(r"(?P<func>.*) \((?:.*/)?(?P<file>[^/]*)\)(?P<rest>.*)")


def match_keys(before: Pieces, after: Pieces) -> Pieces:
    """Return the second side with the names of the first where they are about one function in two
    places: the same file in two checkouts."""
    olds, news = dict[tuple[str, ...], list[str]](), dict[tuple[str, ...], list[str]]()
    for sums, keys in ((olds, before.keys() - after.keys()), (news, after.keys() - before.keys())):
        for key in keys:
            if (parts := _KEY.fullmatch(key)) is not None:
                sums.setdefault(parts.groups(), []).append(key)
    names = {
        news[parts][0]: olds[parts][0]
        for parts in news.keys() & olds.keys()
        if len(news[parts]) == len(olds[parts]) == 1
    }
    return {names.get(key, key): values for key, values in after.items()}


_TABLE = re.compile(r"\b(?:python|system|event)\.\w+")


def _read(recording: HeldRecording, cut: Period, measure: Measure) -> Pieces:
    found: Pieces = {}
    if recording.find_empty(_TABLE.findall(measure.sql)):
        return found  # without asking: every table that a measure names is joined with the others
    folder, sums = recording.sessions[0].meta.cwd, dict[str, dict[int, float]]()
    for row in recording.query(measure.sql.format(**cut.words)).to_pylist():
        if row["value"] is None or not 0 <= row["piece"] < cut.count:
            continue
        key = shorten_func(str(row.get("key", "")))
        if row.get("file"):
            key += f" ({shorten_file(row['file'], folder)})"
        pieces = sums.setdefault(key, {})  # two files may have the same short name
        pieces[row["piece"]] = pieces.get(row["piece"], 0.0) + float(row["value"])
    return {key: list(pieces.values()) for key, pieces in sums.items()}


def _fill(values: list[float], count: int, measure: Measure) -> list[float]:
    if measure.has_zeros:
        return values + [0.0] * (count - len(values))
    return values if len(values) >= FEWEST else []


def _find_lack(measure: Measure, numbers: Sequence[Pieces]) -> str:
    """Return why a measure cannot be compared. Without rows on one side, a single number is zero if
    the other side has it, and so is waiting; functions without rows were not sampled."""
    is_zero = measure.has_zeros and (not measure.is_keyed or measure in compare_waits.MEASURES)
    if is_zero and any(numbers):
        return ""
    for word, side in zip(("first", "second"), numbers, strict=True):
        if not side:
            return f"the {word} has none"
        if not measure.has_zeros and max(map(len, side.values())) < FEWEST:
            return f"the {word} has too little"
    return ""


def weigh(
    measure: Measure,
    key: str,
    before: Sequence[float],
    after: Sequence[float],
    step_ms: float | None = None,
) -> Change:
    """Return a change, and whether it is larger than the differences between the pieces."""
    old, new = fmean(before), fmean(after)
    spread = find_spread(before, after, _SURE_OF_MANY if measure.is_keyed else _SURE)
    return _make_change(measure, key, (old, new), (new - old - spread, new - old + spread), step_ms)


def _make_change(
    measure: Measure, key: str, values: tuple[float, float], ends: tuple[float, float],
    step_ms: float | None,
) -> Change:  # fmt: skip
    (old, new), (low, high) = values, ends
    limit, much = measure.find_limits(old, step_ms)
    if low > 0 or high < 0:
        verdict = _judge(measure, new - old) if abs(new - old) >= limit else SAME
    else:
        verdict = SAME if max(-low, high) <= limit else UNCLEAR
    return Change(
        key or measure.name, measure.unit, old, new, low, high, verdict, abs(new - old) >= much
    )


def _judge(measure: Measure, change: float) -> str:
    if measure.better == compare_measures.NEITHER:
        return OTHER
    return WORSE if (change > 0) == (measure.better == compare_measures.LESS) else BETTER


def find_spread(before: Sequence[float], after: Sequence[float], sure: float) -> float:
    """Return by how much the change of the mean may be off; more so with few pieces."""
    freedom = len(before) + len(after) - 2
    error = math.sqrt(sum(variance(side) / len(side) for side in (before, after)))
    return (sure + 2.5 / freedom) * error  # near enough to Student's
