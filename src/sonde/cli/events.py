"""Show the regions, counters and markers of a program: their sums, and what is open now."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable, Sequence
from typing import IO, Any, NamedTuple

from sonde import settings
from sonde.analysis.event_sums import (
    LAST,
    EventProcess,
    EventReport,
    EventSelection,
    OpenRegion,
    RegionSums,
    read_report,
)
from sonde.analysis.event_table import SORTS, make_table, sort_report
from sonde.analysis.window import find_window
from sonde.cli import _options, _table
from sonde.cli._missing import tell_missing
from sonde.cli._terminal import fill
from sonde.cli._watch import watch
from sonde.errors import ConfigError
from sonde.session.missing_names import describe_missing_names
from sonde.store.recording import Recording, open_recording
from sonde.words import (
    MISSING,
    clean,
    show_bar,
    show_curve,
    show_duration,
    show_moment,
    show_number,
)

_BAR = 10
GROUP = "ask"
EXAMPLES = (
    "sonde events 4242",
    "sonde events 4242 --watch --sort max",
    "sonde events train-7 --per-rank --name 'load.*'",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.add_target(parser, "the recording whose events to show")
    _options.add_span(parser, "--watch", bare="1s",
                      what="draw again, every second or this often, until Ctrl-C")  # fmt: skip
    parser.add_argument("--sort", choices=SORTS, default="total", metavar="COLUMN",
                        help="what comes first: %(choices)s (default: %(default)s)")  # fmt: skip
    parser.add_argument("--ascending", action="store_true", help="the smallest first")
    parser.add_argument("--per-rank", action="store_true",
                        help="a line for each process instead of one for all")  # fmt: skip
    parser.add_argument("--name", metavar="PATTERN",
                        help="only names that match a regular expression: load|step.*")  # fmt: skip
    _options.add_window(parser)
    _options.add_format(parser, ("table", "csv", "json"))
    _options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    recording = open_recording(args.target)
    if args.watch is None:
        report = _read(recording, args)
        if args.format == "table":
            _table.write_text(args.output, lambda file: _draw_all(report, args, file))
        else:
            _table.write_rows(make_table(report), args.format, args.output)
        tell_missing(recording.sessions)
        return 0
    if args.format != "table" or args.output:
        raise ConfigError("--watch draws tables; leave out --format and -o, or --watch")
    return _watch(recording, args)


def _read(recording: Recording, args: argparse.Namespace) -> EventReport:
    try:
        pattern = settings.parse_pattern(args.name or "") or None
    except ValueError as error:
        raise ConfigError(f"--name {args.name} is not a regular expression: {error}") from None
    window = None
    if args.since or args.until:
        window = find_window(recording, args.since, args.until, last=LAST)
    report = read_report(recording, EventSelection(window, pattern, args.per_rank))
    return sort_report(report, args.sort, ascending=args.ascending)


def _watch(recording: Recording, args: argparse.Namespace) -> int:
    """Draw until everything that is watched has ended."""

    def draw(file: IO[str]) -> bool:
        report = _read(recording, args)
        _draw_all(report, args, file)
        for line in describe_missing_names(recording.sessions).values():
            file.write(f"{line}\n")
        return any(one.is_running for one in report.processes)

    watch(draw, args.watch)
    return 0


# ---- for people ----------------------------------------------------------------------------------


class _Column(NamedTuple):
    name: str
    right: bool
    show: Callable[[Any], str]
    colour: str = ""


def _draw_all(report: EventReport, args: argparse.Namespace, file: IO[str]) -> None:
    """Draw all blocks; regions that have been open for long come first, as people look for them."""
    by_rank = args.per_rank
    several = len(report.processes) > 1
    long = [line for line in report.open if line.is_long]
    short = [line for line in report.open if not line.is_long]
    blocks = [
        _make_block(long, _list_open(several, "\x1b[31m"), "open for long"),
        _make_block(report.regions, _list_regions(report.regions, by_rank, several)),
        _make_block(report.counters, _list_counters(by_rank)),
        _make_block(report.markers, _list_markers(by_rank)),
        _make_block(short, _list_open(several, ""), "open"),
    ]
    drawn = [block for block in blocks if block is not None]
    if not drawn:
        file.write(
            "the program has marked nothing here; see sonde.span, sonde.counter, sonde.mark\n"
        )
    for at, (lines, columns) in enumerate(drawn):
        file.write("\n" if at else "")
        _draw_block(lines, columns, file)
        if lines is report.regions:
            _tell_loss(report.regions, file)


def _tell_loss(regions: Sequence[RegionSums], file: IO[str]) -> None:
    count, rows = (sum(getattr(line, word) for line in regions) for word in ("count", "rows"))
    if rows < count:
        file.write(f"percentiles are of {rows:,} regions; the rows of {count - rows:,} are gone\n")


def _make_block(
    lines: Sequence[Any], columns: list[_Column], title: str | None = None
) -> tuple[Sequence[Any], list[_Column]] | None:
    if not lines:
        return None
    if title is not None:
        columns = [columns[0]._replace(name=title), *columns[1:]]
    shown = [column for column in columns if any(column.show(line) for line in lines)]
    return lines, shown


def _draw_block(lines: Sequence[Any], columns: list[_Column], file: IO[str]) -> None:
    left_out = list[str]()
    if file.isatty():
        known = columns
        columns = _fit(columns, lines, shutil.get_terminal_size().columns)
        left_out = [one.name for one in known if one.name and one not in columns]
    else:
        columns = [column for column in columns if column.name]  # a bar is for the eye

    def paint(_at: int, column: int, cell: str) -> str:
        colour = columns[column].colour
        return f"{colour}{cell}\x1b[0m" if colour else cell

    rows = [
        [column.show(line) or (MISSING if column.right else "") for column in columns]
        for line in lines
    ]
    _table.draw_table([column.name for column in columns], rows, file,
                     [column.right for column in columns], paint)  # fmt: skip
    if left_out:
        note = f"no room for {', '.join(left_out)}: a pipe or --format json has all"
        file.write(fill(note, file) + "\n")


def _fit(columns: list[_Column], lines: Sequence[Any], room: int) -> list[_Column]:
    """Leave out what matters least until the rest has room: names must not be cut."""
    for name in ("", "p50", "p99", "min", "kind", "spread", "share", "domain"):
        widths = [max(len(column.name), *(len(column.show(line)) for line in lines))
                  for column in columns]  # fmt: skip
        if sum(widths) + 2 * (len(columns) - 1) <= room:
            break
        columns = [column for column in columns if column.name != name]
    return columns


def _name(title: str) -> _Column:
    return _Column(title, False, lambda line: clean(line.name))


def _whose(shown: bool) -> list[_Column]:
    return [_Column("rank", False, lambda line: _name_process(line.process))] if shown else []


_DOMAIN = _Column("domain", False, lambda line: clean(line.domain or ""))
_COUNT = _Column("count", True, lambda line: f"{line.count:,}")


def _list_regions(regions: Sequence[RegionSums], by_rank: bool, several: bool) -> list[_Column]:
    def part(at: int) -> Callable[[RegionSums], str]:
        return lambda line: "" if line.parts_ns is None else show_duration(line.parts_ns[at])

    longest = max((line.share for line in regions), default=0.0)
    spread = [
        _Column("spread", True, lambda line: f"{100 * line.spread:.0f} %" if line.slowest else ""),
        _Column("slowest", False, _name_slowest),
    ]
    return [
        _name("region"), *_whose(by_rank),
        _Column("kind", False, lambda line: line.kind), _DOMAIN, _COUNT,
        _Column("total", True, lambda line: show_duration(line.total_ns)),
        _Column("share", True, lambda line: f"{100 * line.share:.1f} %"),
        _Column("", False, lambda line: show_bar(line.share, longest, _BAR), "\x1b[36m"),
        _Column("mean", True, lambda line: show_duration(line.mean_ns)),
        _Column("min", True, lambda line: show_duration(line.min_ns)),
        _Column("p50", True, part(0)), _Column("p95", True, part(1)), _Column("p99", True, part(2)),
        _Column("max", True, lambda line: show_duration(line.max_ns)),
        *(spread if several and not by_rank else ()),
    ]  # fmt: skip


def _list_counters(by_rank: bool) -> list[_Column]:
    def number(word: str) -> _Column:
        return _Column(word, True, lambda line: show_number(getattr(line, word)))

    return [
        _name("counter"), *_whose(by_rank), _DOMAIN, _COUNT._replace(name="updates"),
        number("last"), number("min"), number("mean"), number("max"),
        _Column("", False, lambda line: show_curve(line.curve), "\x1b[36m"),
    ]  # fmt: skip


def _list_markers(by_rank: bool) -> list[_Column]:
    return [
        _name("marker"), *_whose(by_rank), _DOMAIN, _COUNT,
        _Column("last", False, lambda line: _show_moment(line.last_ns)),
    ]  # fmt: skip


def _list_open(several: bool, colour: str) -> list[_Column]:
    return [
        _name("open"),
        _Column("for", True, lambda line: show_duration(line.open_ns), colour), *_whose(several),
        _Column("thread", False, _name_thread), _Column("kind", False, lambda line: line.kind),
        _DOMAIN, _Column("since", False, lambda line: _show_moment(line.begin_ns)),
    ]  # fmt: skip


def _name_process(process: EventProcess | None) -> str:
    if process is None:
        return ""
    return f"pid {process.pid}" if process.rank is None else str(process.rank)


def _name_slowest(line: RegionSums) -> str:
    if line.slowest is None:
        return ""
    word = "" if line.slowest.rank is None else "rank "
    return f"{word}{_name_process(line.slowest)}: {show_duration(line.slowest_ns)}"


def _name_thread(line: OpenRegion) -> str:
    return f"{line.thread} {clean(line.thread_name or '')}".strip()


def _show_moment(wall_ns: int | None) -> str:
    return "" if wall_ns is None else show_moment(wall_ns)
