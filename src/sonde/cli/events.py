"""Show the regions, counters and markers of a program: their sums, and what is open now."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable, Sequence
from typing import IO, Any, NamedTuple

from sonde import settings
from sonde.analysis.event_sums import (
    LAST,
    Choice,
    Counter,
    Marker,
    Open,
    Process,
    Region,
    Report,
    read_report,
)
from sonde.analysis.window import find_window
from sonde.cli import _options, _table
from sonde.cli._watch import watch
from sonde.errors import ConfigError
from sonde.store.recording import Recording, open_recording
from sonde.words import clean, show_bar, show_curve, show_duration, show_moment, show_number

# What a line is sorted by, of a region; counters and markers have their own of it, or the name.
_SORTS = {"total": "total_ns", "avg": "mean_ns", "min": "min_ns", "max": "max_ns",
          "count": "count", "name": "name"}  # fmt: skip
_COUNTER_SORTS = {"avg": "mean", "min": "min", "max": "max", "count": "count"}
_BAR = 10
GROUP = "ask"
EXAMPLES = (
    "sonde events 4242",
    "sonde events 4242 --watch --sort max",
    "sonde events train-7 --per-rank --name 'load.*'",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.add_target(parser, "the recording whose events to show")
    parser.add_argument("--watch", nargs="?", const="1s", metavar="SPAN",
                        help="draw again, every second or this often, until Ctrl-C")  # fmt: skip
    parser.add_argument("--sort", choices=_SORTS, default="total",
                        help="what comes first (default: %(default)s)")  # fmt: skip
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
            _write(report, args)
        return 0
    if args.format != "table" or args.output:
        raise ConfigError("--watch draws tables; without it there is --format and -o")
    return _watch(recording, args)


def _read(recording: Recording, args: argparse.Namespace) -> Report:
    try:
        pattern = settings.parse_pattern(args.name or "") or None
    except ValueError as error:
        raise ConfigError(f"--name {args.name} is not a regular expression: {error}") from None
    window = None
    if args.since or args.until:
        window = find_window(recording, args.since, args.until, last=LAST)
    return _sort(read_report(recording, Choice(window, pattern, args.per_rank)), args)


def _sort(report: Report, args: argparse.Namespace) -> Report:
    def order(lines: Sequence[Any], word: str | None) -> list[Any]:
        named = sorted(lines, key=lambda line: (line.name, line.domain or "", _place(line.process)))
        if word in (None, "name"):
            return named
        return sorted(named, key=lambda line: getattr(line, word), reverse=not args.ascending)

    return report._replace(
        regions=order(report.regions, _SORTS[args.sort]),
        counters=order(report.counters, _COUNTER_SORTS.get(args.sort)),
        markers=order(report.markers, "count" if args.sort == "count" else None),
    )


def _place(process: Process | None) -> tuple[int, str, int]:
    return (-1, "", 0) if process is None else (process.rank or 0, process.host, process.pid)


def _watch(recording: Recording, args: argparse.Namespace) -> int:
    """Draw until everything that is watched has ended."""

    def draw(file: IO[str]) -> bool:
        report = _read(recording, args)
        _draw_all(report, args, file)
        return any(one.is_running for one in report.processes)

    try:
        period_s = settings.parse_span(args.watch)
    except (KeyError, ValueError):
        raise ConfigError(f"--watch {args.watch} is not a time; write 1s or 500ms") from None
    watch(draw, period_s)
    return 0


# ---- for programs --------------------------------------------------------------------------------

_COLUMNS = {
    "kind": "string", "domain": "string", "name": "string", "host": "string", "pid": "int64",
    "rank": "int64", "processes": "int64", "count": "int64", "rows": "int64",
    "total_ns": "int64", "share_pct": "float64", "mean_ns": "float64", "min_ns": "int64",
    "p50_ns": "float64", "p95_ns": "float64", "p99_ns": "float64", "max_ns": "int64",
    "spread_pct": "float64", "slowest_rank": "int64", "slowest_pid": "int64", "slowest_ns": "int64",
    "last": "float64", "min": "float64", "mean": "float64", "max": "float64",
    "last_wall_ns": "int64", "open": "bool", "open_ns": "int64", "begin_wall_ns": "int64",
    "thread": "int64", "thread_name": "string", "id": "int64",
}  # fmt: skip


def _write(report: Report, args: argparse.Namespace) -> None:
    """A row for each line, and one for each region that is open."""
    import pyarrow as pa

    schema = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in _COLUMNS.items()])
    rows = [
        *map(_describe_region, report.regions), *map(_describe_counter, report.counters),
        *map(_describe_marker, report.markers), *map(_describe_open, report.open),
    ]  # fmt: skip
    _table.write_rows(pa.Table.from_pylist(rows, schema=schema), args.format, args.output)


def _describe(line: Any, kind: str) -> dict[str, object]:
    whose = {} if line.process is None else {
        "host": line.process.host, "pid": line.process.pid, "rank": line.process.rank,
    }  # fmt: skip
    is_open = isinstance(line, Open)
    sums = {} if is_open else {"count": line.count, "processes": line.processes}
    said = {"kind": kind, "domain": line.domain, "name": line.name, "open": is_open}
    return {**said, **whose, **sums}


def _describe_region(line: Region) -> dict[str, object]:
    parts = line.parts_ns or (None, None, None)
    found = {
        **_describe(line, line.kind), "rows": line.rows, "total_ns": line.total_ns,
        "share_pct": 100 * line.share, "mean_ns": line.mean_ns, "min_ns": line.min_ns,
        "max_ns": line.max_ns,
        **dict(zip(("p50_ns", "p95_ns", "p99_ns"), parts, strict=True)),
    }  # fmt: skip
    if line.slowest is not None:
        found |= {"slowest_rank": line.slowest.rank, "slowest_pid": line.slowest.pid,
                  "slowest_ns": line.slowest_ns, "spread_pct": 100 * line.spread}  # fmt: skip
    return found


def _describe_counter(line: Counter) -> dict[str, object]:
    return {**_describe(line, "counter"), "last": line.last, "min": line.min, "mean": line.mean,
            "max": line.max}  # fmt: skip


def _describe_marker(line: Marker) -> dict[str, object]:
    return {**_describe(line, "marker"), "last_wall_ns": line.last_ns}


def _describe_open(line: Open) -> dict[str, object]:
    return {**_describe(line, line.kind), "open_ns": line.open_ns, "begin_wall_ns": line.begin_ns,
            "thread": line.thread, "thread_name": line.thread_name, "id": line.id}  # fmt: skip


# ---- for people ----------------------------------------------------------------------------------


class _Column(NamedTuple):
    name: str
    right: bool
    show: Callable[[Any], str]
    colour: str = ""


def _draw_all(report: Report, args: argparse.Namespace, file: IO[str]) -> None:
    """What is open for long comes first: it is what one looks for."""
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


def _tell_loss(regions: Sequence[Region], file: IO[str]) -> None:
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
    if file.isatty():
        columns = _fit(columns, lines, shutil.get_terminal_size().columns)
    else:
        columns = [column for column in columns if column.name]  # a bar is for the eye

    def paint(_at: int, column: int, cell: str) -> str:
        colour = columns[column].colour
        return f"{colour}{cell}\x1b[0m" if colour else cell

    rows = [[column.show(line) for column in columns] for line in lines]
    _table.draw_table([column.name for column in columns], rows, file,
                     [column.right for column in columns], paint)  # fmt: skip


def _fit(columns: list[_Column], lines: Sequence[Any], room: int) -> list[_Column]:
    """Leave out what matters least until the rest has room: names are to be read whole."""
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


def _list_regions(regions: Sequence[Region], by_rank: bool, several: bool) -> list[_Column]:
    def part(at: int) -> Callable[[Region], str]:
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
        _Column("", False, lambda line: show_curve(line.course), "\x1b[36m"),
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


def _name_process(process: Process | None) -> str:
    if process is None:
        return ""
    return f"pid {process.pid}" if process.rank is None else str(process.rank)


def _name_slowest(line: Region) -> str:
    if line.slowest is None:
        return ""
    word = "" if line.slowest.rank is None else "rank "
    return f"{word}{_name_process(line.slowest)}: {show_duration(line.slowest_ns)}"


def _name_thread(line: Open) -> str:
    return f"{line.thread} {clean(line.thread_name or '')}".strip()


def _show_moment(wall_ns: int | None) -> str:
    return "" if wall_ns is None else show_moment(wall_ns)
