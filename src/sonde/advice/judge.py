"""Advice: every rule of advice/rules/ judges the recording piece by piece; the pieces vote."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from sonde import environ, plugins, settings
from sonde.advice.code_lines import find_lines
from sonde.advice.finding import (
    Advice,
    Finding,
    Outcome,
    Tally,
    doubt_effects,
    doubt_in_crowd,
    put_causes_first,
)
from sonde.advice.known_rows import KnownRows, find_missing, split_need
from sonde.advice.period import Period, find_period
from sonde.advice.places import find_places
from sonde.advice.rules._code import PLACE, SUMS
from sonde.advice.stretches import THINNED, choose_stretches, list_ends
from sonde.advice.verdict import LEVELS, Limit, Limits, Verdict
from sonde.config_file import FileSettings
from sonde.errors import ConfigError
from sonde.session import Session
from sonde.session.ending import describe_ends, wait_for_statuses
from sonde.store.held import HeldRecording
from sonde.store.recording import open_recording
from sonde.words import show_moment

PIECE_S = 10.0
MOST_PROCESSES = 32  # that are looked at one by one


@dataclass(frozen=True)
class Rule:
    """One file of advice/rules/, with the limits in force."""

    name: str
    module: ModuleType
    limits: Limits

    @property
    def title(self) -> str:
        """Return the docstring's first line."""
        return (self.module.__doc__ or "").partition("\n")[0].strip().rstrip(".")

    def read_paragraph(self, begin: str) -> str:
        """Return the paragraph of the docstring that begins with these words, without them."""
        for paragraph in (self.module.__doc__ or "").split("\n\n"):
            text = " ".join(paragraph.split())
            if text.startswith(begin):
                return text.removeprefix(begin).lstrip(": ").strip()
        return ""

    @property
    def needs(self) -> Sequence[str]:
        """Return the tables and columns without which it abstains."""
        found: Sequence[str] = getattr(self.module, "NEEDS", ())
        return found

    @property
    def is_wide(self) -> bool:
        """Whether it looks at every process of a job, however many: it compares them, or is about
        their machines."""
        about_machines = bool(self.needs) and all(need.startswith("system.") for need in self.needs)
        return about_machines or getattr(self.module, "COMPARES", False)

    @property
    def span(self) -> str:
        """Which part of a long period it looks at: see Period.find_words."""
        if getattr(self.module, "AT_ONCE", False):  # it cannot do with gaps
            return "late"
        return "some" if any(table in self.module.SQL for table in THINNED) else "whole"

    @property
    def condition(self) -> tuple[str, str] | None:
        """Return a table, and what must be true of its rows if the rule is to fire, as SQL."""
        found: tuple[str, str] | None = getattr(self.module, "ONLY_IF", None)
        return None if found is None else (found[0], found[1].format(**self.limits))

    def split(self, tally: Tally) -> list[Tally]:
        """Return what becomes a finding each."""
        return tally.split() if getattr(self.module, "APART", False) else [tally]

    def find_line(self, tally: Tally) -> str:
        """Return which line of code to name: busy, waiting, any, or none."""
        return getattr(self.module, "LINE", "") if tally.is_own else ""

    @property
    def why(self) -> str:
        return self.read_paragraph("Why it hurts")

    @property
    def todo(self) -> str:
        return self.read_paragraph("What to do")


def load_rules(
    names: Sequence[str] | None = None, limits: Mapping[str, object] | None = None
) -> list[Rule]:
    """Return the rules of these names, or all; `limits` maps `rule.limit` to a value."""
    known = plugins.list_names("advice.rules")
    for name in [*(names or ()), *(key.partition(".")[0] for key in limits or ())]:
        if name not in known:
            raise ConfigError(f"there is no rule {name}; known: {', '.join(known)}")
    rules = []
    in_files = environ.find_file_settings()[0]
    for name in names or known:
        module = plugins.load("advice.rules", name)
        rules.append(Rule(name, module, _read_limits(name, module, limits or {}, in_files)))
    return rules


def _read_limits(
    rule: str, module: ModuleType, given: Mapping[str, object], in_files: FileSettings
) -> Limits:
    """Return the limits of a rule: defaults, then those of files (advice.RULE.LIMIT), then the
    environment (SONDE_ADVICE_RULE_LIMIT), then what was given."""
    known: dict[str, Limit] = module.LIMITS
    mine = {key.partition(".")[2]: value for key, value in given.items()
            if key.partition(".")[0] == rule}  # fmt: skip
    for name in mine:
        if name not in known:
            raise ConfigError(f"{rule} has no limit {name}; known: {', '.join(known) or 'none'}")
    found = Limits()
    for name, limit in known.items():
        key = settings.Key(f"advice.{rule}.{name}", settings.parse_number, limit.default,
                           limit.help, low=float("-inf"))  # fmt: skip
        found[name] = float(environ.read_tool_setting(key, mine.get(name), in_files))
    return found


def advise(
    target: int | str | Sequence[int | str],
    *,
    since: str | None = None,
    until: str | None = None,
    piece_s: float = PIECE_S,
    rules: Sequence[str] | None = None,
    limits: Mapping[str, object] | None = None,
    keeps_memory: bool = False,
) -> Advice:
    """Return what is wrong with a recorded job and its children, what shows it, and what to do.
    `keeps_memory` is for a process that ends then: it takes a seventh less."""
    found = load_rules(rules, limits)
    sessions = open_recording(target).add_relatives().sessions
    wait_for_statuses(sessions)
    some = choose_some(sessions)
    held = [HeldRecording(these, keeps_memory=keeps_memory) for these in (sessions, some)]
    with held[0] as whole, held[1] as recording:
        period = find_period(recording, since, until, piece_s)
        period = _thin(period, held, is_part=since is not None)
        advice = judge(recording, found, period, whole if len(some) < len(sessions) else None)
        if rules is not None:
            return advice
        return replace(advice, places=find_places(recording, period))


def _thin(period: Period, held: Sequence[HeldRecording], *, is_part: bool) -> Period:
    """Return the period with the stretches of it that are looked at, if it is long; the long tables
    of the recordings, of which the last is looked at closely, then hold no more than these, or than
    the part of the time that is asked for."""
    stretches = choose_stretches(period.count, period.piece_s, len(held[-1].sessions))
    if stretches is None and not is_part:
        return period
    piece = period.words["piece"]
    kept = f"{piece} >= 0" if stretches is None else stretches.make_sql(piece)
    for one in held:
        one.thin(THINNED, " OR ".join([kept, *list_ends(one.sessions)]))
    return replace(period, stretches=stretches)


def judge_stretches(recording: HeldRecording, rules: Sequence[Rule], period: Period) -> Advice:
    """Apply every rule, to a long period as `advise` does, with tables of its own: others of the
    same recording need all of the time."""
    if choose_stretches(period.count, period.piece_s, len(recording.sessions)) is None:
        return judge(recording, rules, period)
    with HeldRecording(recording.sessions, keeps_memory=recording.keeps_memory) as own:
        return judge(own, rules, _thin(period, [own], is_part=True))


def choose_some(sessions: Sequence[Session]) -> list[Session]:
    """Return the processes that are looked at one by one: all, or of a large job a few that are
    spread evenly over it, and so over its hosts. Its ranks do the same, by and large; rules that
    compare them look at all."""
    if len(sessions) <= MOST_PROCESSES:
        return list(sessions)
    ordered = sorted(sessions, key=lambda one: (one.rank is None, one.rank or 0, one.host, one.pid))
    step = len(ordered) / MOST_PROCESSES
    return [ordered[int(at * step)] for at in range(MOST_PROCESSES)]


def judge(
    recording: HeldRecording,
    rules: Sequence[Rule],
    period: Period,
    whole: HeldRecording | None = None,
) -> Advice:
    """Apply every rule. One that fails is reported, and the others go on. If `recording` has only
    some processes of a job, `whole` has all, for rules that compare them or ask about machines."""
    tallies: list[tuple[Rule, Tally]] = []
    outcomes: list[Outcome] = []
    empty = [_find_empty(one or recording, rules) for one in (recording, whole)]
    asked: tuple[dict[str, list[Any]], dict[str, list[Any]]] = {}, {}  # each query is asked once
    needs = [need for rule in rules for need in rule.needs]
    conditions = [rule.condition for rule in rules if rule.condition is not None]
    known = [KnownRows(one or recording, needs, period, conditions) for one in (recording, whole)]
    for rule in rules:
        wide = whole is not None and rule.is_wide
        try:
            source = whole if wide and whole is not None else recording
            outcome, tally = _ask(source, rule, period, empty[wide], asked[wide], known[wide])
        except Exception as error:  # a rule's bug must not hide what the others found
            why = f"{type(error).__name__}: {' '.join(str(error).split())}"
            outcome, tally = Outcome(rule.name, "failed", why), None
        outcomes.append(outcome)
        if tally is not None and tally.is_found:
            tallies += [(rule, part) for part in rule.split(tally)]
    tallies = _leave_out(doubt_effects(doubt_in_crowd(tallies)), outcomes)
    wanted = [(rule.find_line(tally), tally.fired) for rule, tally in tallies]
    lines = find_lines(recording, period, wanted)
    sessions = (whole or recording).sessions
    findings = [_make_finding(rule, tally, period, line, _name_host(sessions))
                for (rule, tally), line in zip(tallies, lines, strict=True)]  # fmt: skip
    _sort(findings, rules)
    return Advice(
        show_moment(period.start_ns), show_moment(period.end_ns), period.piece_s, period.count,
        period.warm_up_s, [_name(session) for session in sessions], findings, outcomes,
        looked_at=None if whole is None else len(recording.sessions),
        folder=sessions[0].meta.cwd if sessions else None, endings=describe_ends(sessions),
        thinned="" if period.stretches is None else period.stretches.describe(period.count),
    )  # fmt: skip


def _sort(findings: list[Finding], rules: Sequence[Rule]) -> None:
    firsts = {rule.name for rule in rules if getattr(rule.module, "FIRST", False)}
    lasts = {rule.name for rule in rules if getattr(rule.module, "LAST", False)}
    findings.sort(key=lambda one: (
        one.rule not in firsts, -LEVELS.index(one.severity), one.rule in lasts,
        -(one.lost_pct or 0), -one.confidence, one.rule,
    ))  # fmt: skip
    put_causes_first(findings, {rule.name: getattr(rule.module, "BEHIND", ()) for rule in rules})


def _name_host(sessions: Sequence[Session]) -> str:
    hosts = {session.host for session in sessions}
    return f"@{hosts.pop()}" if len(hosts) == 1 else ""


def _leave_out(
    tallies: list[tuple[Rule, Tally]], outcomes: list[Outcome]
) -> list[tuple[Rule, Tally]]:
    """Leave out findings whose cause another rule has found, unless the cause is less severe: it
    cannot explain all of it then. A cause that is worth a warning, but whose share of the time is
    not known, may explain anything. How fast a program is that stands still is nobody's question.
    Their outcomes name the rule that reports them."""
    levels: dict[str, int] = {}
    for rule, tally in tallies:
        levels[rule.name] = max(levels.get(rule.name, 0), LEVELS.index(tally.severity))
    facts = {
        rule.name for rule, tally in tallies
        if tally.lost_pct is None and LEVELS.index(tally.severity) > 0
    }  # fmt: skip
    stands = [rule.name for rule, _tally in tallies
              if getattr(rule.module, "FIRST", False) and levels[rule.name] > 0]  # fmt: skip
    kept = []
    for rule, tally in tallies:
        level = LEVELS.index(tally.severity)
        causes = [name for name in getattr(rule.module, "UNLESS", ())
                  if levels.get(name, -1) >= level or name in facts]  # fmt: skip
        if not getattr(rule.module, "DANGER", False):
            causes = causes or stands
        if not causes:
            kept.append((rule, tally))
            continue
        at = next(at for at, outcome in enumerate(outcomes) if outcome.rule == rule.name)
        detail = f"{outcomes[at].detail}; left to {', '.join(causes)}"
        outcomes[at] = replace(outcomes[at], detail=detail)
    return kept


def _name(session: Any) -> str:
    return f"{session.host} pid {session.pid}" + (
        "" if session.rank is None else f" rank {session.rank}"
    )


def _find_empty(recording: HeldRecording, rules: Sequence[Rule]) -> set[str]:
    """Return the tables without any row among those that rules need first; without the others a
    rule may still know something. Most rules are about GPUs and PyTorch, and to ask this once
    takes far less than to ask each of them."""
    known = {schema.table for schema in recording.tables()}
    needed = {split_need(need)[0] for rule in rules for need in rule.needs[:1]}
    return recording.find_empty(needed & known)


def _ask(
    recording: HeldRecording, rule: Rule, period: Period, empty: Collection[str],
    asked: dict[str, list[Any]], known: KnownRows,
) -> tuple[Outcome, Tally | None]:  # fmt: skip
    reason = _find_reason(recording, rule, empty, known)
    if reason:
        return Outcome(rule.name, "abstained", reason), None
    if rule.condition is not None and not known.holds(*rule.condition):
        return Outcome(rule.name, "clear", "in none of the pieces"), None
    most = getattr(rule.module, "MOST", LEVELS[-1])
    verdicts = read_verdicts(recording, rule, period, asked)
    tally = Tally(verdicts, getattr(rule.module, "DANGER", False), most)
    if not tally.judged:
        otherwise = getattr(rule.module, "OTHERWISE", "no piece has enough data")
        why = known.find_lack(rule.needs) or otherwise
        return Outcome(rule.name, "abstained", why), None
    fired = len(tally.fired)
    votes = "clear" if fired == 0 else "found" if tally.is_found else tally.votes
    detail = f"in {fired} of {tally.judged} pieces"
    return Outcome(rule.name, votes, detail, fired, tally.judged), tally


def _find_reason(
    recording: HeldRecording, rule: Rule, empty: Collection[str], known: KnownRows
) -> str:
    """Return why a rule need not be asked; empty if it must."""
    missing = find_missing(recording, rule.needs)
    if missing:
        return f"not recorded: {', '.join(missing)}"
    main = split_need(rule.needs[0])[0] if rule.needs else ""
    if main in empty:
        return f"{main} has no rows"
    if getattr(rule.module, "ON_GPU", False) and not known.uses_gpu:
        return getattr(rule.module, "OTHERWISE", "no GPU is used")
    files: Sequence[str] = getattr(rule.module, "IN_FILES", ())
    if files and not known.has_frames_in(files):
        otherwise: str = rule.module.OTHERWISE
        return known.find_lack(rule.needs) or otherwise
    return ""


def read_verdicts(
    recording: HeldRecording, rule: Rule, period: Period, asked: dict[str, list[Any]] | None = None
) -> list[Verdict]:
    """Return what a rule says about every piece that has the data it needs. `asked` has the rows of
    queries that were asked before, and gets this one's."""
    words = period.find_words(rule.span)
    sql = rule.module.SQL.format(**words, **rule.limits).strip().rstrip(";")
    asked = {} if asked is None else asked
    if sql not in asked:
        once = sql
        # Many rules ask for these.
        for name, part in (("place_of_stack", PLACE), ("sums", SUMS.format(**words))):
            if part in once:
                once = once.replace(part, "FROM " + recording.keep(name, part))
        rows = read_rows(recording, once)
        asked[sql] = sorted(rows, key=lambda row: (row.piece is None, row.piece or 0))
    verdict_of: Callable[..., Iterator[Verdict]] = rule.module.judge
    return list(verdict_of(asked[sql], rule.limits))


def read_rows(recording: HeldRecording, sql: str) -> list[Any]:
    """Return the rows of a query as named tuples."""
    names, rows = recording.fetch(sql)
    make = namedtuple("Row", names)  # type: ignore[misc]
    return list(map(make._make, rows))


def _make_finding(rule: Rule, tally: Tally, period: Period, line: str, host: str) -> Finding:
    since_ns, until_ns = period.find_times(tally.fired[0], tally.fired[-1])
    return Finding(
        rule=rule.name, title=tally.pick("title") or rule.title, severity=tally.severity,
        votes=tally.votes, fired=len(tally.fired), judged=tally.judged,
        confidence=round(tally.confidence, 3), lost_pct=tally.lost_pct,
        since=show_moment(since_ns), until=show_moment(until_ns), evidence=tally.evidence,
        who=[who.removesuffix(host) for who in tally.who], line=tally.pick("line") or line,
        why=tally.pick("why") or rule.why, todo=tally.pick("todo") or rule.todo,
    )  # fmt: skip
