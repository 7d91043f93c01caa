"""The SQL behind the modules of a mean step; each query begins with `CHOSEN`."""

from __future__ import annotations

# `part` is the recorded process. Some steps are left out, with their time: those whose first rows
# are gone from the ring, and those recorded in less detail than others of the same models (less
# deep, or without backward). In a mean with them, modules would lose time to their callers.
# Shares refer to the steps whose modules are complete.
CHOSEN = """\
WITH RECURSIVE process AS (SELECT UNNEST([{processes}], recursive := true)),
trace AS MATERIALIZED (
    SELECT part, t.* FROM python.torch_trace t JOIN process USING (host, pid)
    WHERE epoch_us(ts) >= first_us AND epoch_us(ts) < next_us
        AND ts >= make_timestamptz({since_us}) AND ts <= make_timestamptz({until_us}) AND {some}),
whole AS (
    SELECT part, step, MAX(depth) AS deepest,
        list_sort(list(DISTINCT module) FILTER (depth = 0 AND stage = 'forward')) AS models
    FROM trace GROUP BY part, step HAVING MIN(seq) = 0),
step AS (
    SELECT part, offset_ns, s.*, MIN(step) OVER (PARTITION BY part) AS first_step
    FROM python.torch_step s JOIN process USING (host, pid)
    WHERE epoch_us(ts) >= first_us AND epoch_us(ts) < next_us),
detailed AS (
    SELECT step.*, COALESCE(training, true) AS is_training, deepest, models,
        backward_ns = 0 OR owned_pct IS NOT NULL
            OR COUNT(owned_pct) OVER (PARTITION BY part, models) = 0 AS is_known
    FROM step JOIN whole USING (part, step)
    WHERE NOT unrecorded AND modules > 0 AND step BETWEEN {first} AND {last} AND {warm}
        AND t_ns + offset_ns > {since_ns} AND t_ns + offset_ns + dur_ns <= {until_ns}),
kind AS (
    SELECT part, CASE WHEN bool_or(is_training = {wanted}) THEN {wanted} ELSE NOT {wanted} END
        AS is_training FROM detailed GROUP BY part),
candidate AS MATERIALIZED (
    SELECT *, is_known AND deepest = MAX(deepest) FILTER (is_known)
            OVER (PARTITION BY part, models) AS is_deep
    FROM detailed JOIN kind USING (part, is_training)),
chosen AS (SELECT * FROM candidate WHERE is_deep),
"""

STEPS = """\
shallow AS (
    SELECT part, COUNT(*) FILTER (NOT is_deep) AS shallow,
        (SELECT COUNT(*) FROM detailed d WHERE d.part = c.part) - COUNT(*) AS other_kind
    FROM candidate c GROUP BY part)
SELECT part, any_value(rank) AS rank, any_value(pid) AS pid, COUNT(*) AS count,
    MIN(step) AS first, MAX(step) AS last,
    MEDIAN(dur_ns) / 1e9 AS median, AVG(dur_ns) / 1e9 AS duration,
    AVG(input_wait_ns) / 1e9 AS input_wait, AVG(host_to_device_ns) / 1e9 AS host_to_device,
    AVG(forward_ns) / 1e9 AS forward, AVG(backward_ns) / 1e9 AS backward,
    AVG(optimizer_ns) / 1e9 AS optimizer, AVG(other_ns) / 1e9 AS other,
    SUM(owned_pct / 100 * backward_ns) / NULLIF(SUM(backward_ns), 0) AS owned,
    SUM(lost)::BIGINT AS lost, any_value(shallow) AS shallow,
    any_value(other_kind) AS other_kind, any_value(is_training) AS training
FROM chosen JOIN shallow USING (part) GROUP BY part ORDER BY rank NULLS LAST, part
"""

# The place of a forward call is the path to it from the outermost call. Its caller is the last call
# before it in its thread, one level up, in whose time it began; `seq` counts in each thread. For
# a window function to find the caller, every call is listed twice: as a possible caller on its own
# level, and as a callee one level up. Backward time belongs to the place of the forward call or, if
# that is missing, where the module mostly is. The device is timed only in some steps, forward in
# some of them and backward in others: its means are of those steps.
MODULES = """\
call AS MATERIALIZED (SELECT trace.* FROM trace JOIN chosen USING (part, step)),
edge AS (
    SELECT *, depth::INTEGER AS above, seq AS up_seq, t_ns + duration * 1e9 AS up_end_ns,
        false AS is_inner FROM call WHERE stage = 'forward'
    UNION ALL
    SELECT *, depth::INTEGER - 1, NULL, NULL, true FROM call WHERE stage = 'forward'),
nested AS MATERIALIZED (
    SELECT part, step, thread, seq, module, call, t_ns, is_inner,
        MAX(up_seq) OVER before AS up_seq, MAX(up_end_ns) OVER before AS up_end_ns
    FROM edge WINDOW before AS (
        PARTITION BY part, step, thread, above ORDER BY seq ROWS UNBOUNDED PRECEDING)
    QUALIFY is_inner),
placed AS (
    SELECT part, step, thread, seq, module, call, hash(module) AS node, NULL::UBIGINT AS up
    FROM nested WHERE up_end_ns IS NULL OR up_end_ns + 1000 < t_ns
    UNION ALL
    SELECT n.part, n.step, n.thread, n.seq, n.module, n.call, hash(p.node, n.module), p.node
    FROM nested n JOIN placed p ON n.part = p.part AND n.step = p.step AND n.thread = p.thread
        AND n.up_seq = p.seq
    WHERE up_end_ns + 1000 >= t_ns),
spot AS (
    SELECT part, step, module, call, any_value(node) AS node, any_value(up) AS up
    FROM placed GROUP BY ALL),
home AS (
    SELECT part, module, arg_max(node, n) AS node, arg_max(up, n) AS up
    FROM (SELECT part, module, node, up, COUNT(*) AS n FROM placed GROUP BY ALL) GROUP BY ALL),
located AS (
    SELECT call.*, placed.node, placed.up
    FROM call JOIN placed USING (part, step, thread, seq)
    UNION ALL BY NAME
    SELECT c.*, COALESCE(spot.node, home.node, hash(c.stage, c.module)) AS node,
        CASE WHEN spot.node IS NULL THEN home.up ELSE spot.up END AS up
    FROM (FROM call WHERE stage <> 'forward') c
    LEFT JOIN spot ON c.stage <> 'step' AND c.part = spot.part AND c.step = spot.step
        AND c.module = spot.module AND c.call = spot.call
    LEFT JOIN home ON c.stage <> 'step' AND c.part = home.part AND c.module = home.module),
about AS (
    SELECT part, module, arg_max(type, t_ns) AS type, arg_max(parameters, t_ns) AS parameters
    FROM python.torch_module JOIN process USING (host, pid)
    WHERE epoch_us(ts) >= first_us AND epoch_us(ts) < next_us GROUP BY ALL),
counted AS (
    SELECT part, COUNT(DISTINCT step) AS steps FROM call GROUP BY part),
timed AS (
    SELECT part, stage, COUNT(DISTINCT step) AS device_steps
    FROM call WHERE device_duration IS NOT NULL GROUP BY ALL)
SELECT part, node, any_value(up) AS up, module, stage, any_value(type) AS type,
    any_value(parameters) AS parameters, COUNT(*) / any_value(steps) AS calls,
    SUM(self_duration) / any_value(steps) AS own,
    SUM(device_duration) / any_value(device_steps) AS device,
    MAX(allocated) AS allocated, MAX(max_allocated) AS max_allocated, MIN(seq) AS first
FROM located JOIN counted USING (part) LEFT JOIN timed USING (part, stage)
    LEFT JOIN about USING (part, module)
GROUP BY part, node, module, stage ORDER BY part, node, stage
"""
