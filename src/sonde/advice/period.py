"""The time that advice is about: a recording without its warm-up, cut into windows, as SQL."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from sonde.analysis.window import find_window
from sonde.errors import ConfigError
from sonde.store.recording import Recording

_SLOW = 3.0  # so many times the median: a step that still warms up
_BUSY_PCT = 20.0  # of a GPU: the job has begun
_LONGEST_S = 120.0  # how much of a recording without steps may be warm-up
_LAST = """
SELECT epoch_us(MAX(last)) AS us FROM (
  SELECT MAX(ts) AS last FROM system.cpu UNION ALL SELECT MAX(ts) FROM system.process
  UNION ALL SELECT MAX(ts) FROM python.torch_step UNION ALL SELECT MAX(ts) FROM python.sampling
  UNION ALL SELECT MAX(ts) FROM python.stack_sample)
"""
# The end of the steps at the start that took far longer than the others; of the last rank.
_STEPS = """
WITH step AS (
  SELECT host, pid, epoch_us(ts) + dur_ns / 1e3 AS end_us, dur_ns,
         MEDIAN(dur_ns) OVER (PARTITION BY host, pid) AS usual,
         ROW_NUMBER() OVER (PARTITION BY host, pid ORDER BY step) AS number
  FROM python.torch_step WHERE epoch_us(ts) * 1000 BETWEEN {since} AND {until}),
slow AS (
  SELECT *, MIN(CASE WHEN number > 1 AND dur_ns <= {slow} * usual THEN number END)
              OVER (PARTITION BY host, pid) AS first
  FROM step)
SELECT MAX(end_us)::BIGINT AS us FROM slow WHERE number < first
"""
_GPU = """
SELECT epoch_us(MIN(ts)) AS us FROM system.gpu
WHERE util_pct >= {busy} AND epoch_us(ts) * 1000 BETWEEN {since} AND {until}
"""

ASKS = "\n".join((_LAST, _STEPS, _GPU, "system.gpu_process"))


@dataclass(frozen=True)
class Stretch:
    """From the end of the warm-up to the end, in whole windows."""

    start_ns: int  # wall clock, since 1970
    window_s: float
    count: int
    warm_up_s: float
    job_gpu: str  # SQL: is a row with host and gpu about one that the job uses?

    @property
    def end_ns(self) -> int:
        return self.find_times(0, self.count - 1)[1]

    def find_times(self, first: int, last: int) -> tuple[int, int]:
        """When a window begins, and when another one ends."""
        step_ns = self.window_s * 1e9
        return self.start_ns + round(first * step_ns), self.start_ns + round((last + 1) * step_ns)

    @cached_property
    def words(self) -> Mapping[str, str]:
        """What rules write in braces."""
        start_us, end_us = self.start_ns // 1000, self.end_ns // 1000
        return {
            "window": f"((epoch_us(ts) - {start_us}) // {round(self.window_s * 1e6)})",
            "inside": f"(ts >= make_timestamptz({start_us}) AND ts < make_timestamptz({end_us}))",
            "window_s": f"{self.window_s:g}",
            "job_gpu": self.job_gpu,
        }


def find_stretch(
    recording: Recording, since: str | None, until: str | None, window_s: float
) -> Stretch:
    """What to judge: what the user's words name, without the warm-up unless they name a start."""
    if not 0.1 <= window_s <= 86400:
        raise ConfigError(f"--window {window_s:g} is outside 0.1 … 86400 seconds")
    whole = find_window(recording, since, until, last=_LAST)
    start_ns = whole.since_ns + 1
    warm_up_ns = 0 if since else find_warm_up(recording, start_ns, whole.until_ns)
    passed_s = (whole.until_ns - start_ns - warm_up_ns) / 1e9
    # What is left at the end is a window if most of one; a short recording is one window.
    count = max(1, math.floor(passed_s / window_s + 0.5))
    return Stretch(start_ns + warm_up_ns, window_s, count, warm_up_ns / 1e9,
                   find_job_gpus(recording))  # fmt: skip


def find_warm_up(recording: Recording, since_ns: int, until_ns: int) -> int:
    """How long it took until the job did what it does: its first steps are over; without steps,
    a GPU is at work."""
    ends = {"since": since_ns, "until": until_ns}
    step_us = recording.query(_STEPS.format(**ends, slow=_SLOW))["us"][0].as_py()
    if step_us is not None:
        return max(0, int(step_us) * 1000 - since_ns)
    if not _has_table(recording, "system.gpu"):
        return 0
    gpu_us = recording.query(_GPU.format(**ends, busy=_BUSY_PCT))["us"][0].as_py()
    warm_up_ns = 0 if gpu_us is None else max(0, gpu_us * 1000 - since_ns)
    # A GPU that idles for long is no warm-up but a finding.
    longest = min(_LONGEST_S * 1e9, (until_ns - since_ns) / 2)
    return warm_up_ns if warm_up_ns <= longest else 0


def _has_table(recording: Recording, name: str) -> bool:
    return any(schema.table == name for schema in recording.tables())


def find_job_gpus(recording: Recording) -> str:
    """The GPUs on which the job's processes have memory, as an SQL condition. Where that is not
    told (a container sees no pids), all that were used at all."""
    if not _has_table(recording, "system.gpu"):
        return "TRUE"
    used = []
    if _has_table(recording, "system.gpu_process"):
        used = _list_pairs(recording, "system.gpu_process WHERE process IS NOT NULL")
    if not used:
        at_work = "util_pct >= 1 OR memory_used_bytes >= 0.02 * memory_total_bytes"
        used = _list_pairs(recording, f"system.gpu WHERE {at_work}")
    return f"((host, gpu) IN ({', '.join(used)}))" if used else "FALSE"


def _list_pairs(recording: Recording, source: str) -> list[str]:
    rows = recording.query(f"SELECT DISTINCT host, gpu FROM {source} ORDER BY ALL").to_pylist()
    return ["('{}', {})".format(row["host"].replace("'", "''"), row["gpu"]) for row in rows]
