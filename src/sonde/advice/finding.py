"""Findings: votes over windows, how bad it is and how sure, as values and as JSON."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from sonde.advice.verdict import LEVELS, Evidence, Number, Verdict, summarize
from sonde.words import show_bytes

# The words and shares of OpenPAI's profiler.
VOTES = ((0.8, "most"), (0.3, "several"), (0.0, "a little"))
_WARNING_PCT, _CRITICAL_PCT = 10.0, 20.0  # of the time lost
_TO_WARN, _TO_BE_CRITICAL = 2, 20  # looks, or steps
_HIGH, _MEDIUM = 0.7, 0.35


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, or could be better."""

    rule: str
    title: str
    severity: str
    votes: str  # most, several or a little
    fired: int  # windows in which it was seen
    judged: int  # windows that had the data
    confidence: float  # 0 to 1: from the share of windows, and from how many there are
    lost_pct: float | None  # estimated share of the time that could be won
    since: str  # the first and the last window in which it was seen
    until: str
    evidence: Evidence
    who: Sequence[str]
    line: str  # the line of code that ran most often in these windows
    why: str
    todo: str

    @property
    def sureness(self) -> str:
        """The confidence as a word."""
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
    """All that was found in a recording, the worst first, and what was looked at."""

    since: str
    until: str
    window_s: float
    windows: int
    warm_up_s: float  # left out at the start
    processes: Sequence[str]
    findings: Sequence[Finding] = ()
    outcomes: Sequence[Outcome] = field(default=())

    @property
    def worst(self) -> str | None:
        """The highest severity; None if all is well."""
        found = [finding.severity for finding in self.findings]
        return max(found, key=LEVELS.index) if found else None

    def to_json(self) -> str:
        """All of it, for programs."""
        whole = asdict(self)
        for made, finding in zip(whole["findings"], self.findings, strict=True):
            made["sureness"] = finding.sureness
        return json.dumps(whole, indent=1)


def name_votes(fired: int, judged: int) -> str:
    """Most, several, a little or none, as OpenPAI's profiler says it."""
    if fired == 0:
        return "none"
    return next(word for share, word in VOTES if fired / judged >= share)


@dataclass(frozen=True)
class Tally:
    """The verdicts of one rule, counted."""

    verdicts: Sequence[Verdict]
    danger: bool  # seen once is enough

    @property
    def judged(self) -> int:
        return len({verdict.window for verdict in self.verdicts})

    @property
    def fired(self) -> list[int]:
        """The windows in which it was seen."""
        return sorted({verdict.window for verdict in self.yes})

    @property
    def yes(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.fired]

    @property
    def votes(self) -> str:
        return name_votes(len(self.fired), self.judged)

    @property
    def is_found(self) -> bool:
        """Is it worth telling? What was seen in a few windows only is noise, or a danger."""
        return self.votes in ("most", "several") or (self.danger and self.votes != "none")

    @property
    def lost_pct(self) -> float | None:
        """The share of the time judged; of several at once, the worst counts."""
        worst: dict[int, float] = {}
        for verdict in self.yes:
            if verdict.lost_pct is not None:
                worst[verdict.window] = max(verdict.lost_pct, worst.get(verdict.window, 0.0))
        return sum(worst.values()) / self.judged if worst else None

    @property
    def severity(self) -> str:
        """From the time lost; else as the rule says. Few looks prove little."""
        lost, named = self.lost_pct, [v.severity for v in self.yes if v.severity is not None]
        level = 0
        if lost is not None:
            level = (lost >= _WARNING_PCT) + (lost >= _CRITICAL_PCT)
        elif named:
            order = sorted(LEVELS.index(one) for one in named)
            level = order[-1] if self.danger else order[len(order) // 2]
        looks = sum(verdict.looks for verdict in self.verdicts)
        return LEVELS[min(level, (looks >= _TO_WARN) + (looks >= _TO_BE_CRITICAL))]

    @property
    def confidence(self) -> float:
        """The share of windows, less where there are few: one window of one is a third."""
        return len(self.fired) / (self.judged + 2)

    @property
    def evidence(self) -> dict[str, Number | str | None]:
        found: dict[str, list[Number | str | None]] = {}
        for verdict in self.yes:
            for name, value in verdict.evidence.items():
                found.setdefault(name, []).append(value)
        return {name: _sum_up(name, values) for name, values in found.items()}

    @property
    def who(self) -> list[str]:
        """Those in whom it was seen in several windows at least; else in whom most often."""
        seen = Counter(verdict.who for verdict in self.verdicts if verdict.who)
        hit = Counter(verdict.who for verdict in self.yes if verdict.who)
        often = [who for who in hit if hit[who] / seen[who] >= VOTES[1][0]]
        return sorted(often or [who for who, _ in hit.most_common(1)], key=lambda w: (len(w), w))

    def pick(self, name: str) -> str:
        """The word of the verdicts that was said most often."""
        said = Counter(getattr(verdict, name) for verdict in self.yes)
        said.pop("", None)
        return said.most_common(1)[0][0] if said else ""


def _sum_up(name: str, values: Sequence[Number | str | None]) -> Number | str | None:
    # JSON has no word for what is not finite, and a person no use.
    numbers = [v for v in values if isinstance(v, (int, float)) and math.isfinite(v)]
    if numbers:
        return summarize(name, numbers)
    texts = Counter(value for value in values if isinstance(value, str))
    return texts.most_common(1)[0][0] if texts else None


_UNITS: Mapping[str, str] = {"pct": " %", "s": " s", "w": " W", "c": " °C", "mhz": " MHz"}


def show_evidence(name: str, value: Number | str | None) -> str:
    """`util_pct` 43.2 is `util 43 %`."""
    label, _, unit = name.rpartition("_")
    known = bool(label) and (unit in _UNITS or unit == "bytes")
    said = (label if known else name).replace("_", " ")
    if isinstance(value, str) or value is None:
        return f"{said} {'unknown' if value is None else value}"
    if known and unit == "bytes":
        return f"{said} {show_bytes(value)}"
    return f"{said} {_show_number(value)}{_UNITS[unit] if known else ''}"


def _show_number(value: Number) -> str:
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"
