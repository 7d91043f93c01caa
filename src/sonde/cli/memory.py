"""Show what the program's memory was allocated by: a tree of your own code, or its lines."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from typing import IO

from sonde import plugins
from sonde.analysis.code_names import shorten_file
from sonde.analysis.code_tree import CodeNode, CodeTree
from sonde.analysis.heap import (
    BY,
    LAST,
    TABLES,
    Heap,
    HeapLine,
    HeapTime,
    list_lines,
    read_heap_tree,
)  # fmt: skip
from sonde.analysis.window import find_window
from sonde.cli import _options, _table
from sonde.cli._missing import tell_missing
from sonde.cli._terminal import fill
from sonde.cli._tree_text import draw_nodes
from sonde.export.files import write_file
from sonde.store.recording import open_recording
from sonde.words import clean, find_pct, show_bytes, show_count

GROUP = "ask"
EXAMPLES = (
    "sonde memory 4242                    what holds memory; first: config 4242 source.heap=on",
    "sonde memory 4242 --since 10min      what has grown in the last ten minutes",
    "sonde memory 4242 --by allocated --lines      where blocks come and go",
)
_FORMATS = ("flamegraph", "collapsed")
_FIELDS = {
    "alive_bytes": "int64", "alive_blocks": "int64", "allocated_bytes": "int64",
    "allocated_blocks": "int64", "func": "string", "file": "string", "line": "int64",
    "call": "string", "type": "string",
}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.add_target(parser, "the recording to look at")
    _options.add_window(parser)
    parser.add_argument(
        "--by", choices=BY, default="alive",
        help="what counts: alive (not freed yet), or allocated (freed or not) "
        "(default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--lines", action="store_true",
                        help="a list of lines instead of the tree")  # fmt: skip
    _options.add_limit(parser, 30, "lines")
    parser.add_argument(
        "--mine", metavar="PATTERN", action="append", default=[],
        help="files that count as your own code, like '*/site-packages/myapp/*'; may be repeated",
    )  # fmt: skip
    parser.add_argument("--all-frames", action="store_true",
                        help="fold nothing: every frame of every library")  # fmt: skip
    parser.add_argument("--to", choices=_FORMATS, metavar="FORMAT",
                        help="write a file for a viewer: %(choices)s")  # fmt: skip
    _options.add_format(parser, ("table", "csv", "json"))
    _options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    recording = open_recording(args.target)
    tell_missing(recording.sessions)
    with recording.freeze(TABLES) as still:
        window = find_window(still, args.since, args.until, last=LAST)
        heap = Heap(
            still,
            window.since_ns if args.since else None,
            window.until_ns if args.until else None,
        )
        if args.to:
            return _export(heap, args)
        if args.format != "table":
            found = list_lines(heap, args.by, args.mine)
            records = [{name: getattr(line, name) for name in _FIELDS} for line in found]
            _table.write_records(records, _FIELDS, args.format, args.output)
            return 0
        draw = _draw_lines if args.lines else _draw_tree
        _table.write_text(args.output, lambda file: draw(heap, args, file))
    return 0


def _export(heap: Heap, args: argparse.Namespace) -> int:
    exporter = plugins.load("export.formats", args.to)
    path = args.output or f"{heap.recording.sessions[0].id}-memory{exporter.SUFFIX}"
    profile = heap.make_profile(args.by)
    write_file(path, exporter, profile)
    if sys.stderr.isatty():
        how = exporter.OPEN.format(file=path)
        print(
            f"wrote {path} ({os.path.getsize(path):,} bytes); open it with {how}", file=sys.stderr
        )
    return 0


# ---- for people ----------------------------------------------------------------------------------


def _draw_tree(heap: Heap, args: argparse.Namespace, file: IO[str]) -> None:
    tree = read_heap_tree(heap, args.by, args.mine, all_frames=args.all_frames)
    nodes = tree.list_nodes("total", args.limit, 0.01 if args.limit else 0.0)
    for line in _describe(heap, args.by, tree):
        file.write(fill(line, file) + "\n")
    if not nodes:
        return
    file.write("\n      bytes  share\n")
    draw_nodes(tree, nodes, _show_numbers, lambda node: clean(node.step.name), file)
    hidden = len(tree.list_nodes("total", least=0)) - len(nodes)
    if hidden > 0:
        file.write(f"\n{hidden} lines with less memory are left out: --limit 0 shows them\n")


def _describe(heap: Heap, by: str, tree: CodeTree) -> Iterator[str]:
    """Yield what was looked at, and how much there is of it."""
    whole = show_bytes(tree.root.total_ns)
    part = heap.recorded
    be = "was" if part and part.is_over else "is"
    what = f"of memory {be} alive" if by == "alive" else "were allocated"
    if heap.since_ns is not None:
        what = "more are alive than before" if by == "alive" else "were allocated in that time"
    yield clean(f"{tree.profile.label}: {whole} {what}, as an estimate from samples")
    if part is not None:
        yield _describe_time(part)
    age = heap.describe_age()
    if age:
        yield f"({age})"
    if tree.rest_ns:
        yield f"(other places hold {show_bytes(tree.rest_ns)} less than before)"


def _describe_time(part: HeapTime) -> str:
    """Return of which time the numbers are."""
    until = f"to {_show_time(part.off_ns)}" if part.off_ns else "on"
    why = clean(f", {part.why}") if part.why else ""
    return (
        f"(the heap was recorded from {_show_time(part.on_ns)} {until}{why}: what was allocated "
        "before is not in it)"
    )


def _show_time(wall_ns: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(wall_ns // 10**9))


def _show_numbers(node: CodeNode, tree: CodeTree) -> str:
    share = find_pct(node.total_ns, tree.root.total_ns)
    return f"{show_bytes(node.total_ns):>11}  {share:>3.0f} %"


def _draw_lines(heap: Heap, args: argparse.Namespace, file: IO[str]) -> None:
    found = list_lines(heap, args.by, args.mine)
    folder = heap.recording.sessions[0].meta.cwd
    shown = found[: args.limit or None]
    names = ("alive", "blocks", "allocated", "blocks", "type", "call", "place")
    if heap.recorded is not None:
        file.write(fill(_describe_time(heap.recorded), file) + "\n")
    _table.draw_rows(names, [_show_line(line, folder) for line in shown], file)
    if len(shown) < len(found):
        rest = len(found) - len(shown)
        file.write(f"\n{rest} lines with less memory are left out: --limit 0 shows them\n")


def _show_line(line: HeapLine, folder: str | None) -> tuple[object, ...]:
    place = line.func
    if line.file:
        place = f"{shorten_file(line.file, folder)}:{line.line} in {line.func}"
    return (
        show_bytes(line.alive_bytes), show_count(line.alive_blocks),
        show_bytes(line.allocated_bytes), show_count(line.allocated_blocks),
        line.type and clean(line.type), line.call and clean(line.call), clean(place),
    )  # fmt: skip
