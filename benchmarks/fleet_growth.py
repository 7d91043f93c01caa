"""What grows with a job, from 8 ranks to 1,024, as one table for docs/fleet.md.

    python benchmarks/fleet_growth.py FOLDER [PART…]

FOLDER keeps the recording, the job that it was multiplied into and the figures, so that the parts
(agents, places, shipping) can be measured one by one; the table has all that is there."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import fleet_job
from bench_fleet import OF_RANKS, PARTS, measure_part
from result import Result
from run import format_goal, format_number

_ROUNDS = 5
_RANKS = ("8", "64", "1,024")


def measure(folder: Path, parts: list[str]) -> None:
    """Measure parts, and write down what was found."""
    if not (folder / "source").exists():
        fleet_job.record(folder / "source")
    for part in parts:
        found = measure_part(part, str(folder), _ROUNDS)
        rows = [(one.what, one.unit, list(one.samples), one.goal) for one in found]
        (folder / f"{part}.json").write_text(json.dumps(rows))


def read(folder: Path) -> list[Result]:
    """Return all figures that were written down."""
    files = [folder / f"{part}.json" for part in PARTS]
    rows = [row for file in files if file.exists() for row in json.loads(file.read_text())]
    return [Result(what, unit, samples, goal) for what, unit, samples, goal in rows]


def draw(results: list[Result]) -> str:
    """Return the table: a line for each quantity, a column for each size of the job."""
    found: dict[str, dict[str, Result]] = {}
    for one in results:
        ranks, mark, what = one.what.partition(OF_RANKS)
        found.setdefault(what if mark else one.what, {})[ranks if mark else _RANKS[0]] = one
    lines = [f"| | {' | '.join(f'{ranks} ranks' for ranks in _RANKS)} | goal | |",
             "|---|" + "---:|" * (len(_RANKS) + 1) + "---|"]  # fmt: skip
    for what, sizes in found.items():
        cells = [format_number(sizes[ranks].value, sizes[ranks].unit) if ranks in sizes else ""
                 for ranks in _RANKS]  # fmt: skip
        last = sizes.get(_RANKS[-1]) or sizes[_RANKS[0]]
        goal, verdict = ("", "") if last.goal is None else (format_goal(last), last.verdict)
        lines.append(f"| {' | '.join((what, *cells, goal, verdict))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    to = Path(sys.argv[1]).resolve()
    measure(to, sys.argv[2:] or list(PARTS))
    print(draw(read(to)))
