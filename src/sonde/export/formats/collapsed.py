"""Folded stacks, one line each: flamegraph.pl, speedscope, inferno."""

from __future__ import annotations

from typing import IO

from sonde.analysis.profile import Profile
from sonde.words import clean

SUFFIX = ".collapsed.txt"
TEXT = True
IN_ORDER = False  # whether it needs the order of time
OPEN = "flamegraph.pl {file} > graph.svg, or drop it on https://www.speedscope.app"


def write(profile: Profile, file: IO[str]) -> None:
    """Write `process;thread;func (file:line);… ns`; the process only if there are several."""
    several = len({stack.thread.process for stack in profile.weighed}) > 1
    lines: dict[str, int] = {}
    for stack in profile.weighed:
        head = [stack.thread.process.label] if several else []
        frames = (place.label for place in profile.path(stack.frames))
        line = ";".join(map(_clean, [*head, stack.thread.label, *frames]))
        lines[line] = lines.get(line, 0) + stack.ns[profile.by]
    for line, ns in sorted(lines.items()):
        if ns:  # the first sample of a thread stands for no time
            file.write(f"{line} {ns}\n")


def _clean(text: str) -> str:
    """Replace what separates frames and lines."""
    return clean(text.replace(";", ":"))
