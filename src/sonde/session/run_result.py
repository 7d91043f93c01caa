"""What a run found: stacks with their samples and times, and what is worked out of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence

from sonde.errors import Error
from sonde.session.stack_table import WEIGHTS

Frame = tuple[str, str, int, int]  # function, file, its first line, the line that ran
Sums = tuple[int, int, int, int]  # samples; wall, CPU and GIL time in ns
# Less CPU time than this share of the elapsed time: then waiting is what there is to see.
_BUSY = 0.1


class Result:
    """The profile of one run, or of several that were merged."""

    def __init__(
        self, values: Mapping[str, object], on_export: Callable[[str], object] | None = None
    ) -> None:
        self.values, self._on_export = dict(values), on_export
        frames, nodes = values["frames"], values["nodes"]
        assert isinstance(frames, list) and isinstance(nodes, list)
        self._frames: list[Frame] = [tuple(frame) for frame in frames]
        self._nodes: list[list[int]] = nodes

    def _sum(self, column: int) -> int:
        return sum(node[column] for node in self._nodes)

    @property
    def run_id(self) -> str:
        """Of which run."""
        return str(self.values["id"])

    @property
    def samples(self) -> int:
        """How many times a thread was seen."""
        return self._sum(2)

    @property
    def duration_s(self) -> float:
        """How long it ran; of several runs, their sum."""
        given = self.values.get("duration_s")
        if isinstance(given, float):
            return given
        return (int(str(self.values["end_ns"])) - int(str(self.values["begin_ns"]))) / 1e9

    @property
    def cpu_s(self) -> float:
        """CPU time of all threads."""
        return self._sum(4) / 1e9

    @property
    def truncated(self) -> bool:
        """Did it end before the work did, because it was told to?"""
        if self.values.get("truncated"):
            return True
        return str(self.values["reason"] or "").startswith("cut")

    @property
    def weight(self) -> str:
        """What to look at: CPU time, or elapsed time if hardly any was used."""
        return "cpu" if self.cpu_s >= _BUSY * self.duration_s else "wall"

    def iter_stacks(self) -> Iterator[tuple[tuple[Frame, ...], Sums]]:
        """Every stack, root first, with what was seen of it."""
        paths: list[tuple[Frame, ...]] = []
        for parent, frame, *sums in self._nodes:
            above = paths[parent] if parent >= 0 else ()
            paths.append((*above, self._frames[frame]))
            if any(sums):
                yield paths[-1], tuple(sums)  # type: ignore[misc]

    def table(self, weight: str | None = None, limit: int | None = None) -> list[dict[str, object]]:
        """Functions by their own time: a row each, with own and total time and share."""
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
        rows: list[dict[str, object]] = [
            {"func": func, "file": file, "line": line, "samples": samples,
             "self_s": self_ns / 1e9, "total_s": total_ns / 1e9,
             "self_pct": 100 * self_ns / whole, "total_pct": 100 * total_ns / whole}
            for (func, file, line), (samples, self_ns, total_ns) in own.items()
        ]  # fmt: skip
        rows.sort(key=lambda row: (-float(str(row["self_s"])), -float(str(row["total_s"]))))
        return rows[:limit]

    def __str__(self) -> str:
        return self.show()

    def show(self, weight: str | None = None, limit: int = 8) -> str:
        """A few lines for people."""
        weight = self.weight if weight is None else weight
        said = {"cpu": "CPU", "wall": "elapsed", "gil": "GIL"}[weight]
        reason, skipped = self.values["reason"], int(str(self.values["skipped"]))
        head = f"{self.run_id}: {self.samples:,} samples in {self.duration_s:.2f} s"
        lines = [
            f"{head}, {self.cpu_s:.2f} s of CPU" + (f"; {reason}" if reason else ""),
            f"  {'own':>6} {'total':>6}  function, by {said} time",
        ]
        for row in self.table(weight, limit):
            place = os.path.basename(str(row["file"]))
            where = f" ({place}:{row['line']})" if place else ""
            lines.append(
                f"  {row['self_pct']:5.1f}% {row['total_pct']:5.1f}%  {row['func']}{where}"
            )
        if self.values.get("folder"):
            how = f"sonde profile results {self.run_id} --to flamegraph"
            lines.append(f"  all of it: {self.values['folder']}; as a picture: {how}")
        for path in self.exports:
            lines.append(f"  written: {path}")
        if skipped:
            lines.append(f"  {skipped} calls ran without a profile while this one was under way")
        return "\n".join(lines)

    def describe(self) -> dict[str, object]:
        """Everything but the stacks, for a machine."""
        left_out = ("frames", "nodes", "ours", "check")
        about = {key: value for key, value in self.values.items() if key not in left_out}
        return {
            **about, "samples": self.samples, "duration_s": self.duration_s, "cpu_s": self.cpu_s,
            "truncated": self.truncated, "ours_s": self.ours_s,
        }  # fmt: skip

    @property
    def exports(self) -> list[str]:
        """The files that were written from it."""
        exports = self.values.get("exports")
        return exports if isinstance(exports, list) else []

    @property
    def ours_s(self) -> float:
        """Time of the work's threads that our own begin and end took; not part of the rest."""
        ours = self.values["ours"]
        assert isinstance(ours, list)
        return float(ours[1] / 1e9)

    def note_export(self, path: str) -> None:
        """Remember a file that was written from this result."""
        if self._on_export is not None:
            self._on_export(os.path.abspath(path))


def _list_ours(result: Result) -> list[int]:
    ours = result.values["ours"]
    assert isinstance(ours, list)
    return ours


def merge(results: Sequence[Result], name: str) -> Result:
    """Several runs as one profile: its numbers are their exact sums."""
    if not results:
        raise Error("there is nothing to merge")
    frames: dict[Frame, int] = {}
    nodes: list[list[int]] = []
    known: dict[tuple[int, int], int] = {}
    for result in results:
        places: list[int] = []
        for parent, frame, *sums in result._nodes:
            above = places[parent] if parent >= 0 else -1
            number = frames.setdefault(result._frames[frame], len(frames))
            at = known.setdefault((above, number), len(nodes))
            if at == len(nodes):
                nodes.append([above, number, 0, 0, 0, 0])
            nodes[at][2:] = [a + b for a, b in zip(nodes[at][2:], sums, strict=True)]
            places.append(at)
    first = results[0].values
    return Result(
        {
            **first,
            "id": name,
            "folder": None,
            "exports": [],
            "tags": [name],
            "pid": None,
            "host": None,
            "session": None,
            "truncated": any(result.truncated for result in results),
            "begin_ns": min(int(str(result.values["begin_ns"])) for result in results),
            "end_ns": max(int(str(result.values["end_ns"])) for result in results),
            "frames": [list(frame) for frame in frames],
            "nodes": nodes,
            "reason": f"{len(results)} runs merged",
            "runs": [result.run_id for result in results],
            "duration_s": float(sum(result.duration_s for result in results)),
            "skipped": sum(int(str(result.values["skipped"])) for result in results),
            "ours": [
                sum(column) for column in zip(*(_list_ours(one) for one in results), strict=True)
            ],
        }
    )
