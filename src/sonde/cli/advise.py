"""Say what is wrong with a job, what shows it, and what to do."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping
from typing import IO

from sonde import environ
from sonde.advice.finding import Advice, Finding, show_evidence
from sonde.advice.judge import PIECE_S, Rule, advise, load_rules
from sonde.advice.verdict import LEVELS
from sonde.analysis.code_names import shorten_file
from sonde.cli import _options, _progress, _table
from sonde.cli._closer_look import CloserLook, look_closer
from sonde.cli._missing import tell_missing
from sonde.cli._terminal import fill
from sonde.errors import ConfigError
from sonde.session.target import find_newest
from sonde.store.recording import find_targets
from sonde.words import clean, show_duration

GROUP = "ask"
EXAMPLES = (
    "sonde advise train-7 --since 10min --fail-on warning    for CI",
    "sonde advise 4242 --look                                look closer for 3 s first",
    "sonde advise --list                                     the rules and their limits",
)
FOUND = 8  # the exit code of --fail-on
_COLOURS = {"critical": "\x1b[1;31m", "warning": "\x1b[1;33m", "info": "\x1b[1;36m"}
_SEEN = {"most": "in most of the pieces", "several": "in several pieces",
         "a little": "in a few pieces"}  # fmt: skip
_BEFORE_PLACE = 28  # columns: the share, the state and the time
_WIDTH = 98  # the longest line that is easy to read
_RULES = """\
docs/advice.md says how to read a finding and how to add a rule.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.add_target(parser, "the recording to judge (default: the newest)", optional=True)
    _options.add_window(parser, without="after warm-up")
    _options.add_span(parser, "--piece", what="each piece of this length has a vote",
                      default=f"{PIECE_S:g}s")  # fmt: skip
    parser.add_argument("--fail-on", choices=LEVELS,
                        help=f"exit with code {FOUND} if a finding is so bad or worse")  # fmt: skip
    _options.add_span(parser, "--look", bare="3s", what="first look closer at the live job, for 3s "
                      "or so long: 1,000 samples a second, and native frames")  # fmt: skip
    parser.add_argument("--rule", action="append", metavar="NAME",
                        help="apply only this rule; may be repeated")  # fmt: skip
    parser.add_argument("--set", action="append", default=[], metavar="RULE.NAME=VALUE",
                        help="change a limit of a rule; may be repeated")  # fmt: skip
    parser.add_argument("--all", action="store_true", help="also say what became of every rule")
    parser.add_argument("--list", action="store_true",
                        help="list the rules with their reasons and limits")  # fmt: skip
    _options.add_format(parser, ("table", "json", "markdown"))
    _options.add_output(parser)
    _options.add_note(parser, _RULES)


def run(args: argparse.Namespace) -> int:
    limits = _read_limits(args.set)
    if args.list:
        rules = load_rules(args.rule, limits)
        write = {"json": _list_json, "markdown": _list_markdown}.get(args.format, _list_rules)
        lines = write(rules)
        _table.write_text(args.output, lambda file: _write_lines(lines, file))
        return 0
    if args.target is None:
        args.target = find_newest(environ.find_root())
    look = look_closer(args.target, args.look) if args.look else None
    with _progress.say(f"judging {args.target}"):
        advice = advise(args.target, since=args.since, until=args.until, piece_s=args.piece,
                        rules=args.rule, limits=limits, keeps_memory=True)  # fmt: skip
    if args.format == "json":
        text = _make_json(advice, look)
        _table.write_text(args.output, lambda file: _write_lines([text], file))
    else:
        _table.write_text(args.output, lambda file: _draw_advice(advice, args.all, file, look))
    tell_missing(find_targets(args.target))
    for outcome in advice.outcomes:
        if outcome.state == "failed":
            print(f"sonde: rule {outcome.rule} failed: {outcome.detail}", file=sys.stderr)
    worst = advice.worst
    failed = args.fail_on and worst and LEVELS.index(worst) >= LEVELS.index(args.fail_on)
    return FOUND if failed else 0


def _read_limits(words: list[str]) -> Mapping[str, object]:
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or "." not in name:
            raise ConfigError(f"--set {word} is not RULE.NAME=VALUE; see `sonde advise --list`")
        found[name.strip()] = value.strip()
    return found


def _make_json(advice: Advice, look: CloserLook | None) -> str:
    if look is None:
        return advice.to_json()
    return json.dumps({**json.loads(advice.to_json()), "look": look.to_values()}, indent=1)


def _write_lines(lines: Iterator[str] | list[str], file: IO[str]) -> None:
    for line in lines:
        file.write(line + "\n")


# ---- findings ------------------------------------------------------------------------------------


def _draw_advice(advice: Advice, everything: bool, file: IO[str], look: CloserLook | None) -> None:
    colour = file.isatty() and environ.uses_colour()
    for ending in advice.endings:
        file.write(fill(f"{clean(ending)}: `sonde stacks` shows where", file) + "\n\n")
    if not advice.findings:
        file.write(fill(_describe_health(advice), file) + "\n")
    for at, finding in enumerate(advice.findings):
        if at:
            file.write("\n")
        _write_lines(_describe_finding(finding, advice.folder, file, colour), file)
    if advice.findings:
        file.write("\n" + fill(_describe_coverage(advice), file) + "\n")
    places = _describe_places(advice if look is None else look.advice)
    _write_lines([fill(line, file, " " * _BEFORE_PLACE) for line in places], file)
    if look is not None:
        told = look.describe(advice.findings)
        _write_lines(["", *(fill(clean(line), file) for line in told)], file)
    if everything:
        file.write("\n")
        rows = [(outcome.rule, outcome.state, outcome.detail) for outcome in advice.outcomes]
        _table.draw_table(("rule", "state", "detail"), rows, file)


def _describe_places(advice: Advice) -> Iterator[str]:
    """Yield where the time went, and what people do about it: an observation, not an alarm."""
    if not advice.places:
        return
    yield ""
    yield "where the time went (`sonde tree` shows all of it):"
    told: set[str] = set()
    for place in advice.places:
        at = f" ({place.show_place(advice.folder)})" if place.file else ""
        at += f" < {place.caller}" if place.caller else ""
        what = f": {place.what}" if place.what and place.func else place.what
        what += f"; {place.facts}" if place.facts else ""
        time = show_duration(place.time_s * 1e9)
        yield clean(
            f"  {place.share_pct:>3.0f} %  {place.state}  {time:>8}  {place.func}{at}{what}"
        )
        if place.is_costly and place.instead not in told:
            told.add(place.instead)
            yield from _wrap("", f"→ {place.instead}")


def _describe_health(advice: Advice) -> str:
    judged = [outcome for outcome in advice.outcomes if outcome.judged]
    if not judged:
        return f"nothing can be said: no rule has the data it needs ({_describe_coverage(advice)})"
    told = advice.describe_nothing()
    if advice.costly is not None:
        return f"{told}: see below what people do about that ({_describe_coverage(advice)})"
    return f"{told}, as far as can be seen: {_describe_coverage(advice)}"


def _describe_coverage(advice: Advice) -> str:
    judged = sum(1 for outcome in advice.outcomes if outcome.judged)
    abstained = sum(1 for outcome in advice.outcomes if outcome.state == "abstained")
    failed = sum(1 for outcome in advice.outcomes if outcome.state == "failed")
    pieces = _count(advice.pieces, "piece", "pieces")
    processes = _count(len(advice.processes), "process", "processes")
    words = [f"{judged} rules looked at {pieces} of {advice.piece_s:g} s of {processes}"]
    if advice.looked_at is not None:
        words[-1] += f" (compared with each other; {advice.looked_at} of them one by one)"
    if advice.warm_up_s >= 1:
        words[-1] += f", without the {advice.warm_up_s:.0f} s of warm-up"
    if advice.thinned:
        words.append(advice.thinned)
    if abstained:
        words.append(f"{abstained} rules lack data (--all says which)")
    if failed:
        words.append(f"{failed} rules failed")
    return "; ".join(words)


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _describe_finding(
    finding: Finding, folder: str | None, file: IO[str], colour: bool
) -> Iterator[str]:
    """Yield the lines of a finding: verdict, place, evidence, next step; then the rest."""
    begin, end = (_COLOURS[finding.severity], "\x1b[0m") if colour else ("", "")
    who = f" ({clean(', '.join(finding.who))})" if finding.who else ""
    title = f"{finding.severity.upper()}: {finding.title}{who}  [{finding.rule}]"
    word, colon, rest = fill(title, file).partition(":")
    yield f"{begin}{word}{end}{colon}{rest}"
    if finding.line:
        yield from _wrap("code", shorten_file(finding.line, folder))
    numbers = ", ".join(show_evidence(name, value) for name, value in finding.evidence.items())
    if numbers:
        # Places within a sentence are short, too: the user's own files without the folder.
        yield from _wrap("evidence", numbers.replace(f"{folder}/", "") if folder else numbers)
    yield from _wrap("next", finding.todo)
    yield from _wrap("why", finding.why)
    seen = f"{_SEEN[finding.votes]} ({finding.fired} of {finding.judged})"
    seen += f", confidence {finding.sureness}"
    if finding.lost_pct is not None:
        seen += f", about {finding.lost_pct:.0f} % of the time lost"
    yield from _wrap("seen", f"{seen}; {finding.since} to {finding.until[11:]}")


def _wrap(label: str, text: str) -> list[str]:
    first = f"  {label:<9} "
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDTH
    width = min(_WIDTH, max(40, room))
    return textwrap.wrap(
        clean(text), width, initial_indent=first, subsequent_indent=" " * len(first),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


# ---- rules ---------------------------------------------------------------------------------------


def _list_rules(rules: list[Rule]) -> Iterator[str]:
    for rule in rules:
        yield f"{rule.name}: {rule.title}"
        yield from _wrap("why", rule.why)
        yield from _wrap("next", rule.todo)
        for name, limit in rule.module.LIMITS.items():
            yield from _wrap("limit", f"{rule.name}.{name}={rule.limits[name]:g}  {limit.help}")
        yield ""


def _list_json(rules: list[Rule]) -> Iterator[str]:
    yield json.dumps(
        [{"rule": rule.name, "title": rule.title, "why": rule.why, "todo": rule.todo,
          "limits": {name: {"value": rule.limits[name], "help": limit.help}
                     for name, limit in rule.module.LIMITS.items()}} for rule in rules], indent=1,
    )  # fmt: skip


def _list_markdown(rules: list[Rule]) -> Iterator[str]:
    yield "| rule | says | limits |"
    yield "|---|---|---|"
    for rule in rules:
        limits = "; ".join(f"`{name}` {rule.limits[name]:g}: {limit.help}"
                           for name, limit in rule.module.LIMITS.items())  # fmt: skip
        yield f"| `{rule.name}` | {rule.title} | {limits} |"
