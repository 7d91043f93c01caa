"""Findings: the votes of the pieces, how severe and how certain, as values and as JSON."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sonde.advice.verdict import LEVELS, Evidence, Number, Verdict, summarize
from sonde.analysis.code_names import shorten_file
from sonde.analysis.hot_places import HotPlace
from sonde.markup import PctBar, show_box, show_table
from sonde.words import clean, show_bytes, show_duration

# The words and shares of OpenPAI's profiler.
VOTES = ((0.8, "most"), (0.3, "several"), (0.0, "a little"))
_LEAST_PCT, _WARNING_PCT, _CRITICAL_PCT = 1.0, 10.0, 20.0  # of the time lost
_TO_WARN, _TO_BE_CRITICAL = 2, 20  # readings, or steps
_HIGH, _MEDIUM = 0.7, 0.35
_MOST_PARTS = 3  # findings of one rule that names several causes


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, or could be better."""

    rule: str
    title: str
    severity: str
    votes: str  # most, several or a little
    fired: int  # pieces in which it was seen
    judged: int  # pieces that had the data
    confidence: float  # 0 to 1: from the share of pieces, and from how many there are
    lost_pct: float | None  # estimated share of the time that could be gained
    since: str  # the first and the last piece in which it was seen
    until: str
    evidence: Evidence
    who: Sequence[str]
    line: str  # the line of code that ran most often in these pieces
    why: str
    todo: str

    @property
    def sureness(self) -> str:
        """Return the confidence as a word."""
        if self.confidence >= _HIGH:
            return "high"
        return "medium" if self.confidence >= _MEDIUM else "low"


@dataclass(frozen=True)
class Outcome:
    """What became of a rule: found, clear, a little, abstained or failed."""

    rule: str
    state: str
    detail: str
    fired: int = 0
    judged: int = 0


@dataclass(frozen=True)
class Advice:
    """All that was found in a recording, the worst first, and what was judged."""

    since: str
    until: str
    piece_s: float
    pieces: int
    warm_up_s: float  # left out at the start
    processes: Sequence[str]
    findings: Sequence[Finding] = ()
    outcomes: Sequence[Outcome] = field(default=())
    looked_at: int | None = None  # processes that were looked at one by one; None: all
    thinned: str = ""  # of a long recording: which part of it was looked at, in words
    places: Sequence[HotPlace] = field(default=())  # where the time went
    folder: str | None = None  # where the program began: short names of files start there
    endings: Sequence[str] = field(default=())  # of processes that did not end in order

    @property
    def worst(self) -> str | None:
        """Return the highest severity; None if nothing was found."""
        found = [finding.severity for finding in self.findings]
        return max(found, key=LEVELS.index) if found else None

    @property
    def costly(self) -> HotPlace | None:
        """Return the place with most of the time about which people do something, if any."""
        return next((one for one in self.places if one.is_costly), None)

    def describe_nothing(self) -> str:
        """Return that no rule found anything, in words that fit where the time went: whoever reads
        no further must know whether there is something to see."""
        if self.costly is None:
            return "nothing else is wrong" if self.endings else "nothing is wrong"
        found = "no rule found anything else" if self.endings else "no rule found anything"
        place = self.costly.show_place(self.folder)
        where = " ".join(filter(None, (self.costly.func, f"({place})" if place else "")))
        state = "is spent waiting" if self.costly.state == "waiting" else "is spent"
        return f"{found}, but {self.costly.share_pct:.0f} % of the time {state} in {where}"

    def __str__(self) -> str:
        """Return the findings as text: what is wrong, the evidence, the line, the next step."""
        looked = sum(outcome.state != "abstained" for outcome in self.outcomes)
        lines = [_capitalize(one) for one in self.endings]
        if not self.findings:
            lines.append(f"{_capitalize(self.describe_nothing())}: {looked} rules looked")
        for one in self.findings:
            told = ", ".join(show_evidence(name, value) for name, value in one.evidence.items())
            lines += [f"{one.severity.upper()}: {one.title}  [{one.rule}]", f"  {told}"]
            lines += [f"  {shorten_file(one.line, self.folder)}"] if one.line else []
            lines.append(f"  next: {one.todo}")
        lines += [
            f"{one.share_pct:4.0f} %  {one.state}  "
            + " ".join(filter(None, (one.func, one.show_place(self.folder), one.what)))
            + (f"; {one.facts}" if one.facts else "")
            for one in self.places
        ]
        return "\n".join(map(clean, lines))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Show the findings as text, for IPython in a terminal."""
        printer.text(type(self).__name__ if cycle else str(self))

    def _repr_html_(self) -> str:
        """Return the findings with evidence and next step, for notebooks."""
        looked = sum(outcome.state != "abstained" for outcome in self.outcomes)
        boxes = [
            show_box(
                f"{one.severity.upper()}: {one.title}",
                [", ".join(show_evidence(name, value) for name, value in one.evidence.items()),
                 *([shorten_file(one.line, self.folder)] if one.line else ()), f"Next: {one.todo}"],
                severity=one.severity,
            )
            for one in self.findings
        ]  # fmt: skip
        if not boxes:
            boxes = [show_box(f"{_capitalize(self.describe_nothing())}: {looked} rules looked", ())]
        boxes[:0] = [show_box(one, (), severity="warning") for one in self.endings]
        if self.places:
            rows = [(PctBar(one.share_pct), one.state, one.func,
                     one.show_place(self.folder), one.what)
                    for one in self.places]  # fmt: skip
            boxes.append(show_table(("share", "state", "function", "line", "call"), rows))
        return "".join(boxes)

    def to_json(self) -> str:
        """Return all of it as JSON."""
        whole = asdict(self)
        for name in ("piece", "warm_up"):
            whole[f"{name}_ns"] = round(whole.pop(f"{name}_s") * 1e9)
        for made, finding in zip(whole["findings"], self.findings, strict=True):
            made["sureness"] = finding.sureness
        for place in whole["places"]:
            del place["stacks"]  # numbers that mean nothing outside of the recording's tables
        return json.dumps(whole, indent=1)


def _capitalize(words: str) -> str:
    return words[:1].upper() + words[1:]


def name_votes(fired: int, judged: int) -> str:
    """Return most, several, a little or none, in the words of OpenPAI's profiler."""
    if fired == 0:
        return "none"
    return next(word for share, word in VOTES if fired / judged >= share)


@dataclass(frozen=True)
class Tally:
    """The verdicts of one rule, counted."""

    verdicts: Sequence[Verdict]
    danger: bool  # seeing it once is enough
    most: str = LEVELS[-1]  # the highest severity that what was measured can prove

    @property
    def judged(self) -> int:
        return len({verdict.piece for verdict in self.verdicts})

    @property
    def fired(self) -> list[int]:
        """Return the pieces in which it was seen."""
        return sorted({verdict.piece for verdict in self.yes})

    @property
    def yes(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.fired]

    @property
    def votes(self) -> str:
        return name_votes(len(self.fired), self.judged)

    @property
    def is_found(self) -> bool:
        """Is it worth reporting? What only a few pieces show is noise, and what costs less than a
        hundredth of the time nobody's trouble, unless it is a danger."""
        if self.danger:
            return self.votes != "none"
        costs = self.lost_pct is None or self.lost_pct >= _LEAST_PCT
        return costs and self.votes in ("most", "several")

    def split(self) -> list[Tally]:
        """Return the verdicts of each title by themselves, as far as these are worth reporting:
        causes that differ have lines, evidence and shares of their own; what can only be mentioned
        comes last. If none is alone, but all of them together, they stay so."""
        titles = Counter(verdict.title for verdict in self.yes)
        mere = {one.title for one in self.yes} - {
            one.title for one in self.yes if one.most != LEVELS[0]
        }
        parts = [
            replace(self, verdicts=[
                one if one.title == title else one._replace(fired=False) for one in self.verdicts
            ])
            for title in sorted(titles, key=lambda one: (one in mere, -titles[one]))[:_MOST_PARTS]
        ]  # fmt: skip
        return [part for part in parts if part.is_found] or [self]

    @property
    def is_by_others(self) -> bool:
        """Do other programs cause it, nearly always and on every host?"""
        others = [verdict for verdict in self.yes if not verdict.is_own]
        return name_votes(len(others), len(self.verdicts)) == "most"

    @property
    def lost_pct(self) -> float | None:
        """Return the share of the judged time that is lost; of several at once, the worst."""
        worst: dict[int, float] = {}
        for verdict in self.yes:
            if verdict.lost_pct is not None:
                lost_pct = min(100.0, verdict.lost_pct)  # a mean may be of another number of steps
                worst[verdict.piece] = max(lost_pct, worst.get(verdict.piece, 0.0))
        return sum(worst.values()) / self.judged if worst else None

    @property
    def severity(self) -> str:
        """Return the severity, by the time lost or as the rule says. Few readings prove little."""
        lost, named = self.lost_pct, [v.severity for v in self.yes if v.severity is not None]
        level = 0
        if lost is not None:
            level = (lost >= _WARNING_PCT) + (lost >= _CRITICAL_PCT)
        elif named:
            order = sorted(LEVELS.index(one) for one in named)
            level = order[-1] if self.danger else order[len(order) // 2]
        readings = sum(verdict.readings for verdict in self.verdicts)
        proven = (readings >= _TO_WARN) + (readings >= _TO_BE_CRITICAL)
        if len(self.fired) == 1 and self.votes == "several" and not self.danger:
            proven = 0  # one piece of two or three may be chance
        most = max((LEVELS.index(verdict.most) for verdict in self.yes), default=0)
        return LEVELS[min(level, proven, most, LEVELS.index(self.most))]

    @property
    def confidence(self) -> float:
        """Return the share of pieces, lower where there are few: one piece of one gives a third, or
        a half if it has many readings. A danger is a fact, however seldom it is seen."""
        if self.danger and self.fired:
            return 0.95
        readings = sum(verdict.readings for verdict in self.verdicts)
        is_rich = readings >= _TO_BE_CRITICAL * self.judged
        return len(self.fired) / (self.judged + (1 if is_rich else 2))

    @property
    def evidence(self) -> dict[str, Number | str | None]:
        found: dict[str, list[Number | str | None]] = {}
        for verdict in self.yes:
            for name, value in verdict.evidence.items():
                found.setdefault(name, []).append(value)
        return {name: _sum_up(name, values) for name, values in found.items()}

    @property
    def who(self) -> list[str]:
        """Return who showed it in several pieces or more, else who did most often."""
        seen = Counter(who for who, _ in {(v.who, v.piece) for v in self.verdicts if v.who})
        hit = Counter(who for who, _ in {(v.who, v.piece) for v in self.yes if v.who})
        often = [who for who in hit if hit[who] / seen[who] >= VOTES[1][0]]
        found = often or [who for who, _ in hit.most_common(1)]
        return sorted(found, key=lambda who: (len(who), who))

    @property
    def crowd(self) -> str:
        """Return the highest severity that it may have while others have the processors."""
        return max((verdict.crowd for verdict in self.yes), key=LEVELS.index, default=LEVELS[-1])

    @property
    def is_own(self) -> bool:
        """Whether a line of the job's own code may be named: see Verdict."""
        return all(verdict.is_own for verdict in self.yes)

    def pick(self, name: str) -> str:
        """Return the text that the verdicts gave most often."""
        texts = Counter(getattr(verdict, name) for verdict in self.yes)
        texts.pop("", None)
        return texts.most_common(1)[0][0] if texts else ""


def _sum_up(name: str, values: Sequence[Number | str | None]) -> Number | str | None:
    # JSON has no word for numbers that are not finite, and people have no use for them.
    numbers = [v for v in values if isinstance(v, (int, float)) and math.isfinite(v)]
    if numbers:
        return summarize(name, numbers)
    texts = Counter(value for value in values if isinstance(value, str))
    return texts.most_common(1)[0][0] if texts else None


_UNITS: Mapping[str, str] = {"pct": " %", "w": " W", "c": " °C", "mhz": " MHz"}
_SHOWN: Mapping[str, Callable[[float], str]] = {"bytes": show_bytes, "ns": show_duration}


def show_evidence(name: str, value: Number | str | None) -> str:
    """Return evidence for people: `util_pct` 43.2 is `util 43 %`; `what` is a sentence itself."""
    if name == "what" and isinstance(value, str):
        return value
    label, _, unit = name.rpartition("_")
    known = bool(label) and (unit in _UNITS or unit in _SHOWN)
    title = (label if known else name).replace("_", " ")
    if isinstance(value, str) or value is None:
        return f"{title} {'unknown' if value is None else value}"
    if known and unit in _SHOWN:
        return f"{title} {_SHOWN[unit](value)}"
    return f"{title} {_show_number(value)}{_UNITS[unit] if known else ''}"


def _show_number(value: Number) -> str:
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def put_causes_first(findings: list[Finding], behind: Mapping[str, Sequence[str]]) -> None:
    """Put what other rules found at the same line in front of a finding that is only its effect,
    however bad that is; `behind` has the rules of such causes by the rule of the effect."""
    for effect in list(findings):
        causes = [
            one for one in findings[findings.index(effect) :]
            if one.rule in behind.get(effect.rule, ()) and one.line and one.line == effect.line
        ]  # fmt: skip
        for cause in causes:
            findings.remove(cause)
            findings.insert(findings.index(effect), cause)


def doubt_in_crowd(tallies: list[tuple[Any, Tally]]) -> list[tuple[Any, Tally]]:
    """Where other programs have the processors nearly all of the time, on all hosts, how long
    something takes proves little: rules that say so (CROWD) are no more severe than that."""
    if not any(rule.name == "cpu_starved" and tally.is_by_others for rule, tally in tallies):
        return tallies
    return [
        (rule, replace(tally, most=getattr(rule.module, "CROWD", min(
            tally.most, tally.crowd, key=LEVELS.index))))
        for rule, tally in tallies
    ]  # fmt: skip


def doubt_effects(tallies: list[tuple[Any, Tally]]) -> list[tuple[Any, Tally]]:
    """Where a rule warns of what makes another one fire (BESIDE), that one is only mentioned: its
    cause cannot explain all of it, perhaps, but is what people should look at."""
    warned = {rule.name for rule, tally in tallies if LEVELS.index(tally.severity) > 0}
    return [
        (rule, replace(tally, most=LEVELS[0]))
        if warned.intersection(getattr(rule.module, "BESIDE", ()))
        else (rule, tally)
        for rule, tally in tallies
    ]
