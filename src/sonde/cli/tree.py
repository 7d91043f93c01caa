"""Show where the time went: your own code as a call tree, each library call as one line."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from typing import IO

from sonde import environ
from sonde.analysis import awaits
from sonde.analysis.code_tree import SORTS, CodeNode, CodeTree, read_tree
from sonde.analysis.profile import Profile, Selection
from sonde.analysis.wait_words import WAITS
from sonde.analysis.window import find_window
from sonde.cli import _options, _table
from sonde.cli._await_text import draw_awaits
from sonde.cli._missing import tell_missing
from sonde.cli._tree_text import TIMES, draw_nodes, find_source
from sonde.session.target import find_newest
from sonde.store.recording import open_recording
from sonde.words import clean, count_things, find_pct, show_duration

GROUP = "ask"
EXAMPLES = (
    "sonde tree 4242                          since the start of the recording",
    "sonde tree 4242 --since 30s --sort waiting",
    "sonde tree gunicorn-7 --thread MainThread --limit 60",
)
_STARVED = 0.1  # a share of the working time without a processor from which on it is told
_TOLD = 0.1  # a share of the waiting time from which on a kind of wait is told
_MOST_WAITS = 3  # kinds that are told
_COMPILED = 0.2  # a share of all time in a compiled function from which on that is told
_SEES_COMPILED = "while it runs, `sonde stacks --native` shows its functions"
_FIELDS = {
    "total_s": "double", "working_s": "double", "waiting_s": "double", "cpu_s": "double",
    "depth": "int64", "name": "string", "owner": "string", "file": "string", "line": "int64",
    "threads": "int64", "source": "string",
}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.add_target(parser, "the recording to look at (default: the newest)", optional=True)
    _options.add_window(parser)
    parser.add_argument("--sort", choices=SORTS, default="total",
                        help="the time that counts (default: %(default)s)")  # fmt: skip
    _options.add_count(parser, "-n", "--limit", least=0,
                       what="show at most N lines; 0 is all (default: what takes 5 %% of the "
                       "time, or else the ten heaviest)")  # fmt: skip
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
    recording = open_recording(args.target or find_newest(environ.find_root()))
    tell_missing(recording.sessions)
    wanted = f"python.stack_sample python.thread {awaits.TABLES}"
    with recording.freeze(wanted) as still:
        window = find_window(still, args.since, args.until)
        profile = Profile(still, Selection(window, tuple(args.thread)))
        tree = read_tree(
            profile, mine=args.mine, all_frames=args.all_frames, idle=args.idle,
            hot_calls=not args.all_frames,
        )  # fmt: skip
        awaited = list[awaits.Await]()
        if not args.thread and args.format == "table":
            inside = awaits.make_inside(window)
            awaited = awaits.read_awaits(still, inside, profile.make_owner(args.mine))
    if args.format != "table":
        found = tree.list_nodes(args.sort, least=0)
        records = [_make_record(depth, node, tree) for depth, node in found]
        _table.write_records(records, _FIELDS, args.format, args.output)
        return 0
    nodes = _choose_nodes(tree, args.sort, args.limit)
    _table.write_text(args.output, lambda file: _draw(tree, nodes, awaited, args, file))
    return 0


def _choose_nodes(tree: CodeTree, sort: str, limit: int | None) -> list[tuple[int, CodeNode]]:
    if limit is None:
        return tree.list_main_nodes(sort)
    return tree.list_nodes(sort, limit, 0.01 if limit else 0.0)


def _make_record(depth: int, node: CodeNode, tree: CodeTree) -> dict[str, object]:
    times = (node.total_ns, node.working_ns, node.waiting_ns, node.cpu_ns)
    step = node.step
    values = (
        *(round(ns / 1e9, 6) for ns in times), depth, step.name, step.owner, step.file or None,
        node.line or None, len(node.threads), find_source(node, tree) or None,
    )  # fmt: skip
    return dict(zip(_FIELDS, values, strict=True))


# ---- for people ----------------------------------------------------------------------------------


def _draw(
    tree: CodeTree, nodes: Sequence[tuple[int, CodeNode]], awaited: Sequence[awaits.Await],
    args: argparse.Namespace, file: IO[str],
) -> None:  # fmt: skip
    width = shutil.get_terminal_size().columns if file.isatty() else 10**6
    for line in _describe(tree):
        file.write(textwrap.fill(line, width, subsequent_indent="  ") + "\n")
    if nodes:
        file.write("\n   total  share" + ("   waiting" if _has_waits(tree) else "") + "\n")
        draw_nodes(tree, nodes, _show_numbers, _name, file, _name_wait)
    _tell_left_out(tree, len(nodes), args.sort, width, file)
    for name, time_ns in tree.compiled.items():
        if time_ns > _COMPILED * tree.root.total_ns:
            line = f"{name} is compiled: what it calls has no frames of Python; {_SEES_COMPILED}"
            file.write("\n" + textwrap.fill(clean(line), width) + "\n")
    draw_awaits(awaited, tree.profile.recording.sessions[0], file)


def _tell_left_out(tree: CodeTree, shown: int, sort: str, width: int, file: IO[str]) -> None:
    left_out, hidden = list[str](), len(tree.list_nodes(sort, least=0)) - shown
    if hidden > 0:
        left_out.append(f"{count_things(hidden, 'line')} with less time (--limit 0 shows all)")
    if tree.rest_ns:
        rest = show_duration(tree.rest_ns)
        left_out.append(f"{rest} of threads and event loops without work (--idle)")
    if left_out:
        file.write("\n" + textwrap.fill(f"left out: {', '.join(left_out)}", width) + "\n")


def _describe(tree: CodeTree) -> Iterator[str]:
    """Yield what was looked at, and how much of it was work."""
    root = tree.root
    threads = len(root.threads)
    of = f", {count_things(threads, 'thread')}" if threads != 1 else ""
    work = f"{show_duration(root.working_ns)} working ({show_duration(root.cpu_ns)} of CPU)"
    waits = f"{show_duration(root.waiting_ns)} waiting{_describe_waits(tree)}"
    yield clean(f"{tree.profile.label}{of}: {work}, {waits if root.waiting_ns else 'no waiting'}")
    if tree.queue_ns > _STARVED * root.working_ns:
        queue = show_duration(tree.queue_ns)
        yield f"(for {queue} of the work it was ready to run, but others had the processors)"


def _describe_waits(tree: CodeTree) -> str:
    """Return what most of the waiting time was for: one kind of wait, or the amount of each."""
    whole, kinds = tree.root.waiting_ns, dict[str | None, int]()
    for (_, kind), ns in tree.root.waits.items():
        kinds[kind] = kinds.get(kind, 0) + ns
    ranked = sorted(kinds.items(), key=lambda item: -item[1])
    told = [(WAITS[kind], ns) for kind, ns in ranked if kind in WAITS and ns >= _TOLD * whole]
    if len(told) == 1 and told[0][1] >= (1 - _TOLD) * whole:
        return f" for {told[0][0]}"
    amounts = [f"{show_duration(ns)} for {words}" for words, ns in told[:_MOST_WAITS]]
    return f" ({', '.join(amounts)})" if amounts else ""


def _has_waits(tree: CodeTree) -> bool:
    return tree.root.waiting_ns >= tree.root.total_ns / 100


def _show_numbers(node: CodeNode, tree: CodeTree) -> str:
    share = find_pct(node.total_ns, tree.root.total_ns)
    numbers = f"{show_duration(node.total_ns):>8}  {share:>3.0f} %"  # 3.10 min
    if not _has_waits(tree):
        return numbers
    waiting = show_duration(node.waiting_ns) if node.waiting_ns >= node.total_ns / 100 else ""
    return f"{numbers}  {waiting:>8}"


def _name(node: CodeNode) -> str:
    many = len(node.threads)
    return clean(node.step.name) + (f" {TIMES}{many}" if many > 1 else "")


def _name_wait(node: CodeNode) -> str:
    """Return what a node waits for, where its name does not say it."""
    wait = node.unsaid_wait
    return f"waiting for {WAITS[wait]}" if wait in WAITS else ""
