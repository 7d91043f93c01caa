"""Calls of modules, operators and kernels as spans of time, for timelines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from sonde.store.recording import Recording

# The kinds of lanes; on one lane of one thread, spans nest.
MODULES, BACKWARD, OPERATORS, STREAM = "modules", "backward", "operators", "stream"


class TorchSpan(NamedTuple):
    """A call of a module or operator, or a kernel on a device."""

    part: int  # number of the recorded process
    lane: str
    thread: int  # thread id, or number of the stream
    thread_name: str
    device: int
    start_ns: int  # wall clock, since 1970
    end_ns: int
    label: str
    step: int | None
    about: Any  # more about it, by name
    launch_ns: int | None  # of a kernel: the start of its launch
    launch_thread: int | None


# `named` and `process` are of profile.py: see there.
_ALL = """\
{named},
modules AS (
    SELECT part, CASE stage WHEN 'backward' THEN 'backward' ELSE 'modules' END AS lane, thread,
        0 AS device, t_ns + offset_ns AS start_ns, (duration * 1e9)::BIGINT AS dur_ns,
        module AS label, step, depth::BIGINT AS depth, NULL::BIGINT AS launch_ns, thread AS owner,
        json_object('stage', stage, 'depth', depth, 'device_s', device_duration) AS about
    FROM python.torch_trace JOIN process USING (host, pid)
    WHERE epoch_us(ts) >= first_us AND epoch_us(ts) < next_us),
operators AS (
    SELECT part, 'operators' AS lane, thread, 0 AS device, t_ns + offset_ns AS start_ns, dur_ns,
        op AS label, step, depth, NULL::BIGINT AS launch_ns, thread AS owner,
        json_object('kind', kind, 'self_ns', self_ns, 'module', module, 'shapes', input_shapes,
            'sequence', sequence) AS about
    FROM python.torch_op JOIN process USING (host, pid)),
observed AS (
    SELECT part, 'operators' AS lane, thread, 0 AS device, t_ns + offset_ns AS start_ns, dur_ns,
        op AS label, NULL::BIGINT AS step, depth::BIGINT AS depth, NULL::BIGINT AS launch_ns,
        thread AS owner, json_object('self_ns', self_ns, 'backward', backward) AS about
    FROM python.operator JOIN process USING (host, pid)
    WHERE epoch_us(ts) >= first_us AND epoch_us(ts) < next_us),
kernels AS (
    SELECT part, 'stream' AS lane, COALESCE(stream, 0) AS thread, COALESCE(device, 0) AS device,
        t_ns + offset_ns AS start_ns, dur_ns, kernel AS label, step, 0 AS depth,
        launch_t_ns + offset_ns AS launch_ns, launch_thread AS owner,
        json_object('kind', kind, 'op', op, 'module', module, 'grid', grid, 'block', block,
            'bytes', copied_bytes, 'correlation', correlation) AS about
    FROM python.torch_kernel JOIN process USING (host, pid)),
spans AS (
    SELECT together.*, COALESCE(named.name, 'thread') AS name
    FROM (FROM modules UNION ALL FROM operators UNION ALL FROM observed UNION ALL FROM kernels)
        AS together
        JOIN process USING (part)
        LEFT JOIN named ON named.part = together.part AND named.thread = together.owner
    WHERE start_ns >= first_us * 1000 AND start_ns < next_us::HUGEINT * 1000
        AND start_ns > {since_ns} AND start_ns <= {until_ns})
"""
_ROWS = """\
{all}
SELECT part, lane, thread, name, device, start_ns, start_ns + dur_ns AS end_ns, label, step, about,
    launch_ns, owner
FROM (SELECT *, owner AS thread_id FROM spans) WHERE {threads}
ORDER BY part, lane, device, thread, start_ns, dur_ns DESC, depth
"""
# Nothing in a capture is older than the capture; its operators need not be read for this.
_FIRST = """\
{named}
SELECT MIN(t_ns + offset_ns) AS first_ns
FROM (SELECT host, pid, t_ns FROM python.torch_trace
    UNION ALL SELECT host, pid, t_ns FROM python.torch_capture) JOIN process USING (host, pid)
WHERE t_ns + offset_ns >= first_us * 1000 AND t_ns + offset_ns < next_us::HUGEINT * 1000
    AND t_ns + offset_ns > {since_ns} AND t_ns + offset_ns <= {until_ns}
"""


def iter_spans(
    recording: Recording, named: str, window: tuple[int, int], threads: str
) -> Iterator[TorchSpan]:
    """Yield all spans by process, lane and thread, then by time, outer spans first."""
    since_ns, until_ns = window
    every = _ALL.format(named=named, since_ns=since_ns, until_ns=until_ns)
    rows = recording.query(_ROWS.format(all=every, threads=threads))
    for batch in rows.to_batches(max_chunksize=50_000):
        columns = [column.to_pylist() for column in batch.columns]
        for values in zip(*columns, strict=True):
            span = TorchSpan(*values)
            about = json.loads(span.about)
            known = {key: value for key, value in about.items() if value is not None}
            yield span._replace(about=known)


def find_first_ns(recording: Recording, named: str, window: tuple[int, int]) -> int | None:
    """Return a time since 1970 before which no span begins; None if there are no spans."""
    since_ns, until_ns = window
    sql = _FIRST.format(named=named, since_ns=since_ns, until_ns=until_ns)
    first_ns = recording.query(sql)["first_ns"][0].as_py()
    return None if first_ns is None else int(first_ns)
