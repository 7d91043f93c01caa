"""Sampled stacks in pieces of time: the page sums them up for whatever time is brushed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from sonde.analysis.profile import Profile, Selection
from sonde.analysis.window import Window
from sonde.store.recording import Recording
from sonde.web.answer import PageAnswer
from sonde.web.stack_names import NODES_SQL, Numbered, StackNames

# State 1 is idle, 2 held the GIL. A row belongs to the piece in which its last sample was taken.
_PIECES = """\
{selected}
SELECT ((end_ns - {since_ns} - 1) // {width_ns})::INTEGER AS piece,
    part::BIGINT << 32 | thread AS owner, stack,
    (idle::TINYINT + 2 * gil::TINYINT)::UTINYINT AS state,
    SUM(samples)::INTEGER AS samples, SUM(wall_ns)::DOUBLE AS wall, SUM(cpu_ns)::DOUBLE AS cpu
FROM selected GROUP BY piece, owner, stack, state ORDER BY piece
"""
_THREADS = "{named} SELECT part::BIGINT << 32 | thread AS owner, name FROM named"


class StackSource:
    """The stacks of one recording, and the numbers that the page was given for their names."""

    def __init__(self, recording: Recording) -> None:
        self._names = StackNames(Profile(recording, Selection(Window(0, 1))))
        self._threads = Numbered()

    def read(
        self, recording: Recording, window: Window, width_ns: int, known: Sequence[int]
    ) -> PageAnswer:
        """Return the pieces of a window, and the names that are not among the `known`: a version,
        then counts as in StackNames.list_new."""
        profile = Profile(recording, Selection(window))
        sql = _PIECES.format(
            selected=profile.selected_sql, since_ns=window.since_ns, width_ns=width_ns
        )
        rows = recording.query(sql).combine_chunks()
        stacks = rows["stack"].combine_chunks().dictionary_encode()
        owners = rows["owner"].combine_chunks().dictionary_encode()
        numbers = self._names.number(recording, stacks.dictionary.to_pylist())
        columns = {
            "piece": rows["piece"].combine_chunks(),
            "thread": pa.array(
                map(self._threads.find, owners.dictionary.to_pylist()), pa.int32()
            ).take(owners.indices),
            "stack": pa.array(numbers, pa.int32()).take(stacks.indices),
            "state": rows["state"].combine_chunks(),
            "samples": rows["samples"].combine_chunks(),
            "wall": rows["wall"].combine_chunks(),
            "cpu": rows["cpu"].combine_chunks(),
        }
        version, *counts = known
        fresh = version != self._names.version
        data = {
            "version": self._names.version, "width": width_ns,
            "names": self._names.list_new([0] * 6 if fresh else counts), "all": fresh,
            "threads": self._list_threads(recording, profile),
        }  # fmt: skip
        return PageAnswer(data, [sql, NODES_SQL], columns)

    def _list_threads(self, recording: Recording, profile: Profile) -> list[dict[str, Any]]:
        rows = recording.query(_THREADS.format(named=profile.named_sql))
        names = dict(zip(rows["owner"].to_pylist(), rows["name"].to_pylist(), strict=True))
        found = []
        for owner in self._threads:
            part, thread = owner >> 32, owner & 0xFFFFFFFF
            is_main = thread == profile.processes[part].pid
            name = names.get(owner) or "thread"
            found.append({"part": part, "thread": thread, "name": name, "main": is_main})
        return found
