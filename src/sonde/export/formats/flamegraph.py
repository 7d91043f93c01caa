"""A flame graph as one web page: search, zoom, threads, wall, CPU and GIL time, callers."""

from __future__ import annotations

import base64
import json
import zlib
from datetime import datetime, timezone
from html import escape
from typing import IO

from sonde.analysis.call_tree import grow, walk
from sonde.analysis.code_fold import tidy
from sonde.analysis.code_names import find_owner, shorten_file
from sonde.analysis.profile import Place, Profile, RecordedThread, Stack
from sonde.export.formats._asset import HUE_SPREAD, HUES, LEGEND, fill, read_asset
from sonde.session.stack_table import WEIGHTS

SUFFIX = ".html"
TEXT = True
IN_ORDER = False  # whether it needs the order of time
OPEN = "any browser"


def write(profile: Profile, file: IO[str]) -> None:
    """Write one page with compressed data, so that no name can act as HTML or script."""
    places: dict[Place, int] = {}
    parts: dict[RecordedThread, tuple[list[Stack], list[Stack]]] = {}
    for at, stacks in enumerate((profile.stacks, profile.rest)):
        for stack in stacks:
            parts.setdefault(stack.thread, ([], []))[at].append(stack)
    threads = [_describe(profile, thread, both, places) for thread, both in parts.items()]
    start_ns, end_ns = profile.span_ns
    data = {
        "weights": [name for at, name in enumerate(WEIGHTS) if _sum(profile, at)],
        "weight": profile.weight,
        "names": dict(zip(WEIGHTS, profile.weight_names, strict=True)),
        "unit": profile.unit,
        "start": datetime.fromtimestamp(start_ns // 10**9, timezone.utc).isoformat(),
        "seconds": (end_ns - start_ns) / 1e9,
        "rest": sum(stack.ns[0] for stack in profile.rest) // 1000,
        "samples": sum(stack.samples[0] for stack in profile.stacks),
        "places": _split(places, profile.folder),
        "spread": HUE_SPREAD,
        "legend": LEGEND,
        "threads": threads,
    }
    packed = zlib.compress(json.dumps(data, separators=(",", ":")).encode(), 9)
    page = fill(
        read_asset("flamegraph.html"),
        TITLE=escape(profile.label),
        STYLE=read_asset("flamegraph.css"),
        SCRIPT=read_asset("flamegraph.js"),
        DATA=base64.b64encode(packed).decode(),
    )
    file.write(page)


def _sum(profile: Profile, at: int) -> int:
    return sum(stack.ns[at] for stack in profile.stacks)


def _describe(
    profile: Profile,
    thread: RecordedThread,
    both: tuple[list[Stack], ...],
    places: dict[Place, int],
) -> dict[str, object]:
    """Return a thread and its tree; `rest` is the tree of the time in which it had no work."""
    work, rest = (_plant(profile, stacks, places) for stacks in both)
    return {"process": thread.process.label, "name": thread.label, **work, "rest": rest}


def _plant(profile: Profile, stacks: list[Stack], places: dict[Place, int]) -> dict[str, list[int]]:
    """Return the tree of stacks as columns: a node follows its caller, `up` levels above the node
    before it. Times are microseconds: more digits would be half of the page."""
    scale = 1000 if profile.unit == "ns" else 1
    root = grow((tidy(profile.path(stack.frames)), stack.ns) for stack in stacks)
    ups, numbers = [], []
    own: tuple[list[int], ...] = tuple([] for _ in WEIGHTS)
    last = -1
    for depth, name, node in walk(root, profile.by):
        ups.append(last + 1 - depth)
        numbers.append(places.setdefault(name, len(places)))
        for column, ns in zip(own, node.own, strict=True):
            column.append(round(ns / scale))
        last = depth
    return {"up": ups, "place": numbers, **dict(zip(WEIGHTS, own, strict=True))}


def _split(places: dict[Place, int], folder: str | None) -> dict[str, list[object]]:
    """Return places as columns; each file is named once."""
    files: dict[str, int] = {}
    return {
        "func": [place.func for place in places],
        "file": [files.setdefault(place.file, len(files)) for place in places],
        "line": [place.line for place in places],
        "files": list(files),
        "short": [shorten_file(file, folder) for file in files],
        "hues": [HUES[find_owner(file)] for file in files],
    }
