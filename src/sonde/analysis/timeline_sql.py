"""The SQL of timelines: regions, markers, counters, garbage collections and machines."""

from __future__ import annotations

# The columns of every query. `ph` is Chrome's letter for the kind: X a slice on a lane, b a slice
# on a track of its own (its `id`), i an instant of a `scope`, C a counter, s t f a flow (its `id`).
COLUMNS = "ph, pid, tid, start_ns, dur_ns, name, cat, args, id, scope"

# `process` and `named` are defined in profile.py; `numbered` and `machine` in timeline.py: they
# give the numbers that processes and machines have in the trace.
TABLES = (
    "event.span", "event.open_span", "event.attribute", "event.marker", "event.counter",
    "python.gc_pause", "python.collective", "python.thread", "python.stack_sample", "python.frame",
    "python.torch_trace", "python.operator", "python.torch_op", "python.torch_kernel",
    "python.torch_capture", "system.cpu", "system.memory", "system.gpu", "system.disk",
    "system.network", "system.process",
)  # fmt: skip

_PART = """
    AND epoch_us(ts) >= first_us AND epoch_us(ts) < next_us"""
_TIME = """
    AND start_ns > {low_ns} AND start_ns <= {high_ns}"""
_IN = "({in_window})"
# AsideRegion the exact bounds: it is what spares reading all of a long archive.
_NEAR = """
    AND ts >= make_timestamptz({low_us}) AND ts <= make_timestamptz({high_us})"""

# Regions, ended or not. A region that touches the window belongs to it.
REGIONS = f"""
regions AS (
    SELECT part, t_ns + offset_ns AS start_ns, dur_ns, event.span.name AS label, domain, kind, id,
        parent, thread, end_thread, paused_ns, cut, event.span.number AS frame, error,
        false AS unfinished
    FROM event.span JOIN process USING (host, pid)
    WHERE true{_PART}{_NEAR}{_TIME}
        AND ({{touches}})
    UNION ALL
    SELECT part, t_ns + offset_ns AS start_ns, greatest(0, {{until_ns}} - start_ns), o.name,
        domain, kind, id, parent, thread, thread, 0, NULL, o.number, NULL, true
    FROM event.open_span AS o JOIN process USING (host, pid)
    WHERE start_ns >= first_us * 1000 AND start_ns < next_us::HUGEINT * 1000{_TIME}
        AND start_ns <= {{until_ns}}
        AND NOT EXISTS (FROM event.span AS e WHERE e.id = o.id AND e.pid = o.pid
            AND e.host = o.host AND e.t_ns + offset_ns >= first_us * 1000)),
chosen AS (
    SELECT regions.*, number, COALESCE(name, 'thread') AS name
    FROM regions JOIN numbered USING (part) LEFT JOIN named USING (part, thread)
    WHERE ({{threads}}) AND ({{which}}))"""

# What region_layout needs, in the order in which it needs it.
NARROW = f"""{{named}},{REGIONS}
SELECT part::BIGINT AS part, id, COALESCE(parent, -1) AS parent, thread::BIGINT AS thread,
    end_thread::BIGINT AS end_thread, start_ns,
    CASE WHEN unfinished THEN {{ever_ns}} ELSE start_ns + dur_ns END AS end_ns
FROM chosen ORDER BY part, start_ns, dur_ns DESC, id"""

# Attributes that the program gave a region under these names are renamed.
_OWN_KEYS = "('id','kind','domain','number','error','cut','paused_ns','end_thread','unfinished')"


def _attributes(key: str = "key") -> str:
    """Return SQL for the attributes of what is chosen, as the inside of a JSON object."""
    return f"""
attributed AS (
    SELECT part, id, string_agg(to_json({key}) || ':' || value, ',' ORDER BY key) AS attributes
    FROM (SELECT part, id, key, arg_max(CASE WHEN whole IS NOT NULL THEN to_json(whole)
            WHEN isfinite(number) THEN to_json(number)
            WHEN number IS NOT NULL THEN to_json(number::VARCHAR) ELSE to_json(text) END, t_ns)
            AS value
        FROM event.attribute JOIN process USING (host, pid)
        WHERE id >= (SELECT MIN(id) FROM chosen) AND id <= (SELECT MAX(id) FROM chosen){_PART}
        GROUP BY part, id, key)
    GROUP BY part, id)"""


# A `misfit` comes from region_layout, with its family and its track.
_KEY = f"CASE WHEN key IN {_OWN_KEYS} THEN key || ' (attribute)' ELSE key END"
SPANS = f"""{{named}},{REGIONS},{_attributes(_KEY)}
SELECT CASE WHEN track IS NULL THEN 'X' ELSE 'b' END AS ph, number AS pid,
    {{lane}} + thread AS tid, start_ns, dur_ns,
    COALESCE(label, '?') AS name,
    CASE WHEN kind = 'frame' THEN concat_ws(',', domain, 'frame')
        ELSE COALESCE(domain, kind) END AS cat,
    CASE WHEN attributes IS NULL THEN own
        ELSE concat(own[:-2], ',', attributes, '}}}}') END AS args,
    CASE WHEN track IS NOT NULL THEN concat_ws('.', number, family, track) END AS id,
    NULL AS scope, part, chosen.id AS region
FROM (SELECT *, CASE WHEN kind = 'span' AND domain IS NULL AND cut IS NULL AND error IS NULL
            AND paused_ns = 0 AND end_thread = thread AND frame IS NULL AND NOT unfinished
        THEN concat('{{{{"id":', id, '}}}}') ELSE concat('{{{{', concat_ws(',', '"id":' || id,
        CASE WHEN kind <> 'span' THEN '"kind":' || to_json(kind) END,
        CASE WHEN domain IS NOT NULL THEN '"domain":' || to_json(domain) END,
        '"number":' || frame, '"error":' || to_json(error), '"cut":' || to_json(cut),
        CASE WHEN paused_ns > 0 THEN '"paused_ns":' || paused_ns END,
        CASE WHEN end_thread <> thread THEN '"end_thread":' || end_thread END,
        CASE WHEN unfinished THEN '"unfinished":true' END), '}}}}') END AS own
    FROM chosen) AS chosen
    LEFT JOIN misfit USING (part, id) LEFT JOIN attributed USING (part, id)
ORDER BY start_ns, dur_ns DESC, chosen.id"""

# From a parent to a child that was begun for it elsewhere. `stray` comes from region_layout.
FLOWS = """{named},
pair AS (
    SELECT numbered.number AS number, parent.thread AS thread, child.thread AS to_thread,
        parent.t_ns + offset_ns AS begin_ns, child.t_ns + offset_ns AS to_ns,
        greatest(begin_ns, least(to_ns, begin_ns + parent.dur_ns - 1)) AS from_ns,
        part, stray.id AS id
    FROM stray JOIN process USING (part) JOIN numbered USING (part)
        JOIN event.span AS child ON child.id = stray.id AND child.host = process.host
            AND child.pid = process.pid AND child.t_ns + offset_ns >= first_us * 1000
        JOIN event.span AS parent ON parent.id = stray.parent AND parent.host = process.host
            AND parent.pid = process.pid AND parent.t_ns + offset_ns >= first_us * 1000
    WHERE to_ns >= begin_ns AND to_ns < next_us::HUGEINT * 1000
        AND NOT EXISTS (FROM misfit WHERE misfit.part = stray.part
            AND misfit.id IN (stray.id, stray.parent)))
SELECT 's' AS ph, number AS pid, {lane} + thread AS tid, from_ns AS start_ns, 0 AS dur_ns,
    'submit' AS name, 'flow' AS cat, NULL AS args, concat('r', part, '.', id) AS id, NULL AS scope
FROM pair
UNION ALL
SELECT 'f', number, {lane} + to_thread, to_ns, 0, 'submit', 'flow', NULL,
    concat('r', part, '.', id), NULL
FROM pair"""

_MARKERS = f"""{{named}},
chosen AS (
    SELECT part, number, t_ns + offset_ns AS start_ns, m.name AS label, domain, m.scope AS wide, id,
        thread, COALESCE(named.name, 'thread') AS name
    FROM event.marker AS m JOIN process USING (host, pid) JOIN numbered USING (part)
        LEFT JOIN named USING (part, thread)
    WHERE true{_PART}{_NEAR}{_TIME} AND {_IN}
        AND ({{threads}})),{_attributes()}
SELECT 'i' AS ph, number AS pid, {{lane}} + thread AS tid, start_ns, 0 AS dur_ns,
    COALESCE(label, '?') AS name, concat_ws(',', domain, 'marker') AS cat,
    '{{{{' || attributes || '}}}}' AS args, NULL AS id,
    CASE wide WHEN 'global' THEN 'g' WHEN 'process' THEN 'p' ELSE 't' END AS scope
FROM chosen LEFT JOIN attributed USING (part, id) ORDER BY start_ns, chosen.id"""

# JSON has neither NaN nor infinity; the largest number stands for infinity.
_COUNTERS = f"""{{named}}
SELECT 'C' AS ph, number AS pid, 0 AS tid, t_ns + offset_ns AS start_ns, 0 AS dur_ns,
    COALESCE(c.name, '?') AS name, COALESCE(domain, 'counter') AS cat,
    concat('{{{{"value":', CASE WHEN whole IS NOT NULL THEN whole::VARCHAR
        WHEN isinf(value) THEN CASE WHEN value > 0 THEN '1.7976931348623157e308'
            ELSE '-1.7976931348623157e308' END
        ELSE value::VARCHAR END, '}}}}') AS args, domain AS id, NULL AS scope
FROM event.counter AS c JOIN process USING (host, pid) JOIN numbered USING (part)
WHERE NOT isnan(value){_PART}{_NEAR}{_TIME} AND {_IN}
ORDER BY start_ns"""

_GC = f"""{{named}}
SELECT 'X' AS ph, number AS pid, {{lane}} AS tid, t_ns + offset_ns AS start_ns, dur_ns,
    'gc generation ' || generation AS name, 'gc' AS cat,
    concat('{{{{"collected":', collected, ',"uncollectable":', uncollectable, '}}}}') AS args,
    NULL AS id, NULL AS scope
FROM python.gc_pause JOIN process USING (host, pid) JOIN numbered USING (part)
WHERE true{_PART}{_NEAR}{_TIME} AND {_IN}
ORDER BY start_ns"""

# The queries of instants, counters and pauses, by table.
POINTS = {"event.marker": _MARKERS, "event.counter": _COUNTERS, "python.gc_pause": _GC}


def _measure(
    table: str, name: str, series: dict[str, str], where: str = "true", by: str = ""
) -> str:
    """Return the SQL of one counter track of a machine."""
    parts = [f"'\"{key}\":' || round({value}, 3)" for key, value in series.items()]
    grouped = f"GROUP BY number, t_ns, start_ns, interval_ns{by}"
    body = ", ".join(parts)
    return f"""
SELECT 'C' AS ph, number AS pid, 0 AS tid, epoch_us(ts) * 1000 AS start_ns, 0 AS dur_ns,
    {name} AS name, 'machine' AS cat, concat('{{{{', concat_ws(',', {body}), '}}}}') AS args,
    NULL AS id, NULL AS scope
FROM {table} JOIN machine USING (host)
WHERE {where}{_NEAR}{_TIME} AND {_IN} {grouped}"""


_MB_S = "SUM({}) * 1000.0 / interval_ns"  # bytes and nanoseconds to MB and seconds

# The process itself, as the kernel reports it.
_OWN = f"""{{named}}
SELECT 'C' AS ph, number AS pid, 0 AS tid, t_ns + offset_ns AS start_ns, 0 AS dur_ns,
    unnest(['process CPU (%)', 'process memory (GB)']) AS name, 'process' AS cat,
    unnest([concat('{{{{"user":', round(user_pct, 3), ',"system":', round(system_pct, 3), '}}}}'),
        concat('{{{{"resident":', round(rss_bytes / 1e9, 6), '}}}}')]) AS args,
    NULL AS id, NULL AS scope
FROM system.process AS p JOIN process USING (host, pid) JOIN numbered USING (part)
WHERE p.process = p.pid{_PART}{_NEAR}{_TIME}
    AND {_IN}
ORDER BY start_ns"""

_MACHINE = {
    "system.cpu": _measure(
        "system.cpu", "'CPU (%)'",
        {"user": "MAX(user_pct)", "system": "MAX(system_pct)", "I/O wait": "MAX(iowait_pct)"},
    ),
    "system.memory": _measure(
        "system.memory", "'memory (GB)'",
        {"used": "MAX(used_bytes) / 1e9", "swap": "MAX(swap_used_bytes) / 1e9"},
    ),
    "system.gpu": " UNION ALL ".join((
        _measure("system.gpu", "'GPU ' || gpu || ' (%)'", {"util": "MAX(util_pct)"},
                 "util_pct IS NOT NULL", ", gpu"),
        _measure("system.gpu", "'GPU ' || gpu || ' memory (GB)'",
                 {"used": "MAX(memory_used_bytes) / 1e9"},
                 "memory_used_bytes IS NOT NULL", ", gpu"),
        _measure("system.gpu", "'GPU ' || gpu || ' power (W)'", {"power": "MAX(power_w)"},
                 "power_w IS NOT NULL", ", gpu"),
    )),
    "system.disk": _measure(
        "system.disk", "'disk (MB/s)'",
        {"read": _MB_S.format("read_bytes"), "written": _MB_S.format("written_bytes")},
        "interval_ns > 0",
    ),
    "system.network": _measure(
        "system.network", "'network (MB/s)'",
        {"received": _MB_S.format("received_bytes"), "sent": _MB_S.format("sent_bytes")},
        "interval_ns > 0 AND kind <> 'loopback'",
    ),
}  # fmt: skip
# The measures of machines and of the recorded processes, by table.
MEASURES = {table: f"{{named}}{sql} ORDER BY start_ns" for table, sql in _MACHINE.items()}
MEASURES["system.process"] = _OWN

_POINTS = ("event.counter", "event.marker", "python.gc_pause", "python.collective")
_STARTS = "".join(
    f"""
    UNION ALL SELECT t_ns + offset_ns AS start_ns FROM {table} JOIN process USING (host, pid)
        WHERE {_IN}{_PART}{_NEAR}"""
    for table in _POINTS
)
# The first start and the number of rows in each second, for pieces that fit in memory.
SECONDS = f"""{{named}}
SELECT start_ns // 1000000000 AS second, COUNT(*) AS rows, MIN(start_ns) AS first_ns FROM (
    SELECT t_ns + offset_ns AS start_ns FROM event.span JOIN process USING (host, pid)
        WHERE ({{touches}}){_PART}
    UNION ALL SELECT t_ns + offset_ns AS start_ns FROM event.open_span
        JOIN process USING (host, pid) WHERE start_ns >= first_us * 1000
        AND start_ns < next_us::HUGEINT * 1000 AND start_ns <= {{until_ns}}{_STARTS})
GROUP BY second ORDER BY second"""

# The threads that need a lane for regions.
THREADS = f"""{{named}}
SELECT DISTINCT part, thread::BIGINT AS thread, COALESCE(named.name, 'thread') AS name
FROM (SELECT host, pid, ts, thread FROM event.span
    UNION ALL SELECT host, pid, ts, thread FROM event.marker
    UNION ALL SELECT host, pid, make_timestamptz(first_us), thread FROM event.open_span
        JOIN process USING (host, pid)) JOIN process USING (host, pid)
    LEFT JOIN named USING (part, thread)
WHERE true{_PART} ORDER BY part, thread"""

COLLECTIVES = f"""{{named}},
chosen AS (
    SELECT part, number, t_ns + offset_ns AS start_ns, thread, COALESCE(name, 'thread') AS name,
        COALESCE(dur_ns, 0) AS dur_ns, op, group_name, seq, state,
        json_object('group', group_name, 'for', group_desc, 'ranks', group_ranks, 'seq', seq,
            'backend', backend, 'bytes', input_bytes, 'dtype', dtype, 'device_ns', device_dur_ns,
            'state', state, 'step', step) AS args
    FROM python.collective JOIN process USING (host, pid) JOIN numbered USING (part)
        LEFT JOIN named USING (part, thread)
    WHERE {_IN}{_PART}{_NEAR} AND ({{threads}})
    QUALIFY state <> 'running' OR COUNT(*) OVER (PARTITION BY part, group_name, seq, op) = 1)
SELECT *, row_number() OVER same AS place, COUNT(*) OVER (PARTITION BY group_name, seq, op) AS ranks
FROM chosen WINDOW same AS (PARTITION BY group_name, seq, op ORDER BY start_ns)
ORDER BY part, thread, start_ns, dur_ns DESC"""

# When the last row ended: the end of a window without --until.
_LASTS = " UNION ALL ".join(
    f"SELECT epoch_us(MAX(ts)) AS us FROM {table}" for table in (*_POINTS, "python.stack_sample")
)
LAST = f"""
SELECT MAX(us) AS us FROM ({_LASTS}
    UNION ALL SELECT MAX(epoch_us(ts) + (dur_ns + 999) // 1000) FROM event.span
    UNION ALL SELECT MAX(epoch_us(ts) + (duration * 1e6)::BIGINT) FROM python.torch_trace)"""
