"""Results of runs as profiles, for every exporter."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from sonde import plugins
from sonde.analysis.profile import (
    Place,
    Profile,
    ProfileFrame,
    RecordedProcess,
    RecordedThread,
    Sample,
    Selection,
    Stack,
)
from sonde.analysis.window import Window
from sonde.errors import Error
from sonde.export.files import write_file
from sonde.session.run_result import Result


class StoredProfile(Profile):
    """The stacks of a result, which does not distinguish threads: all are one."""

    def __init__(self, result: Result, weight: str) -> None:
        self._result, self.folder = result, None
        found = result.found
        self.span_ns = (
            found.begin_ns + found.wall_offset_ns,
            found.end_ns + found.wall_offset_ns,
        )
        self.selection = Selection(Window(*self.span_ns), (), weight)
        self._places: dict[ProfileFrame, Place] = {}
        self._paths: dict[int, tuple[tuple[ProfileFrame, ...], tuple[Place, ...]]] = {}

    @property
    def label(self) -> str:
        name = self._result.found.name
        return f"{name}: {self._result.run_id}" if name else self._result.run_id

    @cached_property
    def stacks(self) -> list[Stack]:
        about = self._result.found
        process = RecordedProcess(
            str(about.session), str(about.host), about.pid or 0, about.rank, about.id
        )
        thread = RecordedThread(process, process.pid, "all threads")
        found = []
        for path, (samples, wall, cpu, gil) in self._result.iter_stacks():
            frames = tuple(
                ProfileFrame(func, file, line, first) for func, file, first, line in path
            )
            counts = samples, samples if cpu else 0, samples if gil else 0
            found.append(Stack(thread, frames, counts, (wall, cpu, gil)))
        if not found:
            raise Error(f"{self._result.run_id} has no samples")
        return found

    def iter_samples(self, *, needed: bool = True) -> Iterator[Sample]:  # noqa: ARG002
        raise Error(
            "the result of a run has no timeline; "
            f"`sonde export {self._result.run_id}` reads it from the recording"
        )


def export_result(result: Result, path: str, to: str, weight: str | None = None) -> str:
    """Write what a run found as `sonde export` would: flamegraph, pprof, pstats, … Return `path`.

    `weight` is wall, cpu or gil: the result's own choice unless given."""
    if to not in plugins.list_names("export.formats"):
        raise Error(f"{to} is no format; one of {', '.join(plugins.list_names('export.formats'))}")
    exporter = plugins.load("export.formats", to)
    write_file(path, exporter, StoredProfile(result, weight or result.weight))
    result.note_export(path)
    return path
