"""SQL that puts readings together from the tables of the sensors.

A reading is a row of system.cpu. A row of another table belongs to the reading it was taken with:
the newest one at most half a period after the row. Amounts are those of one reading; divided by its
interval they are rates, so that rates times intervals add up to the amounts. Sums are doubles:
the sum of 64-bit integers has 128 bits, which JSON does not know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sonde.monitor.scope import Scope


@dataclass(frozen=True)
class MeasuredTime:
    """The readings after `begin_ns` and up to `end_ns`, taken every `every_ns`."""

    begin_ns: int
    end_ns: int
    every_ns: int
    scope: Scope

    @property
    def seconds(self) -> float:
        """Its length."""
        return max(0, self.end_ns - self.begin_ns) / 1e9


def write_readings(window: MeasuredTime) -> str:
    """Return the SQL of `reading`, for a WITH clause: one row for each reading."""
    return f"""
reading_at AS (
    SELECT t_ns, interval_ns, cores, busy_pct * cores AS machine_pct,
           iowait_pct * cores AS iowait_pct
    FROM system.cpu WHERE t_ns > {window.begin_ns} AND t_ns <= {window.end_ns}
),
{_write_tree(window) if window.scope.is_tree else _write_all(window)},
wire AS (
    SELECT reading_at.t_ns, SUM(part.received_bytes)::DOUBLE AS received_bytes,
           SUM(part.sent_bytes)::DOUBLE AS sent_bytes
    FROM {_near("network", window)} WHERE part.kind IS DISTINCT FROM 'loopback'
    GROUP BY reading_at.t_ns
),
room AS (
    SELECT reading_at.t_ns, ARG_MAX(part.total_bytes, part.t_ns) AS total_bytes
    FROM {_near("memory", window)} GROUP BY reading_at.t_ns
),
border AS (
    SELECT reading_at.t_ns, ARG_MAX(part.memory_limit_bytes, part.t_ns) AS limit_bytes
    FROM {_near("cgroup", window)} GROUP BY reading_at.t_ns
),
reading AS (
    SELECT reading_at.t_ns, reading_at.interval_ns, reading_at.cores, reading_at.machine_pct,
           reading_at.iowait_pct, mine.used_bytes,
           CASE WHEN mine.cpu_pct IS NOT NULL THEN LEAST(mine.cpu_pct, 100 * reading_at.cores) END
               AS cpu_pct,
           LEAST(room.total_bytes, border.limit_bytes) AS total_bytes,
           mine.read_bytes, mine.written_bytes, wire.received_bytes, wire.sent_bytes
    FROM reading_at LEFT JOIN mine USING (t_ns) LEFT JOIN wire USING (t_ns)
    LEFT JOIN room USING (t_ns) LEFT JOIN border USING (t_ns) ORDER BY t_ns
)"""


def _near(table: str, window: MeasuredTime) -> str:
    """Return the SQL of a table's rows, each joined with its reading."""
    half_ns = window.every_ns // 2
    return f"""(SELECT * FROM system.{table} WHERE t_ns > {window.begin_ns + half_ns}) AS part
        ASOF JOIN reading_at ON part.t_ns - {half_ns} <= reading_at.t_ns"""


# CPU time by the longer of two intervals, and never more than the processors can do: the two clocks
# are not read at the same moment.
_CPU = """SUM((part.user_pct + part.system_pct) * part.interval_ns) FILTER ({0})
            / GREATEST(ANY_VALUE(reading_at.interval_ns), MAX(part.interval_ns) FILTER ({0}))"""


def _write_tree(window: MeasuredTime) -> str:
    below = f"part.depth >= {window.scope.depth}"
    return f"""
mine AS (
    SELECT reading_at.t_ns, {_CPU.format(below)} AS cpu_pct,
           SUM(part.rss_bytes) FILTER ({below})::DOUBLE AS used_bytes,
           SUM(part.read_bytes)::DOUBLE AS read_bytes,
           SUM(part.written_bytes)::DOUBLE AS written_bytes
    FROM {_near("process", window)}
    WHERE {below} OR part.t_ns > {window.scope.ended_ns} GROUP BY reading_at.t_ns
)"""


def _write_all(window: MeasuredTime) -> str:
    return f"""
own AS (
    SELECT reading_at.t_ns, {_CPU.format("TRUE")} AS cpu_pct,
           ARG_MAX(part.memory_bytes, part.t_ns) AS used_bytes,
           SUM(part.read_bytes)::DOUBLE AS read_bytes,
           SUM(part.written_bytes)::DOUBLE AS written_bytes
    FROM {_near("cgroup", window)} GROUP BY reading_at.t_ns
),
used AS (
    SELECT reading_at.t_ns, ARG_MAX(part.used_bytes, part.t_ns) AS used_bytes
    FROM {_near("memory", window)} GROUP BY reading_at.t_ns
),
moved AS (
    SELECT reading_at.t_ns, SUM(part.read_bytes)::DOUBLE AS read_bytes,
           SUM(part.written_bytes)::DOUBLE AS written_bytes
    FROM {_near("disk", window)} GROUP BY reading_at.t_ns
),
mine AS (
    SELECT reading_at.t_ns, COALESCE(own.cpu_pct, reading_at.machine_pct) AS cpu_pct,
           COALESCE(own.used_bytes, used.used_bytes) AS used_bytes,
           COALESCE(own.read_bytes, moved.read_bytes) AS read_bytes,
           COALESCE(own.written_bytes, moved.written_bytes) AS written_bytes
    FROM reading_at LEFT JOIN own USING (t_ns) LEFT JOIN used USING (t_ns)
    LEFT JOIN moved USING (t_ns)
)"""


def write_gpus(window: MeasuredTime, gpus: Sequence[int] | None) -> str:
    """Return the SQL of `card`: one row for each reading and GPU, of these GPUs or of all."""
    chosen = "TRUE" if gpus is None else f"part.gpu IN ({', '.join(map(str, gpus)) or 'NULL'})"
    last = ", ".join(f"ARG_MAX(part.{name}, part.t_ns) AS {name}" for name in GPU_NUMBERS)
    return f"""
card AS (
    SELECT reading_at.t_ns, part.gpu, ANY_VALUE(part.name) AS name, {last},
           STRING_AGG(DISTINCT part.throttle, '+') AS throttle
    FROM {_near("gpu", window)} WHERE {chosen} GROUP BY reading_at.t_ns, part.gpu
)"""


GPU_NUMBERS = ("util_pct", "memory_util_pct", "memory_used_bytes", "memory_total_bytes", "power_w",
               "sm_clock_mhz", "temperature_c")  # fmt: skip

# The lines that are drawn: name, unit and SQL.
LINES = (
    ("cpu", "%", "cpu_pct"),
    ("machine", "%", "machine_pct"),
    ("iowait", "%", "iowait_pct"),
    ("memory_used", "GiB", "used_bytes / 1073741824"),
    ("memory_total", "GiB", "total_bytes / 1073741824"),
    ("read", "MiB/s", "read_bytes * 1e9 / interval_ns / 1048576"),
    ("written", "MiB/s", "written_bytes * 1e9 / interval_ns / 1048576"),
    ("received", "MiB/s", "received_bytes * 1e9 / interval_ns / 1048576"),
    ("sent", "MiB/s", "sent_bytes * 1e9 / interval_ns / 1048576"),
)
GPU_LINES = (
    ("util", "%", "util_pct"),
    ("memory", "%", "100.0 * memory_used_bytes / NULLIF(memory_total_bytes, 0)"),
    ("power", "W", "power_w"),
    ("clock", "MHz", "sm_clock_mhz"),
    ("temperature", "°C", "temperature_c"),
)


def ask_lines(window: MeasuredTime, most: int) -> str:
    """Return the SQL of all LINES in at most `most` time steps: mean, lowest and highest."""
    wanted = ", ".join(_three(name, sql) for name, _unit, sql in LINES)
    return f"""WITH {write_readings(window)}
SELECT {_step(window, most)} AS step, MEDIAN(t_ns)::BIGINT AS t_ns, {wanted}
FROM reading GROUP BY step ORDER BY step"""


def ask_gpu_lines(window: MeasuredTime, gpus: Sequence[int] | None, most: int) -> str:
    """Return the same SQL for GPU_LINES, by GPU."""
    wanted = ", ".join(_three(name, sql) for name, _unit, sql in GPU_LINES)
    return f"""WITH {write_readings(window)}, {write_gpus(window, gpus)}
SELECT gpu, {_step(window, most)} AS step, {wanted} FROM card GROUP BY gpu, step
ORDER BY gpu, step"""


def _step(window: MeasuredTime, most: int) -> str:
    span_ns = max(1, window.end_ns - window.begin_ns)
    # Where all readings fit, each is a step of its own.
    if span_ns <= most * window.every_ns:
        return "t_ns"
    return f"(t_ns - {window.begin_ns} - 1) // {-(-span_ns // most)}"


def _three(name: str, sql: str) -> str:
    return f"AVG({sql}) AS {name}, MIN({sql}) AS {name}_low, MAX({sql}) AS {name}_high"
