"""Sampled stacks in pieces of time: the page sums them up for whatever time is brushed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from sonde.analysis.profile import Profile, Selection, list_parts
from sonde.analysis.window import Window
from sonde.store.recording import Recording
from sonde.web.answer import PageAnswer
from sonde.web.stack_names import NODES_SQL, Numbered, StackNames

# State 1 is idle, 2 held the GIL, 4 waited for I/O, 8 for the GIL. A row belongs to the piece in
# which its last sample was taken.
_PIECES = """\
{selected}
SELECT ((end_ns - {since_ns} - 1) // {width_ns})::INTEGER AS piece,
    part::BIGINT << 32 | thread AS owner, stack,
    (idle::TINYINT + 2 * gil::TINYINT + CASE
        WHEN wait = 'gil' THEN 8 WHEN wait IN ('network', 'pipe', 'disk', 'fault', 'device') THEN 4
        ELSE 0 END)::UTINYINT AS state,
    SUM(samples)::INTEGER AS samples, SUM(wall_ns)::DOUBLE AS wall, SUM(cpu_ns)::DOUBLE AS cpu
FROM selected GROUP BY piece, owner, stack, state ORDER BY piece"""
# As in a profile, but without the names of threads: an hour has millions of rows.
_SELECTED = """\
WITH process AS (SELECT UNNEST([{processes}], recursive := true)),
selected AS (
    SELECT part, thread, stack, samples, wall_ns, cpu_ns, gil, idle, wait,
        t_ns + offset_ns AS end_ns
    FROM python.stack_sample JOIN process USING (host, pid)
    WHERE epoch_us(ts) >= first_us AND epoch_us(ts) < next_us
        AND ts >= make_timestamptz({since_us}) AND ts <= make_timestamptz({until_us})
        AND end_ns > {since_ns} AND end_ns <= {until_ns})"""
# A recording of one process needs no join.
_SELECTED_ALONE = """\
WITH selected AS (
    SELECT 0 AS part, thread, stack, samples, wall_ns, cpu_ns, gil, idle, wait,
        t_ns + {offset_ns} AS end_ns
    FROM python.stack_sample
    WHERE ts >= make_timestamptz({since_us}) AND ts <= make_timestamptz({until_us})
        AND end_ns > {since_ns} AND end_ns <= {until_ns})"""
# About how many rows a piece has, for several widths at once.
_COUNTS = "{selected} SELECT {counts} FROM selected"
_COUNT = "COUNT(DISTINCT (part, thread, stack, idle, gil)) FILTER (end_ns <= {end_ns}) AS n{at}"
MOST_ROWS = 250_000  # that a page is given at first: eight megabytes, summed up in milliseconds
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
            selected=_select(recording, window), since_ns=window.since_ns, width_ns=width_ns
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

    def pick_width(self, recording: Recording, window: Window, widths: Sequence[int]) -> int:
        """Return the least of these widths, in ascending order, that yields no more rows than a
        page can sum up at once: as far as a stretch in the middle tells."""
        duration_ns = window.until_ns - window.since_ns
        begin_ns = window.since_ns + (duration_ns - widths[-1]) // 2
        middle = Window(begin_ns, begin_ns + widths[-1])
        counts = ", ".join(
            _COUNT.format(end_ns=begin_ns + width, at=at) for at, width in enumerate(widths)
        )
        sql = _COUNTS.format(selected=_select(recording, middle), counts=counts)
        [row] = recording.query(sql).to_pylist()
        few = (
            width
            for at, width in enumerate(widths)
            if row[f"n{at}"] * duration_ns / width <= MOST_ROWS
        )
        return next(few, widths[-1])

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


def _select(recording: Recording, window: Window) -> str:
    """Return SQL for the samples of a window, as a table `selected` to build on."""
    ends = {
        "since_ns": window.since_ns, "until_ns": window.until_ns,
        # On `ts` as well as the exact bounds: it saves reading all of a long archive.
        "since_us": window.since_ns // 1000 - 1, "until_us": window.until_ns // 1000 + 1,
    }  # fmt: skip
    if len(recording.sessions) == 1:
        return _SELECTED_ALONE.format(offset_ns=recording.sessions[0].wall_offset_ns, **ends)
    return _SELECTED.format(processes=", ".join(list_parts(recording)), **ends)
