"""What two recordings are compared by: numbers about a period, one for each piece of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

LESS, MORE, NEITHER = "less", "more", "neither"  # what is better
A_STEP = "ms a step"
A_RUN = "s of the run"
SHARES = ("% of the time", "% of a core")  # units that A_RUN can replace
_PART = 0.1  # of a step: functions and modules that take less count as if they took this much


@dataclass(frozen=True)
class Measure:
    """A number for each piece, or several by `key`: one for each function, for example."""

    name: str
    unit: str
    sql: str  # columns piece, value, and key if there are several
    better: str = LESS
    # What counts as a change, and as a large one: percent of what it was, or an amount in the unit.
    change: float = 3.0
    much: float = 8.0
    is_share: bool = True
    is_keyed: bool = False
    least: float = 0.0  # keys whose numbers stay below this are left out
    has_zeros: bool = False  # a piece without a row for a key counts as zero

    def find_limits(self, before: float, step_ms: float | None) -> tuple[float, float]:
        """Return what counts as a change, and as a large one, in the unit. Parts of a step are
        measured by the whole step: one that doubles from almost nothing is still almost nothing."""
        if not self.is_share:
            return self.change, self.much
        whole = before
        if step_ms is not None and self.unit == A_STEP:
            whole = max(before, _PART * step_ms) if self.is_keyed else step_ms
        return self.change * abs(whole) / 100, self.much * abs(whole) / 100

    def count_by_run(self, run_s: float) -> Measure:
        """Return the measure in seconds of a whole run, of at least `run_s`, instead of a share of
        its time: a run that waits longer has not computed less."""
        share = 1.0 if self.is_share else run_s / 100
        return replace(
            self, unit=A_RUN, better=LESS, change=self.change * share, much=self.much * share,
            least=self.least * run_s / 100,
        )  # fmt: skip


def _step(part: str) -> Measure:
    sql = f"""
    SELECT {{piece}} AS piece, AVG({part}_ns) / 1e6 AS value FROM python.torch_step
    WHERE {{inside}} AND {{main_step}} GROUP BY ALL"""
    return Measure(part.replace("_", " "), A_STEP, sql, change=0.75, much=2.0)


_TREE = """
SELECT {{piece}} AS piece, AVG(value) AS value FROM (
  SELECT ts, {what} AS value FROM system.process WHERE {{inside}} GROUP BY ts, host, pid, t_ns)
GROUP BY ALL"""

_RATE = """
SELECT {{piece}} AS piece, AVG(value) AS value FROM (
  SELECT ts, 1e3 * SUM({what}) / MAX(interval_ns) AS value FROM system.disk
  WHERE {{inside}} AND interval_ns > 0 GROUP BY ts, host, t_ns)
GROUP BY ALL"""

STEP = Measure(
    "step", "ms", """
    SELECT {piece} AS piece, MEDIAN(dur_ns) / 1e6 AS value FROM python.torch_step
    WHERE {inside} AND {main_step} GROUP BY ALL""",
)  # fmt: skip
PARTS = tuple(
    _step(part)
    for part in ("input_wait", "host_to_device", "forward", "backward", "optimizer", "other")
)
RUN = Measure("run", "s", "", LESS, 10.0, 25.0)
STARVATION = Measure(
    "waiting for a processor", "% of a core", _TREE.format(what="SUM(run_wait_pct)"),
    LESS, 5.0, 20.0, False,
)  # fmt: skip
MACHINE = (
    Measure("GPU use", "%", """
        SELECT {piece} AS piece, AVG(util_pct) AS value FROM system.gpu
        WHERE {inside} AND {job_gpu} GROUP BY ALL""", MORE, 2.0, 10.0, False),
    Measure("GPU memory", "MB", """
        SELECT {piece} AS piece, MAX(memory_used_bytes) / 1e6 AS value FROM system.gpu
        WHERE {inside} AND {job_gpu} GROUP BY ALL""", LESS, 256.0, 1000.0, False),
    Measure("GPU power", "W", """
        SELECT {piece} AS piece, AVG(power_w) AS value FROM system.gpu
        WHERE {inside} AND {job_gpu} GROUP BY ALL""", NEITHER, 5.0, 20.0, True),
    Measure("CPU of the job", "% of a core",
            _TREE.format(what="SUM(user_pct + system_pct)"), NEITHER, 5.0, 20.0, True),
    STARVATION,
    Measure("memory of the job", "MB", _TREE.format(what="SUM(rss_bytes) / 1e6"),
            LESS, 256.0, 1000.0, False),
    Measure("CPU of the machine", "%", """
        SELECT {piece} AS piece, AVG(busy_pct) AS value FROM system.cpu
        WHERE {inside} GROUP BY ALL""", NEITHER, 5.0, 20.0, False),
    Measure("read from disks", "MB/s", _RATE.format(what="read_bytes"),
            NEITHER, 20.0, 100.0, True),
    Measure("written to disks", "MB/s", _RATE.format(what="written_bytes"),
            NEITHER, 20.0, 100.0, True),
    Measure("garbage collection", "% of the time", """
        SELECT {piece} AS piece, SUM(dur_ns) / 1e7 / {piece_s} AS value FROM python.gc_pause
        WHERE {inside} GROUP BY ALL""", LESS, 0.5, 2.0, False, has_zeros=True),
)  # fmt: skip

# Per step where the program has steps: that one function takes more does not make the others take
# less. Otherwise per second.
_PER_STEP = """
WITH step AS (
  SELECT {piece} AS piece, COUNT(*) AS n FROM python.torch_step WHERE {inside} GROUP BY ALL)
SELECT own.piece, own.key, own.file, own.ns / 1e6 / step.n AS value FROM (
  SELECT {piece} AS piece, f.func AS key, f.file AS file, SUM(s.cpu_ns) AS ns
  FROM python.stack_sample AS s JOIN (
    SELECT DISTINCT stack, func, file FROM python.frame WHERE depth = 0) AS f USING (stack)
  WHERE {inside} AND s.cpu_ns > 0 GROUP BY ALL) AS own JOIN step USING (piece)"""
_PER_SECOND = """
SELECT {piece} AS piece, f.func AS key, f.file AS file,
       SUM(s.cpu_ns) / 1e7 / {piece_s} AS value
FROM python.stack_sample AS s JOIN (
  SELECT DISTINCT stack, func, file FROM python.frame WHERE depth = 0) AS f USING (stack)
WHERE {inside} AND s.cpu_ns > 0 GROUP BY ALL"""
FUNCTIONS_OF_STEPS = Measure(
    "function", A_STEP, _PER_STEP, LESS, 5.0, 20.0,
    is_keyed=True, has_zeros=True,
)  # fmt: skip
FUNCTIONS = Measure(
    "function", "% of a core", _PER_SECOND, NEITHER, 1.0, 5.0, False,
    is_keyed=True, least=1.0, has_zeros=True,
)  # fmt: skip
MODULES = Measure(
    "module", A_STEP, """
    SELECT {piece} AS piece, module || ', ' || stage AS key,
           1e3 * SUM(self_duration) / COUNT(DISTINCT step) AS value
    FROM python.torch_trace WHERE {inside} GROUP BY ALL""", LESS, 5.0, 20.0,
    is_keyed=True,
)  # fmt: skip
REQUESTS = Measure(
    "request", "ms a request", """
    SELECT {piece} AS piece, CONCAT_WS(' ', method, COALESCE(route, '(no route)')) AS key,
           MEDIAN(dur_ns) / 1e6 AS value
    FROM python.request WHERE {inside} GROUP BY ALL""", LESS, 10.0, 30.0,
    is_keyed=True, least=0.5,
)  # fmt: skip
SPANS = Measure(
    "span", "ms a span", """
    SELECT {piece} AS piece, 'span ' || name AS key, MEDIAN(dur_ns) / 1e6 AS value
    FROM event.span WHERE {inside} GROUP BY ALL""", LESS, 10.0, 30.0,
    is_keyed=True, least=0.1,
)  # fmt: skip
