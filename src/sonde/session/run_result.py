"""The result of a run: stacks with their samples and times, and what is computed from them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence

from sonde.errors import Error
from sonde.session.records import RunResult
from sonde.session.stack_table import WEIGHTS
from sonde.words import OURS, clean, count_things, shorten_file, shorten_func

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FrameTuple = tuple[str, str, int, int]  # function, file, its first line, the line that ran
Sums = tuple[int, int, int, int]  # samples; wall, CPU and GIL time in ns
# With less CPU time than this share of the elapsed time, the profile is mostly about waiting.
_BUSY = 0.1
_MOST_LINES = 8  # of a cell
_CUT: FrameTuple = ("<cut>", "", 0, 0)


class Result:
    """The profile of one run, or of several that were merged.

    `folder` is where it is kept and `exports` are files written from it; `parts` are the results
    that a merged one is the sum of."""

    def __init__(
        self,
        found: RunResult,
        folder: str | None = None,
        exports: Sequence[str] = (),
        on_export: Callable[[str], object] | None = None,
        parts: Sequence[Result] = (),
    ) -> None:
        self.found, self.folder, self.exports = found, folder, list(exports)
        self._on_export, self._parts = on_export, tuple(parts)
        self._source: Sequence[str] = ()  # the text that was run, if somebody is to see its lines

    def _sum(self, column: int) -> int:
        return sum(node[column] for node in self.found.nodes)

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self.found.id

    @property
    def reason(self) -> str | None:
        """Why the run ended, if nobody stopped it."""
        return self.found.reason

    @property
    def tags(self) -> list[str]:
        """The tags of the run."""
        return self.found.tags

    @property
    def skipped(self) -> int:
        """How many calls ran without a profile because this run was in progress."""
        return self.found.skipped

    @property
    def samples(self) -> int:
        """The number of samples of all threads."""
        return self._sum(2)

    @property
    def duration_s(self) -> float:
        """How long the run took, in seconds; the sum if several were merged."""
        return self._duration_ns / 1e9

    @property
    def _duration_ns(self) -> int:
        if self._parts:
            return sum(part._duration_ns for part in self._parts)
        return self.found.end_ns - self.found.begin_ns

    @property
    def cpu_s(self) -> float:
        """The CPU time of all threads, in seconds."""
        return self._sum(4) / 1e9

    @property
    def truncated(self) -> bool:
        """Whether the run ended before the work because its time was up."""
        if self._parts:
            return any(part.truncated for part in self._parts)
        return (self.reason or "").startswith("cut")

    @property
    def weight(self) -> str:
        """The time to rank by: `cpu`, or `wall` if hardly any CPU time was used, or if it is about
        a cell of a notebook, for which somebody waits."""
        if self._source:
            return "wall"
        return "cpu" if self.cpu_s >= _BUSY * self.duration_s else "wall"

    def iter_stacks(self) -> Iterator[tuple[tuple[FrameTuple, ...], Sums]]:
        """Yield every stack, root first, without frames of ours, with its samples and times."""
        import re  # slow to import, and the job seldom shows anything

        ours = re.compile(OURS)
        frames = [() if ours.match(frame[1]) else (frame,) for frame in self.found.frames]
        paths: list[tuple[FrameTuple, ...]] = []
        for parent, frame, *sums in self.found.nodes:
            above = paths[parent] if parent >= 0 else ()
            paths.append((*above, *frames[frame]))
            if any(sums) and paths[-1]:
                yield paths[-1], (sums[0], sums[1], sums[2], sums[3])

    def cut(self, is_root: Callable[[FrameTuple], bool], source: Sequence[str] = ()) -> Result:
        """Return the part of the profile from the outermost frames on that `is_root` is true of;
        stacks without any are left out. `source` has the lines of what was run there, such as a
        cell of a notebook: they are shown with their time."""
        kept: dict[int, int] = {}  # by number of a node: its number in the part
        nodes: list[tuple[int, int, int, int, int, int]] = []
        for number, (parent, frame, *sums) in enumerate(self.found.nodes):
            if parent in kept or is_root(self.found.frames[frame]):
                kept[number] = len(nodes)
                nodes.append((kept.get(parent, -1), frame, sums[0], sums[1], sums[2], sums[3]))
        found = RunResult(**{**vars(self.found), "nodes": nodes})
        part = Result(found, self.folder, self.exports, self._on_export)
        part._source = source
        return part

    def list_lines(self) -> list[dict[str, object]]:
        """Return the lines of the source that was run, with the elapsed time of each and of what it
        called, by time; the source is known of cells of notebooks alone. The lines of functions
        that the source defines are among them."""
        spent: dict[int, int] = {}
        for path, sums in self.iter_stacks():
            func, cell, *_ = path[0]
            if func == "<module>":
                for line in {line for _func, file, _first, line in path if file == cell}:
                    if 0 < line <= len(self._source):
                        spent[line] = spent.get(line, 0) + sums[1]
        whole = self._sum(3) or 1
        return [
            {"line": line, "source": self._source[line - 1].strip(), "total_ns": total_ns,
             "total_pct": 100 * total_ns / whole}
            for line, total_ns in sorted(spent.items(), key=lambda entry: -entry[1])
        ]  # fmt: skip

    def table(self, weight: str | None = None, limit: int | None = None) -> list[dict[str, object]]:
        """Return a row for each function with own and total time and shares, by own time."""
        weight = self.weight if weight is None else weight
        by = WEIGHTS.index(weight) + 1
        own: dict[tuple[str, str, int], list[int]] = {}
        for path, sums in self.iter_stacks():
            for place in {frame[:3] for frame in path}:
                found = own.setdefault(place, [0, 0, 0])
                found[2] += sums[by]
            found = own[path[-1][:3]]
            found[0] += sums[0]
            found[1] += sums[by]
        whole = self._sum(by + 2) or 1
        ranked = sorted(own.items(), key=lambda entry: (-entry[1][1], -entry[1][2]))
        return [
            {"func": func, "file": file, "line": line, "samples": samples,
             "self_ns": self_ns, "total_ns": total_ns,
             "self_pct": 100 * self_ns / whole, "total_pct": 100 * total_ns / whole}
            for (func, file, line), (samples, self_ns, total_ns) in ranked[:limit]
        ]  # fmt: skip

    def __str__(self) -> str:
        return self.show()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Show the functions as text, for IPython in a terminal."""
        printer.text(type(self).__name__ if cycle else self.show())

    def _repr_html_(self) -> str:
        """Return the functions as a table, for notebooks."""
        from sonde.markup import PctBar, show_box, show_table
        from sonde.words import show_duration

        head, *more = self.show(limit=0).splitlines()
        rows = [
            (PctBar(float(str(row["self_pct"]))), PctBar(float(str(row["total_pct"]))),
             show_duration(int(str(row["self_ns"]))), shorten_func(str(row["func"])),
             _show_place(row))
            for row in self.table(limit=15)
        ]  # fmt: skip
        table = show_table(("own", "total", "own time", "function", "file"), rows)
        lines = [
            (PctBar(float(str(row["total_pct"]))), show_duration(int(str(row["total_ns"]))),
             row["line"], row["source"])
            for row in self.list_lines()[:_MOST_LINES]
        ]  # fmt: skip
        if lines:
            table = show_table(("total", "time", "line", "of the cell"), lines) + table
        return show_box(head, more[1:], table)

    def show(self, weight: str | None = None, limit: int | None = 8) -> str:
        """Return a few lines for people; of all functions if there is no limit."""
        weight = self.weight if weight is None else weight
        title = {"cpu": "CPU", "wall": "elapsed", "gil": "GIL"}[weight]
        head = f"{self.run_id}: {self.samples:,} samples in {self.duration_s:.2f} s"
        lines = [
            f"{head}, {self.cpu_s:.2f} s of CPU" + (f"; {self.reason}" if self.reason else ""),
            f"  {'own':>6} {'total':>6}  function, by {title} time",
        ]
        if limit != 0 and self._source:
            shown = self.list_lines()[:_MOST_LINES]
            lines[1:1] = [
                f"  {row['total_pct']:5.1f}%  line {row['line']:>3}  {clean(str(row['source']))}"
                for row in shown
            ]
        for row in self.table(weight, limit):
            where = f" ({_show_place(row)})" if row["file"] else ""
            name = clean(f"{shorten_func(str(row['func']))}{where}")
            lines.append(f"  {row['self_pct']:5.1f}% {row['total_pct']:5.1f}%  {name}")
        if self.folder:
            how = f"sonde profile results {self.run_id} --to flamegraph"
            lines.append(f"  everything: {self.folder}; as a picture: {how}")
        for path in self.exports:
            lines.append(f"  written: {path}")
        if self.skipped:
            calls = count_things(self.skipped, "call")
            lines.append(f"  {calls} ran without a profile while this run was in progress")
        return "\n".join(lines)

    def describe(self) -> dict[str, object]:
        """Return everything but the stacks, for programs."""
        left_out = ("frames", "nodes", "ours")
        found = {key: value for key, value in self.found.dump().items() if key not in left_out}
        return {
            **found, "samples": self.samples, "duration_ns": self._duration_ns,
            "cpu_ns": self._sum(4), "truncated": self.truncated,
            "ours_ns": self.found.ours[1],  # our own code around the work, which is no part of it
            "folder": self.folder,
            "exports": self.exports, **self._describe_parts(),
        }  # fmt: skip

    def _describe_parts(self) -> dict[str, object]:
        return {"runs": [part.run_id for part in self._parts]} if self._parts else {}

    def note_export(self, path: str) -> None:
        """Record that a file was written from this result."""
        if self._on_export is not None:
            self._on_export(os.path.abspath(path))


def _show_place(row: Mapping[str, object]) -> str:
    """Return file and line as they are shown; a result does not know where its program began, but
    whoever looks at it is there as a rule."""
    try:
        folder = os.getcwd()
    except OSError:
        folder = None
    return f"{shorten_file(str(row['file']), folder)}:{row['line']}"


def cut_stacks(found: RunResult, most: int) -> RunResult:
    """Return the result with at most this many frames of each stack, the innermost; a frame `<cut>`
    stands for the others."""
    frames: dict[FrameTuple, int] = {}
    nodes: list[list[int]] = []
    known: dict[tuple[int, int], int] = {}
    for path, sums in Result(found).iter_stacks():
        at = -1
        for frame in path if len(path) <= most else (_CUT, *path[len(path) - most :]):
            number = frames.setdefault(frame, len(frames))
            above, at = at, known.setdefault((at, number), len(nodes))
            if at == len(nodes):
                nodes.append([above, number, 0, 0, 0, 0])
        nodes[at][2:] = [a + b for a, b in zip(nodes[at][2:], sums, strict=True)]
    return found.replace(frames=list(frames), nodes=[tuple(node) for node in nodes])


def merge(results: Sequence[Result], name: str) -> Result:
    """Return several runs as one profile, whose numbers are exact sums."""
    if not results:
        raise Error("there is nothing to merge")
    parts = [result.found for result in results]
    frames: dict[FrameTuple, int] = {}
    nodes: list[list[int]] = []
    known: dict[tuple[int, int], int] = {}
    for part in parts:
        places: list[int] = []
        for parent, frame, *sums in part.nodes:
            above = places[parent] if parent >= 0 else -1
            number = frames.setdefault(part.frames[frame], len(frames))
            at = known.setdefault((above, number), len(nodes))
            if at == len(nodes):
                nodes.append([above, number, 0, 0, 0, 0])
            nodes[at][2:] = [a + b for a, b in zip(nodes[at][2:], sums, strict=True)]
            places.append(at)
    ours = [sum(column) for column in zip(*(part.ours for part in parts), strict=True)]
    merged = parts[0].replace(
        id=name, tags=[name], pid=None, host=None, session=None,
        begin_ns=min(part.begin_ns for part in parts), end_ns=max(part.end_ns for part in parts),
        frames=list(frames), nodes=[tuple(node) for node in nodes], ours=tuple(ours),
        reason=f"{count_things(len(results), 'run')} merged",
        skipped=sum(part.skipped for part in parts),
    )  # fmt: skip
    return Result(merged, parts=results)
