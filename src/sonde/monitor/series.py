"""What was measured, in SQL: the looks of a window, and the GPUs in them.

A look is a row of system.cpu. The rows of other tables belong to the look that they were made
with: the first one not more than half a period before them. Amounts are those of a look; divided
by its interval they are rates, so that rates times intervals add up to the amounts. Sums are
doubles: of 64 bits they would be of 128, which JSON does not know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sonde.monitor.scope import Scope


@dataclass(frozen=True)
class Window:
    """The looks after `begin_ns` up to `end_ns`, taken every `every_ns`."""

    begin_ns: int
    end_ns: int
    every_ns: int
    scope: Scope

    @property
    def seconds(self) -> float:
        """How long it is."""
        return max(0, self.end_ns - self.begin_ns) / 1e9


def write_looks(window: Window) -> str:
    """The SQL of `look`, to be put behind WITH: one row a look."""
    return f"""
look_at AS (
    SELECT t_ns, interval_ns, cores, busy_pct * cores AS machine_pct,
           iowait_pct * cores AS iowait_pct
    FROM system.cpu WHERE t_ns > {window.begin_ns} AND t_ns <= {window.end_ns}
),
{_write_tree(window) if window.scope.is_tree else _write_all(window)},
wire AS (
    SELECT look_at.t_ns, SUM(part.received_bytes)::DOUBLE AS received_bytes,
           SUM(part.sent_bytes)::DOUBLE AS sent_bytes
    FROM {_near("network", window)} WHERE part.kind IS DISTINCT FROM 'loopback'
    GROUP BY look_at.t_ns
),
room AS (
    SELECT look_at.t_ns, ARG_MAX(part.total_bytes, part.t_ns) AS total_bytes
    FROM {_near("memory", window)} GROUP BY look_at.t_ns
),
border AS (
    SELECT look_at.t_ns, ARG_MAX(part.memory_limit_bytes, part.t_ns) AS limit_bytes
    FROM {_near("cgroup", window)} GROUP BY look_at.t_ns
),
look AS (
    SELECT look_at.t_ns, look_at.interval_ns, look_at.cores, look_at.machine_pct,
           look_at.iowait_pct, mine.used_bytes,
           CASE WHEN mine.cpu_pct IS NOT NULL THEN LEAST(mine.cpu_pct, 100 * look_at.cores) END
               AS cpu_pct,
           LEAST(room.total_bytes, border.limit_bytes) AS total_bytes,
           mine.read_bytes, mine.written_bytes, wire.received_bytes, wire.sent_bytes
    FROM look_at LEFT JOIN mine USING (t_ns) LEFT JOIN wire USING (t_ns)
    LEFT JOIN room USING (t_ns) LEFT JOIN border USING (t_ns) ORDER BY t_ns
)"""


def _near(table: str, window: Window) -> str:
    """The rows of a table, each with its look."""
    half_ns = window.every_ns // 2
    return f"""(SELECT * FROM system.{table} WHERE t_ns > {window.begin_ns + half_ns}) AS part
        ASOF JOIN look_at ON part.t_ns - {half_ns} <= look_at.t_ns"""


# CPU time by the longer of the two intervals, and never more than the processors can do: two clocks
# are not read at the same time.
_CPU = """SUM((part.user_pct + part.system_pct) * part.interval_ns) FILTER ({0})
            / GREATEST(ANY_VALUE(look_at.interval_ns), MAX(part.interval_ns) FILTER ({0}))"""


def _write_tree(window: Window) -> str:
    below = f"part.depth >= {window.scope.depth}"
    return f"""
mine AS (
    SELECT look_at.t_ns, {_CPU.format(below)} AS cpu_pct,
           SUM(part.rss_bytes) FILTER ({below})::DOUBLE AS used_bytes,
           SUM(part.read_bytes)::DOUBLE AS read_bytes,
           SUM(part.written_bytes)::DOUBLE AS written_bytes
    FROM {_near("process", window)}
    WHERE {below} OR part.t_ns > {window.scope.ended_ns} GROUP BY look_at.t_ns
)"""


def _write_all(window: Window) -> str:
    return f"""
own AS (
    SELECT look_at.t_ns, {_CPU.format("TRUE")} AS cpu_pct,
           ARG_MAX(part.memory_bytes, part.t_ns) AS used_bytes,
           SUM(part.read_bytes)::DOUBLE AS read_bytes,
           SUM(part.written_bytes)::DOUBLE AS written_bytes
    FROM {_near("cgroup", window)} GROUP BY look_at.t_ns
),
used AS (
    SELECT look_at.t_ns, ARG_MAX(part.used_bytes, part.t_ns) AS used_bytes
    FROM {_near("memory", window)} GROUP BY look_at.t_ns
),
moved AS (
    SELECT look_at.t_ns, SUM(part.read_bytes)::DOUBLE AS read_bytes,
           SUM(part.written_bytes)::DOUBLE AS written_bytes
    FROM {_near("disk", window)} GROUP BY look_at.t_ns
),
mine AS (
    SELECT look_at.t_ns, COALESCE(own.cpu_pct, look_at.machine_pct) AS cpu_pct,
           COALESCE(own.used_bytes, used.used_bytes) AS used_bytes,
           COALESCE(own.read_bytes, moved.read_bytes) AS read_bytes,
           COALESCE(own.written_bytes, moved.written_bytes) AS written_bytes
    FROM look_at LEFT JOIN own USING (t_ns) LEFT JOIN used USING (t_ns)
    LEFT JOIN moved USING (t_ns)
)"""


def write_gpus(window: Window, gpus: Sequence[int] | None) -> str:
    """The SQL of `card`: one row a look and GPU, of these GPUs or of all."""
    chosen = "TRUE" if gpus is None else f"part.gpu IN ({', '.join(map(str, gpus)) or 'NULL'})"
    last = ", ".join(f"ARG_MAX(part.{name}, part.t_ns) AS {name}" for name in GPU_NUMBERS)
    return f"""
card AS (
    SELECT look_at.t_ns, part.gpu, ANY_VALUE(part.name) AS name, {last},
           STRING_AGG(DISTINCT part.throttle, '+') AS throttle
    FROM {_near("gpu", window)} WHERE {chosen} GROUP BY look_at.t_ns, part.gpu
)"""


GPU_NUMBERS = ("util_pct", "memory_util_pct", "memory_used_bytes", "memory_total_bytes", "power_w",
               "sm_clock_mhz", "temperature_c")  # fmt: skip

# What is drawn of the looks: a name, its unit, its SQL.
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


def ask_lines(window: Window, most: int) -> str:
    """Every line of LINES in at most so many steps of time: mean, lowest and highest of each."""
    wanted = ", ".join(_three(name, sql) for name, _unit, sql in LINES)
    return f"""WITH {write_looks(window)}
SELECT {_step(window, most)} AS step, MEDIAN(t_ns)::BIGINT AS t_ns, {wanted}
FROM look GROUP BY step ORDER BY step"""


def ask_gpu_lines(window: Window, gpus: Sequence[int] | None, most: int) -> str:
    """The same of GPU_LINES, for every GPU."""
    wanted = ", ".join(_three(name, sql) for name, _unit, sql in GPU_LINES)
    return f"""WITH {write_looks(window)}, {write_gpus(window, gpus)}
SELECT gpu, {_step(window, most)} AS step, {wanted} FROM card GROUP BY gpu, step
ORDER BY gpu, step"""


def _step(window: Window, most: int) -> str:
    span_ns = max(1, window.end_ns - window.begin_ns)
    # Not below a look: where all fit, each is a step of its own.
    if span_ns <= most * window.every_ns:
        return "t_ns"
    return f"(t_ns - {window.begin_ns} - 1) // {-(-span_ns // most)}"


def _three(name: str, sql: str) -> str:
    return f"AVG({sql}) AS {name}, MIN({sql}) AS {name}_low, MAX({sql}) AS {name}_high"
