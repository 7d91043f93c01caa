"""Show where the time went: your own code as a call tree, each library call as one line."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Iterator, Sequence
from typing import IO

from sonde import environ
from sonde.analysis.code_names import MINE, shorten_file
from sonde.analysis.code_tree import SORTS, CodeNode, CodeTree, read_tree
from sonde.analysis.profile import Profile, Selection
from sonde.analysis.source_lines import read_source
from sonde.analysis.window import find_window
from sonde.cli import _options, _table
from sonde.cli._missing import tell_missing
from sonde.store.recording import open_recording
from sonde.words import clean, find_pct, show_duration

GROUP = "ask"
EXAMPLES = (
    "sonde tree 4242                          the last five minutes of a live process",
    "sonde tree 4242 --since 30s --sort waiting",
    "sonde tree gunicorn-7 --thread MainThread --limit 60",
)
_TIMES = "\N{MULTIPLICATION SIGN}"
_FIELDS = {
    "total_s": "double", "working_s": "double", "waiting_s": "double", "cpu_s": "double",
    "depth": "int64", "name": "string", "owner": "string", "file": "string", "line": "int64",
    "threads": "int64", "source": "string",
}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.add_target(parser, "the recording to look at")
    _options.add_window(parser)
    parser.add_argument("--sort", choices=SORTS, default="total",
                        help="the time that counts (default: %(default)s)")  # fmt: skip
    _options.add_limit(parser, 30, "lines; 0 is all")
    parser.add_argument(
        "--thread", metavar="NAME|ID", action="append", default=[],
        help="only this thread; may be a pattern like 'Pool*'; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--mine", metavar="PATTERN", action="append", default=[],
        help="files that count as your own code, like '*/site-packages/myapp/*'; may be repeated "
        "(the setting code.mine says the same for good)",
    )  # fmt: skip
    parser.add_argument("--all-frames", action="store_true",
                        help="fold nothing: every frame of every library")  # fmt: skip
    parser.add_argument("--idle", action="store_true",
                        help="also threads and event loops that have nothing to do")  # fmt: skip
    _options.add_format(parser, ("table", "csv", "json"))
    _options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    recording = open_recording(args.target)
    tell_missing(recording.sessions)
    with recording.freeze("python.stack_sample python.thread python.frame") as still:
        window = find_window(still, args.since, args.until)
        profile = Profile(still, Selection(window, tuple(args.thread)))
        tree = read_tree(profile, mine=args.mine, all_frames=args.all_frames, idle=args.idle)
    if args.format != "table":
        found = tree.list_nodes(args.sort, least=0)
        records = [_make_record(depth, node, tree) for depth, node in found]
        _table.write_records(records, _FIELDS, args.format, args.output)
        return 0
    nodes = tree.list_nodes(args.sort, args.limit)
    _table.write_text(args.output, lambda file: _draw(tree, nodes, args, file))
    return 0


def _make_record(depth: int, node: CodeNode, tree: CodeTree) -> dict[str, object]:
    times = (node.total_ns, node.working_ns, node.waiting_ns, node.cpu_ns)
    step = node.step
    values = (
        *(round(ns / 1e9, 6) for ns in times), depth, step.name, step.owner, step.file or None,
        node.line or None, len(node.threads), _find_source(node, tree) or None,
    )  # fmt: skip
    return dict(zip(_FIELDS, values, strict=True))


# ---- for people ----------------------------------------------------------------------------------


def _draw(
    tree: CodeTree, nodes: Sequence[tuple[int, CodeNode]], args: argparse.Namespace, file: IO[str]
) -> None:
    for line in _describe(tree):
        file.write(line + "\n")
    if not nodes:
        return
    coloured = file.isatty() and environ.uses_colour()
    width = shutil.get_terminal_size().columns if file.isatty() else 160
    folder = tree.profile.recording.sessions[0].meta.cwd
    guides = _draw_guides(nodes)
    labels = [guide + _name(node) for guide, (_, node) in zip(guides, nodes, strict=True)]
    places = [_show_place(node, folder) for _, node in nodes]
    room = min(max(map(len, labels)), max(30, width - 30 - max(map(len, places))))
    file.write("\n  total  share  waiting\n")
    for (_, node), label, place in zip(nodes, labels, places, strict=True):
        numbers = _show_numbers(node, tree)
        left = f"{numbers}  {_cut(label, room):<{room}}  {place}"
        source = _cut(_find_source(node, tree), width - len(left) - 2) if place else ""
        if coloured:
            left = f"{numbers}  {_paint(node, f'{_cut(label, room):<{room}}')}  {place}"
            source = f"\x1b[2m{source}\x1b[0m"
        file.write(f"{left}  {source}".rstrip() + "\n")
    hidden = len(tree.list_nodes(args.sort)) - len(nodes)
    if hidden > 0:
        lines = "1 line with less time is" if hidden == 1 else f"{hidden} lines with less time are"
        file.write(f"\n{lines} left out: --limit 0 shows all\n")


def _describe(tree: CodeTree) -> Iterator[str]:
    """Yield what was looked at, and how much of it was work."""
    root, profile = tree.root, tree.profile
    threads, processes = len(root.threads), len({part for part, _ in root.threads})
    of = f"{threads} thread{'s' * (threads != 1)}"
    if processes > 1:
        of += f" of {processes} processes"
    yield clean(
        f"{profile.label}: {show_duration(root.working_ns)} working "
        f"({show_duration(root.cpu_ns)} of CPU), {show_duration(root.waiting_ns)} waiting, in {of}"
    )
    if tree.rest_ns:
        rest = show_duration(tree.rest_ns)
        yield f"({rest} of threads and event loops without work is left out: --idle shows it)"


def _show_numbers(node: CodeNode, tree: CodeTree) -> str:
    share = find_pct(node.total_ns, tree.root.total_ns)
    waiting = show_duration(node.waiting_ns) if node.waiting_ns >= node.total_ns / 100 else ""
    return f"{show_duration(node.total_ns):>7}  {share:>3.0f} %  {waiting:>7}"


def _draw_guides(nodes: Sequence[tuple[int, CodeNode]]) -> list[str]:
    """Return the lines that lead from a caller to what it calls."""
    guides: list[str] = []
    followed = set[int]()  # depths at which another node follows
    for depth, _ in reversed(nodes):
        lines = "".join("│ " if level in followed else "  " for level in range(1, depth))
        mark = "├ " if depth in followed else "└ "
        guides.append(lines + mark if depth else "")
        followed = {level for level in followed if level < depth} | {depth}
    return guides[::-1]


def _name(node: CodeNode) -> str:
    many = len(node.threads)
    return clean(node.step.name) + (f" {_TIMES}{many}" if many > 1 else "")


def _show_place(node: CodeNode, folder: str | None) -> str:
    if not node.step.file or not node.line:
        return ""
    return clean(f"{shorten_file(node.step.file, folder)}:{node.line}")


def _find_source(node: CodeNode, tree: CodeTree) -> str:
    session = tree.profile.recording.sessions[0]
    if not node.step.file or not node.line or session.host != os.uname().nodename:
        return ""
    return clean(read_source(node.step.file, node.line, session.start_wall_ns))


def _paint(node: CodeNode, label: str) -> str:
    return f"\x1b[{1 if node.step.owner == MINE else 36}m{label}\x1b[0m"


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else text[: max(0, room - 1)] + "…" if room > 1 else ""
