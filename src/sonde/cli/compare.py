"""Compare two recordings, or two parts of one: what changed by more than noise."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Iterator, Sequence
from typing import IO

from sonde import environ
from sonde.advice.compare import (
    BETTER,
    OTHER,
    SAME,
    STARVATION,
    UNCLEAR,
    WORSE,
    Change,
    Comparison,
    Side,
    compare,
)
from sonde.advice.compare_measures import REQUESTS, SPANS
from sonde.advice.finding import Finding
from sonde.cli import _options, _progress, _table
from sonde.cli._terminal import fill
from sonde.cli.snapshot_commands.diff import compare_files
from sonde.words import clean, shorten_file, show_moment

GROUP = "ask"
EXAMPLES = (
    "sonde compare 4242 4711",
    "sonde compare train@..+10min train@10min..     the start of a job with its end",
    "sonde compare monday tuesday --fail-on worse   for CI",
)
FOUND = 8  # the exit code of --fail-on
_FAILS = (WORSE, "much-worse")
_COLOURS = {WORSE: "\x1b[1;31m", BETTER: "\x1b[32m", OTHER: "\x1b[33m"}
_MOST = 10  # functions and modules
_TENFOLD = 10  # a change that is this many times what was there before is not told in percent
_SAME = "nothing changed: both are the same recording"
_WIDE = 110  # columns of a terminal

_NOTE = f"""\
BEFORE and AFTER are each a TARGET: a pid, a program's name, a job, a session folder or its id, or a
run. One may end in @SINCE..UNTIL, to take only a part of it. Or both are files of `sonde snapshot`.
A time is written as
{_options.MOMENTS}.
The first steps are left out as warm-up. Each side is cut into pieces; a change counts if it is
larger than the differences between the pieces, and large enough to matter.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.add_note(parser, _NOTE)
    parser.add_argument("before", metavar="BEFORE", help="the recording to compare with")
    parser.add_argument("after", metavar="AFTER", help="the recording to judge")
    parser.add_argument("--all", action="store_true", help="also show what is the same, or unclear")
    parser.add_argument("--fail-on", choices=_FAILS,
                        help=f"exit with code {FOUND} if something became so")  # fmt: skip
    _options.add_format(parser, ("table", "json"))
    _options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    if _is_snapshot(args.before) and _is_snapshot(args.after):
        return compare_files(args.before, args.after, args.format, args.output)
    with _progress.say(f"comparing {args.before} with {args.after}"):
        found = compare(args.before, args.after, keeps_memory=True)
    if args.format == "json":
        _table.write_text(args.output, lambda file: print(found.to_json(), file=file))
    else:
        _table.write_text(args.output, lambda file: _draw_all(found, args.all, file))
    fails = (found.is_worse and args.fail_on == WORSE) or (
        found.is_much_worse and args.fail_on is not None
    )
    return FOUND if fails else 0


def _is_snapshot(target: str) -> bool:
    """Tell whether a target is a file of statistics, and not a program in the working folder, which
    is named like its recordings."""
    return os.path.isfile(target) and not target.endswith(".py")


def _draw_all(found: Comparison, everything: bool, file: IO[str]) -> None:
    colour = file.isatty() and environ.uses_colour()
    told = _SAME if _is_one(found) else _describe_comparison(found)
    verdict = fill(told, file)
    file.write(_paint(verdict, found.verdict, colour) + "\n")
    for name, side in (("before", found.before), ("after", found.after)):
        file.write(fill(f"{name:<7} {_describe_side(side)}", file, " " * 8) + "\n")
    file.writelines(f"{fill(line, file)}\n" for line in _describe_starvation(found))
    wanted = (WORSE, BETTER, OTHER, UNCLEAR, SAME) if everything else (WORSE, BETTER, OTHER)
    rows = [row for row in found.changes if row.verdict in wanted or row.name in ("step", "run")]
    _draw_changes(rows, file, colour)
    code = [row for row in found.code if row.verdict in wanted]
    if code:
        file.write("\nin the code\n")
        _draw_changes(code if everything else code[:_MOST], file, colour)
        if len(code) > _MOST and not everything:
            file.write(f"… and {len(code) - _MOST} more: --all\n")
    for name, pid in found.alone.items():
        line = f"of the processes of the second, {pid} is nearly alone in {clean(name)}"
        file.write(f"\n{fill(line, file)}\n")
    file.writelines(f"{fill(line, file, '    ')}\n" for line in _describe_advice(found))
    if everything and found.missing:
        file.write("\nnot compared\n" + "".join(f"  {line}\n" for line in found.missing))


def _describe_comparison(found: Comparison) -> str:
    """Return the verdict in a sentence."""
    step = next((row for row in found.changes if row.name in ("step", "run")), None)
    if step is not None and step.change_pct is not None:
        words = {WORSE: "slower", BETTER: "faster", UNCLEAR: "unclear: the noise is larger",
                 SAME: "the same", OTHER: "different"}  # fmt: skip
        much = "much " if step.much and step.verdict in (WORSE, BETTER) else ""
        if step.name == "run":
            return _describe_runs(found, step, f"{much}{words[step.verdict]}")
        return f"{much}{words[step.verdict]}: a step takes {_show_change(step)}"
    if told := _describe_requests(found):
        return told
    count = sum(row.verdict in (WORSE, BETTER, OTHER) for row in found.changes)
    if not found.changes:
        return "nothing can be compared: " + "; ".join(found.missing[:3])
    counted = f"{count or 'none'} of {len(found.changes)} numbers changed by more than noise"
    judged = [row for row in (*found.code, *found.changes) if row.verdict in (WORSE, BETTER)]
    most = next(iter(judged or (row for row in found.code if row.verdict == OTHER)), None)
    if most is None:
        return counted
    return f"{counted}; most: {clean(most.name)}, {_show_sides(most)}"


def _is_one(found: Comparison) -> bool:
    """Return whether both sides are the same stretch of one recording, or of copies of it."""
    before, after = found.before, found.after
    is_same_time = (before.start_ns, before.end_ns) == (after.start_ns, after.end_ns)
    return is_same_time and not any(row.change for row in (*found.changes, *found.code))


def _describe_requests(found: Comparison) -> str:
    """Return the verdict about a server: by the requests that it answers, if these changed, and by
    the function that this is due to, if one is known."""
    changed = found.requests
    if not changed:
        return ""
    first = changed[0]
    word = "slower" if first.verdict == WORSE else "faster"
    others = sum(row.verdict == first.verdict for row in changed[1:])
    more = f" (and {others} more)" if others else ""
    why = next((row for row in found.code
                if row.verdict == first.verdict and row.unit != REQUESTS.unit), None)  # fmt: skip
    text = f"{'much ' if first.much else ''}{word}: {_name_sides(first)}{more}"
    text += f"; most: {_name_sides(why)}" if why else ""
    other = next((row for row in changed if row.verdict != first.verdict), None)
    return f"{text}; but: {_name_sides(other)}" if other else text


def _describe_runs(found: Comparison, run: Change, word: str) -> str:
    """Return the verdict about two runs. A program that runs for a given time may do more in it, or
    less: that is told by what takes a piece of its work, where it has a name."""
    took = f"the run took {_show_sides(run)}, {run.change_pct:+.0f} %"
    if run.verdict not in (SAME, OTHER):
        most = next((row for row in found.code if row.verdict == run.verdict), None)
        return f"{word}: {took}" + (f"; most: {_name_sides(most)}" if most else "")
    changed = [row for row in found.code if row.much and row.verdict in (WORSE, BETTER)]
    work = [row for row in changed if row.unit in (REQUESTS.unit, SPANS.unit)]
    if work:
        faster = "faster" if work[0].verdict == BETTER else "slower"
        all_agree = len({row.verdict for row in work}) == 1
        what = _name_sides(work[0])
        return f"much {faster}: {what}; {took}" if all_agree else f"{word}: {took}; but: {what}"
    if starved := _find_starvation(found):
        return f"{word}: {took}; but: {_name_sides(starved)}"
    less, more = (
        next((row for row in changed if row.verdict == verdict), None)
        for verdict in (BETTER, WORSE)
    )
    if less and more:
        return (
            f"{word}: {took}, with less of it in {_name_sides(less)}, and more in "
            f"{_name_sides(more)}. If it runs for a given time, it may do more work in it: put "
            "sonde.span around a piece of work to compare that"
        )
    one = less or more
    return f"{word}: {took}" + (f"; but: {_name_sides(one)}" if one else "")


def _name_sides(row: Change) -> str:
    return f"{clean(row.name)}, {_show_sides(row)}"


def _show_sides(row: Change) -> str:
    return f"{_show(row.before)} → {_show(row.after)} {row.unit}"


def _find_starvation(found: Comparison) -> Change | None:
    for row in found.changes:
        if row.name == STARVATION and row.verdict == WORSE and row.much:
            return row
    return None


def _describe_starvation(found: Comparison) -> Iterator[str]:
    """Yield a warning where the second had to wait for a processor far more than the first."""
    if row := _find_starvation(found):
        yield (
            f"the processors were short: it waited for one {_show_sides(row)}, so code that "
            "takes longer below may only be a victim of that"
        )


def _describe_side(side: Side) -> str:
    return (
        f"{clean(side.target)}  {show_moment(side.start_ns)} … {show_moment(side.end_ns)}, "
        f"{side.pieces} pieces"
    )


def _draw_changes(rows: Sequence[Change], file: IO[str], colour: bool) -> None:
    if not rows:
        return
    file.write("\n")
    # Where there is little room the interval goes first; --format json has it.
    is_short = file.isatty() and shutil.get_terminal_size().columns < _WIDE
    cells = [
        (row.name, _show(row.before), _show(row.after), row.unit,
         _show_change(row).partition(" (")[0] if is_short else _show_change(row), _name(row))
        for row in rows
    ]  # fmt: skip

    change = "change" if is_short else "change (95 %)"
    names = ("what", "before", "after", "unit", change, "verdict")
    shown = _table.wrap_text(names, cells, file, 0)
    verdicts = {_name(row): row.verdict for row in rows}

    def paint(at: int, column: int, cell: str) -> str:
        verdict = verdicts.get(str(shown[at][5]), "")
        return _paint(cell, verdict, colour) if column == 5 else cell

    _table.draw_table(names, shown, file, [False, True, True, False, False, False], paint)


def _name(row: Change) -> str:
    much = row.much and row.verdict in (WORSE, BETTER, OTHER)
    return f"much {row.verdict}" if much else row.verdict


def _show(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"


def _show_change(row: Change) -> str:
    """Return a change with its interval; in percent unless it was zero, or next to it, before."""
    if row.before and abs(row.change) < _TENFOLD * abs(row.before):
        low, high = (100 * value / abs(row.before) for value in (row.low, row.high))
        if low == high:  # nothing is known of the noise
            return f"{row.change_pct:+.1f} %"
        return f"{row.change_pct:+.1f} % ({low:+.1f} … {high:+.1f})"
    if row.low == row.high:
        return f"{row.change:+.3g}"
    return f"{row.change:+.3g} ({row.low:+.3g} … {row.high:+.3g})"


def _describe_advice(found: Comparison) -> Iterator[str]:
    for title, findings in (("new advice", found.appeared), ("gone", found.vanished)):
        if findings:
            yield ""
            yield title
            yield from (f"  {_describe_finding(finding)}" for finding in findings)


def _describe_finding(finding: Finding) -> str:
    at = f", at {clean(shorten_file(finding.line, os.getcwd()))}" if finding.line else ""
    return f"{finding.severity}: {finding.title} ({finding.rule}){at}"


def _paint(text: str, verdict: str, colour: bool) -> str:
    code = _COLOURS.get(verdict, "") if colour else ""
    return f"{code}{text}\x1b[0m" if code else text
