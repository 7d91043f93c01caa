"""The statistics of the measured time: max, min, mean, deviation, median, p80 and volumes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sonde.monitor.reading_sql import MeasuredTime, write_gpus, write_readings
from sonde.store.recording import Recording

Numbers = dict[str, Any]

_SPREAD = {
    "max": "MAX({0})", "min": "MIN({0})", "mean": "AVG({0})", "std": "STDDEV_POP({0})",
    "median": "MEDIAN({0})", "p80": "QUANTILE_CONT({0}, 0.8)", "readings": "COUNT({0})",
}  # fmt: skip
_AMOUNTS = ("read_bytes", "written_bytes", "received_bytes", "sent_bytes")
_AMOUNT = {
    "volume_bytes": "SUM({0})",
    "max_bytes_s": "MAX({0} * 1e9 / interval_ns)",
    "min_without_zero_bytes_s": "MIN({0} * 1e9 / interval_ns) FILTER ({0} > 0)",
    "mean_bytes_s": "SUM({0}) * 1e9 / SUM(interval_ns) FILTER ({0} IS NOT NULL)",
}
_GPU_SHARE = "(100.0 * memory_used_bytes / NULLIF(memory_total_bytes, 0))"


def compute(recording: Recording, window: MeasuredTime, gpus: Sequence[int] | None) -> Numbers:
    """Return the statistics as report.json has them; what could not be measured is None."""
    readings = write_readings(window)
    parts = [_write(_SPREAD, "cpu_pct", "cpu_pct"), _write(_SPREAD, "used_bytes", "memory")]
    parts += [_write(_AMOUNT, name, name) for name in _AMOUNTS]
    (row,) = recording.query(
        f"""WITH {readings} SELECT COUNT(*) AS readings, SUM(interval_ns)::BIGINT AS measured_ns,
        MAX(interval_ns) AS longest_interval_ns, MAX(cores) AS cores,
        MAX(total_bytes)::DOUBLE AS memory_total_bytes, {", ".join(parts)} FROM reading"""
    ).to_pylist()
    found = {key: row[key] for key in ("readings", "measured_ns", "longest_interval_ns", "cores")}
    return {
        **found,
        "cpu_pct": _read(_SPREAD, row, "cpu_pct"),
        "memory_used_bytes": _read(_SPREAD, row, "memory"),
        "memory_total_bytes": row["memory_total_bytes"],
        **{name: _read(_AMOUNT, row, name) for name in _AMOUNTS},
        "network_of": window.scope.network_of,
        "gpus": _compute_gpus(recording, f"{readings}, {write_gpus(window, gpus)}"),
    }


def _write(kinds: dict[str, str], column: str, prefix: str) -> str:
    return ", ".join(f"{sql.format(column)} AS {prefix}_{key}" for key, sql in kinds.items())


def _read(kinds: dict[str, str], row: Numbers, prefix: str) -> Numbers:
    return {key: row[f"{prefix}_{key}"] for key in kinds}


def _compute_gpus(recording: Recording, readings: str) -> list[Numbers]:
    rows = recording.query(
        f"""WITH {readings} SELECT gpu, ANY_VALUE(name) AS name,
        {_write(_SPREAD, "util_pct", "util")}, {_write(_SPREAD, _GPU_SHARE, "memory")},
        MAX(memory_used_bytes) AS memory_peak_bytes, MAX(memory_total_bytes) AS memory_total_bytes,
        AVG(power_w) AS power_w, MAX(temperature_c) AS temperature_max_c,
        AVG(sm_clock_mhz) AS sm_clock_mhz, STRING_AGG(DISTINCT throttle, '+') AS throttle,
        100.0 * COUNT(throttle) / COUNT(*) AS throttled_pct
        FROM card GROUP BY gpu ORDER BY gpu"""
    ).to_pylist()
    plain = ("gpu", "name", "memory_peak_bytes", "memory_total_bytes", "power_w",
             "temperature_max_c", "sm_clock_mhz", "throttle", "throttled_pct")  # fmt: skip
    return [
        {**{key: row[key] for key in plain}, "util_pct": _read(_SPREAD, row, "util"),
         "memory_pct": _read(_SPREAD, row, "memory")}
        for row in rows
    ]  # fmt: skip
