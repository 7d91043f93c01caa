"""Show where the time of a step goes: the modules of a PyTorch model, as a tree."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import IO

from sonde import plugins
from sonde.analysis.module_tree import ModuleNode
from sonde.analysis.modules import (
    LAST,
    SORTS,
    ModuleProfile,
    ModuleReport,
    ProcessSteps,
    StepSelection,
    arrange,
    find_spread_pct,
    make_table,
    read_overhead,
    read_report,
    read_source_detail,
    show_name,
)
from sonde.analysis.profile import Selection
from sonde.analysis.window import find_window
from sonde.cli import _options, _table
from sonde.cli._missing import tell_missing
from sonde.cli._recordings import open_any, tell_missing_hosts
from sonde.cli._terminal import fill
from sonde.cli.export import name_file, write_stdout
from sonde.errors import ConfigError
from sonde.export.files import write_file
from sonde.store.recording import Recording
from sonde.words import (
    MISSING,
    find_pct,
    show_bar,
    show_bytes,
    show_count,
    show_duration,
    show_pct,
)

_PARTS = ("input_wait", "host_to_device", "forward", "backward", "optimizer", "other")
GROUP = "ask"
EXAMPLES = (
    "sonde modules 4242",
    "sonde modules 4242 --steps 100-200 --to flamegraph",
    "sonde modules train-7@slurm --depth 1    all ranks: the fastest, the slowest, the spread",
)
_BAR = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.add_target(parser, "the recording of a PyTorch job", cluster=True)
    _options.add_window(parser)
    parser.add_argument(
        "--steps", metavar="A-B",
        help="only these steps: A-B, A, A- or -B (default: all but the first, which warms up)",
    )  # fmt: skip
    parser.add_argument(
        "--evaluation", action="store_true",
        help="steps of evaluation (no backward pass, no optimizer) instead of those of training",
    )  # fmt: skip
    _options.add_count(parser, "--depth", least=0,
                       what="show N levels below the model; 0 is the model alone")  # fmt: skip
    parser.add_argument("--sort", choices=SORTS, metavar="COLUMN",
                        help="what comes first: %(choices)s (default: order; of a list, "
                        "self)")  # fmt: skip
    parser.add_argument("--flat", choices=("type", "name"),
                        help="a list by type or name instead of a tree")  # fmt: skip
    parser.add_argument(
        "--all", action="store_true",
        help="do not fold repeated blocks into one line (csv and json never do)",
    )  # fmt: skip
    _options.add_format(parser, ("table", "csv", "json"))
    _options.add_output(parser)
    parser.add_argument(
        "--to", choices=("collapsed", "flamegraph", "svg"), metavar="FORMAT",
        help="write one mean step for other viewers: collapsed, flamegraph or svg",
    )  # fmt: skip
    _options.add_cluster_timeout(parser)


def run(args: argparse.Namespace) -> int:
    recording = open_any(args.target, args.timeout)
    tell_missing(recording.sessions)  # first: it may be why there are no modules
    window = find_window(recording, args.since, args.until, last=LAST)
    report = read_report(
        recording, StepSelection(window, *_read_range(args.steps), args.evaluation)
    )
    if args.to:
        profile = ModuleProfile(recording, Selection(window))
        profile.report = report
        _export(recording, profile, args)
        return tell_missing_hosts(recording)
    folds = args.format == "table" and not args.all
    nodes = arrange(report, sort=args.sort, flat=args.flat, depth=args.depth, folds=folds)
    if args.format == "table":
        lines = list(_describe_report(report, recording))
        _table.write_text(args.output, lambda file: _draw_all(lines, nodes, report, args, file))
    else:
        rows = make_table(nodes, report, flat=bool(args.flat))
        _table.write_rows(rows, args.format, args.output)
    return tell_missing_hosts(recording)


def _read_range(text: str | None) -> tuple[int | None, int | None]:
    if text is None:
        return None, None
    first, dash, last = text.strip().partition("-")
    ends = [int(word) if word.isdecimal() else None for word in (first, last)]
    if (first and ends[0] is None) or (last and ends[1] is None) or not (first or last):
        raise ConfigError(f"--steps {text} is not understood: 100-200, 100-, -200 or 100")
    if dash and None not in ends and ends[0] > ends[1]:  # type: ignore[operator]
        raise ConfigError(f"--steps {text} ends before it begins")
    return ends[0], ends[1] if dash else ends[0]


def _export(recording: Recording, profile: ModuleProfile, args: argparse.Namespace) -> None:
    exporter = plugins.load("export.formats", args.to)
    if args.output == "-":
        write_stdout(exporter, profile)
        return
    path = args.output or name_file(recording, ".modules" + exporter.SUFFIX)
    write_file(path, exporter, profile)
    if sys.stderr.isatty():
        print(f"wrote {path}; open it with {exporter.OPEN.format(file=path)}", file=sys.stderr)


# ---- for people ----------------------------------------------------------------------------------


def _describe_report(report: ModuleReport, recording: Recording) -> Iterator[str]:
    """Yield the verdict: how long a step takes, how that splits, and how well it is known."""
    steps, whole = report.steps, report.step_s
    shares = {part: find_pct(median(getattr(one, part) for one in steps), whole) for part in _PARTS}
    words = [f"{part.replace('_', ' ')} {_show_pct(share)}" for part, share in shares.items()
             if share >= 0.05]  # fmt: skip
    count = sum(one.count for one in steps)
    numbers = f"{min(one.first for one in steps)}-{max(one.last for one in steps)}"
    middle = _show_s(median(one.median for one in steps))
    line = f"{_show_s(whole)} a step (mean of {count}, {numbers}; median {middle}): "
    yield "; ".join([line + ", ".join(words), *_qualify(report, recording)])
    if len(steps) > 1:
        fast, *_, slow = sorted(steps, key=lambda one: one.duration)
        spread = _show_pct(find_spread_pct([one.duration for one in steps]))
        ends = [f"{_name_process(one)}: {_show_s(one.duration)}" for one in (fast, slow)]
        differ = f"the fastest is {ends[0]}, the slowest {ends[1]}, the spread {spread}"
        if spread == _show_pct(0.0):
            differ = "a step takes equally long in all of them"
        yield f"medians of {len(steps):,} processes; {differ}"
    shallow = sum(one.shallow for one in steps)
    if shallow:
        yield f"{shallow} steps are left out: recorded in less detail, to keep to the budget"
    others = sum(one.other_kind for one in steps)
    if others:
        kind = "training are left out"
        if steps[0].training:
            kind = "evaluation are left out: see --evaluation"
        yield f"{others} steps of {kind}"
    lost = sum(one.lost for one in steps)
    if lost:
        yield f"{lost} calls of modules found no room: their time is in their callers' self"


def _qualify(report: ModuleReport, recording: Recording) -> Iterator[str]:
    """Yield what the device does, what recording costs, and how well backward is known."""
    if report.device_s:
        yield f"{_show_s(report.device_s)} of the device in modules"
    overhead = read_overhead(recording)
    if overhead is not None:
        yield f"recording costs {_show_bounds(*overhead)}"
    owned = [one.owned for one in report.steps if one.owned is not None]
    if owned:
        yield f"{_show_pct(100 * median(owned))} of backward is known by module"
    way = read_source_detail(recording)
    if way:
        yield way


def _show_bounds(least: float, most: float | None) -> str:
    """Show what is known of a share: an interval, or one bound."""
    low = f"{least:.1f}"
    if most is None:
        return f"at least {least:.2f} %"
    if least < 0.05:
        return f"less than {max(most, 0.1):.1f} %"
    return f"{low} %" if low == f"{most:.1f}" else f"{low} to {most:.1f} %"


def _draw_all(
    lines: Sequence[str],
    nodes: Sequence[ModuleNode],
    report: ModuleReport,
    args: argparse.Namespace,
    file: IO[str],
) -> None:
    for line in lines:
        file.write(fill(line, file) + "\n")
    file.write("\n")
    columns = known = _list_columns(nodes, report, args.flat)
    if file.isatty():
        columns = _fit(columns, nodes, shutil.get_terminal_size().columns)
    else:
        columns = [column for column in columns if column[0]]
    names = [name for name, _right, _show in columns]
    rows = [
        [show(node) or (MISSING if right else "") for _name, right, show in columns]
        for node in nodes
    ]

    def paint(at: int, column: int, cell: str) -> str:
        if names[column] == "":
            filled = round(_BAR * nodes[at].own_s / report.step_s) if report.step_s else 0
            return f"\x1b[36m{cell[:filled]}\x1b[2m{cell[filled:]}\x1b[0m"
        faint = nodes[at].total_s < report.step_s / 100
        return f"\x1b[2m{cell}\x1b[0m" if faint else cell

    # Where names and numbers do not fit even so, names are cut.
    _table.draw_table(
        names, rows, file, [right for _name, right, _show in columns], paint,
        keep=("fastest", "slowest"),
    )  # fmt: skip
    left_out = [name for name, _right, _show in known if name and name not in names]
    if left_out:
        note = f"no room for {', '.join(left_out)}: a pipe or --format json has all"
        file.write(fill(note, file) + "\n")


Show = Callable[[ModuleNode], str]
Column = tuple[str, bool, Show]  # its name, is it on the right, what it shows; the bar has no name


def _list_columns(
    nodes: Sequence[ModuleNode], report: ModuleReport, flat: str | None
) -> list[Column]:
    """Return the columns in which some node has something."""

    def share(node: ModuleNode) -> float:
        # A list has every second once only as self time.
        return find_pct(node.own_s if flat else node.total_s, report.step_s)

    found: list[Column] = [
        (flat or "module", False, (lambda node: node.label) if flat else _indent),
        ("type", False, lambda node: "" if flat == "type" else node.type),
        ("", False, lambda node: show_bar(min(100.0, share(node)), 100, _BAR)),
        ("share", True, lambda node: f"{share(node):.1f} %"),
        ("total", True, lambda node: _show_s(node.total_s)),
        ("forward", True, lambda node: _show_s(node.total.get("forward"))),
        ("backward", True, lambda node: _show_s(node.total.get("backward"))),
        ("recompute", True, lambda node: _show_s(node.total.get("recompute"))),
        ("self", True, lambda node: _show_s(node.own_s)),
        ("device", True, lambda node: _show_s(node.device)),
        ("of it", True, lambda node: _show_part(node.device, report.device_s)),
        ("memory", True, lambda node: _show_mb(node.allocated)),
        ("calls", True, lambda node: f"{node.calls:.4g}" if node.calls else ""),
        ("parameters", True, lambda node: show_count(node.parameters)),
    ]
    if len(report.steps) > 1:
        found += [
            ("fastest", False, lambda node: _name_extreme(node, report, 0)),
            ("slowest", False, lambda node: _name_extreme(node, report, 1)),
            ("spread", True, lambda node: _show_pct(find_spread_pct([*node.total_of.values()]))),
        ]
    return [column for column in found if any(column[2](node) for node in nodes)]


def _fit(columns: list[Column], nodes: Sequence[ModuleNode], room: int) -> list[Column]:
    """Leave out what matters least until the rest has room: names must not be cut."""
    for name in ("parameters", "calls", "type", "", "memory", "recompute", "fastest", "self",
                 "spread"):  # fmt: skip
        widths = [max(len(show(node)) for node in nodes) for _name, _right, show in columns]
        heads = [len(name) for name, _right, _show in columns]
        if sum(map(max, widths, heads)) + 2 * (len(columns) - 1) <= room:
            break
        columns = [column for column in columns if column[0] != name]
    return columns


def _indent(node: ModuleNode) -> str:
    return "  " * node.depth + show_name(node)


def _name_extreme(node: ModuleNode, report: ModuleReport, which: int) -> str:
    one = report.find_extremes(node)[which]
    return f"{_name_process(one)}: {_show_s(node.total_of[one.part])}"


def _name_process(one: ProcessSteps) -> str:
    return f"pid {one.pid}" if one.rank is None else f"rank {one.rank}"


def _show_pct(percent: float) -> str:
    return f"{percent:.{0 if percent >= 9.95 else 1}f} %"


def _show_part(part: float | None, whole: float) -> str:
    return "" if part is None else show_pct(find_pct(part, whole))


def _show_s(seconds: float | None) -> str:
    return show_duration(seconds * 1e9) if seconds else ""


def _show_mb(megabytes: float | None) -> str:
    return "" if megabytes is None else show_bytes(round(megabytes * 1e6))
