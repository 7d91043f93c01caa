"""The period that advice judges: a recording without its warm-up, cut into pieces, as SQL."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from sonde.advice.stretches import Stretches
from sonde.analysis.window import find_window
from sonde.errors import ConfigError
from sonde.store.held import HeldRecording
from sonde.store.recording import Recording

_SLOW = 3.0  # so many times the median: a step that still warms up
_BUSY_PCT = 20.0  # utilisation of a GPU from which the job has begun
_IMPORTING = 0.7  # share of the time since the start: the program still imports
_IMPORTS_S = 600.0  # after the start, in which imports are looked for: a day has many samples
_LONGEST_S = 120.0  # the longest warm-up of a recording without steps
_LAST = "SELECT epoch_us(MAX(last)) AS us FROM ({})"
_NEWEST = ("python.stack_sample", "python.torch_step", "system.cpu", "system.process")
# When the steps at the start that took far longer than the others ended, on the last rank.
_STEPS = """
WITH step AS (
  SELECT host, pid, step, epoch_us(ts) + dur_ns / 1e3 AS end_us, dur_ns
  FROM python.torch_step WHERE epoch_us(ts) * 1000 BETWEEN {since} AND {until}),
usual AS (
  SELECT host, pid, MEDIAN(dur_ns) AS usual, MIN(step) AS begin FROM step GROUP BY 1, 2),
first AS (
  SELECT host, pid, MIN(step) AS first FROM step JOIN usual USING (host, pid)
  WHERE step > begin AND dur_ns <= {slow} * usual GROUP BY 1, 2)
SELECT MAX(end_us)::BIGINT AS us, (MIN(end_us) FILTER (step = begin))::BIGINT AS begin_us
FROM step JOIN first USING (host, pid) JOIN usual USING (host, pid) WHERE step < first
"""
# When the program was done with its imports: the last moment up to which they took most of it.
_IMPORTS = """
WITH importing AS (
  SELECT DISTINCT stack FROM python.frame WHERE file LIKE '<frozen importlib%'),
sample AS (
  SELECT ts, host, pid, wall_ns, stack IN (SELECT stack FROM importing) AS is_import
  FROM python.stack_sample
  WHERE thread = pid AND epoch_us(ts) * 1000 BETWEEN {since} AND {until}),
so_far AS (
  SELECT ts, is_import,
         SUM(CASE WHEN is_import THEN wall_ns ELSE 0 END) OVER so_far / SUM(wall_ns) OVER so_far
           AS share
  FROM sample WINDOW so_far AS (PARTITION BY host, pid ORDER BY ts))
SELECT epoch_us(MAX(ts)) AS us FROM so_far WHERE is_import AND share >= {most}
"""
_GPU = """
SELECT epoch_us(MIN(ts)) AS us FROM system.gpu
WHERE util_pct >= {busy} AND epoch_us(ts) * 1000 BETWEEN {since} AND {until}
"""


@dataclass(frozen=True)
class Period:
    """The time from the end of the warm-up to the end, in whole pieces."""

    start_ns: int  # wall clock, since 1970
    piece_s: float
    count: int
    warm_up_s: float
    job_gpu: str  # SQL: is a row with host and gpu about one that the job uses?
    length_s: float = 0.0  # of all of it, also what is less than a piece
    main_step: str = "TRUE"  # SQL: is this step of what the job does most: training, if it trains?
    stretches: Stretches | None = None  # of a long one, where rules look that read samples

    def cut(self, piece_s: float) -> Period:
        """Return the same period in pieces of another length."""
        count = _count_pieces(self.length_s, piece_s)
        return replace(self, piece_s=piece_s, count=count)

    @property
    def shown_ns(self) -> tuple[int, int]:
        """Return the time of which people are told where it went: that which is judged, or all of
        a recording that hardly has anything but its warm-up."""
        is_short = self.length_s < 0.1 * self.warm_up_s
        return self.start_ns - round(is_short * self.warm_up_s * 1e9), self.end_ns

    @property
    def end_ns(self) -> int:
        return self.find_times(0, self.count - 1)[1]

    def find_times(self, first: int, last: int) -> tuple[int, int]:
        """Return when the first piece begins and when the last one ends."""
        step_ns = self.piece_s * 1e9
        return self.start_ns + round(first * step_ns), self.start_ns + round((last + 1) * step_ns)

    @cached_property
    def words(self) -> Mapping[str, str]:
        """Return the SQL for the words that rules write in braces."""
        start_us, end_us = self.start_ns // 1000, self.end_ns // 1000
        last_us = max(end_us, start_us + math.ceil(self.length_s * 1e6) + 1)
        return {
            "piece": f"((epoch_us(ts) - {start_us}) // {round(self.piece_s * 1e6)})",
            "inside": f"(ts >= make_timestamptz({start_us}) AND ts < make_timestamptz({end_us}))",
            "piece_s": f"{self.piece_s:g}",
            "last_piece": str(self.count - 1),
            "to_end": f"(ts < make_timestamptz({last_us}))",
            "job_gpu": self.job_gpu,
            "main_step": self.main_step,
        }

    def find_words(self, span: str) -> Mapping[str, str]:
        """Return the words for a rule that looks at the `whole` period, at `some` stretches of it,
        or only at what is `late`."""
        if self.stretches is None or span == "whole":
            return self.words
        inside, piece = self.words["inside"], self.words["piece"]
        at = self.stretches
        more = f"{piece} >= {at.late}" if span == "late" else at.make_sql(piece)
        return {**self.words, "inside": f"({inside} AND {more})"}


def find_period(
    recording: Recording, since: str | None, until: str | None, piece_s: float
) -> Period:
    """Return the period to judge: the user's window, without warm-up unless `since` is given."""
    if not 0.1 <= piece_s <= 86400:
        raise ConfigError(f"--piece {piece_s:g} is outside 0.1 … 86400 seconds")
    full = [table for table in _NEWEST if _may_have(recording, table)] or _NEWEST[:1]
    newest = " UNION ALL ".join(f"SELECT MAX(ts) AS last FROM {table}" for table in full)
    whole = find_window(recording, since, until, last=_LAST.format(newest))
    start_ns = whole.since_ns + 1
    warm_up_ns = 0 if since else find_warm_up(recording, start_ns, whole.until_ns)
    passed_s = (whole.until_ns - start_ns - warm_up_ns) / 1e9
    return Period(
        start_ns + warm_up_ns, piece_s, _count_pieces(passed_s, piece_s), warm_up_ns / 1e9,
        find_job_gpus(recording), passed_s, find_main_steps(recording),
    )  # fmt: skip


def _count_pieces(length_s: float, piece_s: float) -> int:
    """Return how many pieces there are. What is left at the end is one if it is most of one; a
    short recording is one piece."""
    return max(1, math.floor(length_s / piece_s + 0.5))


def find_warm_up(recording: Recording, since_ns: int, until_ns: int) -> int:
    """Return how long it took the job to get going, in ns: until its slow first steps were over; in
    a job without steps, until it had imported what it needs and a GPU was at work."""
    ends = {"since": since_ns, "until": until_ns}
    steps = _STEPS.format(**ends, slow=_SLOW)
    step_us = _find_us(recording, "python.torch_step", steps)
    if step_us is not None:
        # Steps that are slow for most of a recording are no warm-up: the first one may be.
        if 2 * (step_us * 1000 - since_ns) > until_ns - since_ns:
            step_us = _find_us(recording, "python.torch_step", steps, "begin_us") or 0
        return max(0, step_us * 1000 - since_ns)
    first = {"since": since_ns, "until": min(until_ns, since_ns + int(_IMPORTS_S * 1e9))}
    imports = _IMPORTS.format(**first, most=_IMPORTING)
    imports_us = _find_us(recording, "python.stack_sample", imports)
    gpu_us = _find_us(recording, "system.gpu", _GPU.format(**ends, busy=_BUSY_PCT))
    # What takes longer is no warm-up: a GPU that idles, a program that only imports, is a finding.
    whole_ns = until_ns - since_ns
    # Of a short recording all may be imports: then there is nothing to judge yet.
    imports_ns = whole_ns if whole_ns <= _LONGEST_S * 1e9 else 0.9 * whole_ns
    ends_ns = [(imports_us, imports_ns), (gpu_us, min(_LONGEST_S * 1e9, whole_ns / 2))]
    passed_ns = [(us * 1000 - since_ns, most_ns) for us, most_ns in ends_ns if us is not None]
    return max((ns for ns, most_ns in passed_ns if 0 < ns <= most_ns), default=0)


def _find_us(recording: Recording, table: str, sql: str, name: str = "us") -> int | None:
    """Return the moment that a query about a table finds, in µs since 1970."""
    if not _may_have(recording, table):
        return None
    moment: int | None = recording.query(sql)[name][0].as_py()
    return moment


def find_job_gpus(recording: Recording) -> str:
    """Return an SQL condition for the GPUs that the job's processes compute on. If only torch says
    that they do (their files may not be looked at), it holds for all GPUs that were used at all;
    whatever others do on the GPUs is not this job's. A job whose steps have no memory there and
    launch nothing computes on none, even if CUDA was begun in it, as torch.compile does."""
    has_memory = _has_rows(recording, "python.torch_memory WHERE device LIKE 'cuda%'")
    launches = _has_rows(recording, "python.cuda_call WHERE kind = 'launch'")
    if not (has_memory or launches) and _has_rows(recording, "python.torch_step"):
        return "FALSE"
    used = _list_pairs(recording, "system.gpu_process WHERE process IS NOT NULL")
    if not used and has_memory:
        at_work = "util_pct >= 1 OR memory_used_bytes >= 0.02 * memory_total_bytes"
        used = _list_pairs(recording, f"system.gpu WHERE {at_work}")
    return f"((host, gpu) IN ({', '.join(used)}))" if used else "FALSE"


def find_main_steps(recording: Recording) -> str:
    """Return an SQL condition for the steps of training, or for all of a job that does not train.
    Evaluation has other lengths and other causes of trouble, which would look like outliers."""
    if not _may_have(recording, "python.torch_step"):
        return "TRUE"
    trained = recording.query("SELECT bool_or(training) AS trained FROM python.torch_step")
    return "(training IS NOT FALSE)" if trained["trained"][0].as_py() else "TRUE"


def _may_have(recording: Recording, table: str) -> bool:
    """Tell whether a table may have rows, as far as that is known without a query: to make an empty
    table known to the engine, and to ask it, takes longer."""
    return not (isinstance(recording, HeldRecording) and recording.find_empty([table]))


def _has_rows(recording: Recording, source: str) -> bool:
    return _may_have(recording, source.partition(" ")[0]) and bool(
        recording.query(f"SELECT 1 FROM {source} LIMIT 1").num_rows
    )


def _list_pairs(recording: Recording, source: str) -> list[str]:
    if not _may_have(recording, source.partition(" ")[0]):
        return []
    rows = recording.query(f"SELECT DISTINCT host, gpu FROM {source} ORDER BY ALL").to_pylist()
    return ["('{}', {})".format(row["host"].replace("'", "''"), row["gpu"]) for row in rows]
