"""Every benchmark here, in one table: sonde beside its goals and beside others."""

from __future__ import annotations

import argparse
import ast
import json
import os
import platform
import sys
import time
from importlib import import_module
from pathlib import Path
from statistics import median

from result import Result

HERE = Path(__file__).resolve().parent
HEAD = ("what", "sonde", "goal", "beside", "median", "ratio", "verdict")


def list_names() -> list[str]:
    """A file `bench_NAME.py` is a benchmark; nothing else makes it known."""
    return sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))


def read_help(name: str) -> str:
    """The first line of a benchmark's docstring, without importing it."""
    tree = ast.parse((HERE / f"bench_{name}.py").read_text(encoding="utf-8"))
    return (ast.get_docstring(tree) or "").partition("\n")[0]


def format_number(value: float, unit: str) -> str:
    """Three digits that count, and no more."""
    if value != value:
        return "n/a"
    digits = 0 if abs(value) >= 100 or value == int(value) else 1 if abs(value) >= 10 else 2
    if 0 < abs(value) < 0.1:
        digits = 3 if abs(value) >= 0.001 else 5
    return f"{value:,.{digits}f} {unit}".rstrip()


def format_goal(result: Result) -> str:
    """`≤ 0.35 µs`."""
    if result.goal is None:
        return "-"
    return f"{'≥' if result.at_least else '≤'} {result.goal:g} {result.unit}".rstrip()


def format_ratio(peer: float, own: float) -> str:
    """How many times our number the peer's is."""
    return f"{peer / own:.3g}x" if own > 0 and peer > 0 else "-"


def draw_rows(result: Result) -> list[tuple[str, ...]]:
    """A line for the result, and one more for each further peer."""
    own = format_number(result.value, result.unit)
    lines = []
    for name, samples in (result.peers or {"-": []}).items():
        peer = median(samples) if samples else None
        shown = "-" if peer is None else format_number(peer, result.unit)
        ratio = "-" if peer is None else format_ratio(peer, result.value)
        first = (result.what, own, format_goal(result)) if not lines else ("", "", "")
        lines.append((*first, name, shown, ratio, "" if lines else result.verdict))
    return lines


def draw_table(results: list[Result]) -> str:
    """All of it, aligned, with the notes below."""
    lines = [HEAD, *(line for result in results for line in draw_rows(result))]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEAD))]
    right = {1, 2, 4, 5}
    drawn = [
        " | ".join(
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    drawn.insert(1, "-+-".join("-" * width for width in widths))
    notes = [f"  {result.what}: {result.note}" for result in results if result.note]
    return "\n".join([*drawn, "", "Notes", *notes])


def dump(results: list[Result], machine: str, path: str) -> None:
    """Every sample, for whoever wants more than medians."""
    rows = [
        {**vars(result), "median": result.value, "verdict": result.verdict} for result in results
    ]
    whole = {"machine": machine, "results": rows}
    Path(path).write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def describe_machine() -> str:
    return (
        f"{platform.machine()}, {os.cpu_count()} CPUs, Linux {platform.release()}, "
        f"Python {platform.python_version()}"
    )


def parse_arguments() -> argparse.Namespace:
    listed = "\n".join(f"  {name:10}{read_help(name)}" for name in list_names())
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=f"benchmarks:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", metavar="NAME", choices=list_names(), action="append")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--json", metavar="FILE", help="all samples go there, too")
    return parser.parse_args()


def main() -> int:
    args = parse_arguments()
    results: list[Result] = []
    before = os.getloadavg()[0]  # we ourselves add about one to it
    for name in args.only or list_names():
        begin = time.monotonic()
        print(f"{name}: {read_help(name)}", end=" ", file=sys.stderr, flush=True)
        results += import_module(f"bench_{name}").measure(max(1, args.rounds))
        print(f"{time.monotonic() - begin:.0f} s", file=sys.stderr)
    machine = f"{describe_machine()}, load {before:.1f} before and {os.getloadavg()[0]:.1f} after"
    print(f"{machine}\nmedians; ratio: the other's number over sonde's\n")
    print(draw_table(results))
    if args.json:
        dump(results, machine, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
