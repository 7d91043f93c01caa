"""Where the time of a step goes, by PyTorch module; every number is of a mean step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median
from typing import Any

import pyarrow as pa

from sonde.analysis.module_tree import ModuleNode, flatten, fold, grow, walk
from sonde.analysis.profile import Profile, ProfileFrame, RecordedThread, Stack, list_parts
from sonde.analysis.window import Window
from sonde.errors import Error
from sonde.store.recording import Recording
from sonde.words import find_pct

STAGES = ("forward", "backward", "recompute", "step")
# The end of the last recorded step.
LAST = "SELECT (MAX(epoch_us(ts) + dur_ns / 1e3) + 1)::BIGINT AS us FROM python.torch_step"


@dataclass(frozen=True)
class StepSelection:
    """Which steps: those in the window, with numbers from `first` to `last`; of training, or of
    evaluation. If only one of both was recorded, that one."""

    window: Window
    first: int | None = None
    last: int | None = None
    evaluation: bool = False


@dataclass(frozen=True)
class ProcessSteps:
    """The selected steps of one process: how many, and the seconds of a mean step."""

    part: int
    rank: int | None
    pid: int
    count: int
    first: int
    last: int
    median: float
    duration: float
    input_wait: float
    host_to_device: float
    forward: float
    backward: float
    optimizer: float
    other: float
    owned: float | None  # the share of backward that belongs to modules; None if not known
    lost: int
    shallow: int  # steps that were left out because others are more detailed
    other_kind: int  # steps that were left out: of evaluation, or of training if that was wanted
    training: bool  # the others are of training


@dataclass(frozen=True)
class ModuleReport:
    """Steps by process, and the modules, callers before what they call."""

    steps: list[ProcessSteps]
    nodes: list[ModuleNode]

    @property
    def step_s(self) -> float:
        """The duration of a mean step, of several processes the median: what shares refer to."""
        return median(one.duration for one in self.steps)

    def find_extremes(self, node: ModuleNode) -> tuple[ProcessSteps, ProcessSteps]:
        """Return the processes that spend the least and the most time in a module."""
        times = node.total_of
        least, most = (pick(times, key=lambda part: times[part]) for pick in (min, max))
        return self._by_part[least], self._by_part[most]

    @cached_property
    def _by_part(self) -> dict[int, ProcessSteps]:
        return {steps.part: steps for steps in self.steps}

    @property
    def device_s(self) -> float:
        """The time of the device in the models that the program calls."""
        return sum(node.device or 0.0 for node in self.nodes if node.up is None)


def read_report(recording: Recording, choice: StepSelection) -> ModuleReport:
    """Return where the time of the selected steps went."""
    chosen = _choose(recording, choice)
    found = recording.query_each(chosen + _STEPS).to_pylist()
    if not found:
        raise Error(_explain_nothing(recording))
    rows = recording.query_each(chosen + _MODULES).to_pylist()
    return ModuleReport([ProcessSteps(**row) for row in found], grow(rows))


def read_overhead(recording: Recording) -> tuple[float, float | None] | None:
    """Return what recording costs, in the process that pays most: at least and at most so many
    percent of a step. None if nothing is known, or instead of the upper bound."""
    rows = recording.query(_OVERHEAD).to_pylist()
    if not rows:
        return None
    # An interval that is wide and does not exclude zero says how unsteady the steps are, not what
    # recording costs.
    known = [row for row in rows if row["high_pct"] is not None
             and (row["low_pct"] > 0 or row["high_pct"] - row["low_pct"] < _NOISE_PCT)]  # fmt: skip
    least = max(row["direct_pct"] for row in rows)
    least = max([least, *(row["low_pct"] for row in known)])
    most = max((row["high_pct"] for row in known), default=None)
    return least, most if most is not None and most > least else None


def read_source_detail(recording: Recording) -> str | None:
    """Return the detail of the torch source: why backward is not known by module, if so."""
    rows = recording.query("SELECT DISTINCT detail FROM sonde.source WHERE source = 'torch'")
    return "; ".join(sorted(filter(None, rows["detail"].to_pylist()))) or None


def _explain_nothing(recording: Recording) -> str:
    sql = "SELECT COUNT(*) AS n, COUNT(*) FILTER (NOT unrecorded AND modules > 0) AS m, {} FROM {}"
    row = recording.query(
        sql.format("MIN(step) AS first, MAX(step) AS last", "python.torch_step")
    ).to_pylist()[0]
    if row["m"]:
        return f"no recorded step is in that range; steps here: {row['first']}-{row['last']}"
    if row["n"]:
        return f"{row['n']} steps were recorded, but no module in them"
    way = read_source_detail(recording)
    return "no PyTorch step was recorded here" + (f": {way}" if way else "")


# ---- lines and rows -----------------------------------------------------------------------------

SORTS: dict[str, Callable[[ModuleNode], Any]] = {
    "order": lambda node: ("step" in node.own, node.order),
    "total": lambda node: -node.total_s,
    "self": lambda node: -node.own_s,
    "forward": lambda node: -node.total.get("forward", 0.0),
    "backward": lambda node: -node.total.get("backward", 0.0),
    "device": lambda node: -(node.device or 0.0),
    "memory": lambda node: -(node.allocated or 0.0),
    "calls": lambda node: -node.calls,
    "parameters": lambda node: -(node.parameters or 0),
    "name": lambda node: node.label,
}


def arrange(
    report: ModuleReport,
    *,
    sort: str | None = None,
    flat: str | None = None,
    depth: int | None = None,
    folds: bool = False,
) -> list[ModuleNode]:
    """Return the modules in the order of a key of SORTS: as a tree, callers first and at most
    `depth` deep, or as a list by `flat` (name or type). `folds` makes repeated blocks one node."""
    key = SORTS[sort or ("self" if flat else "order")]
    if flat:
        return sorted(flatten(report.nodes, flat), key=key)
    nodes = fold(report.nodes) if folds else report.nodes
    ordered = walk([node for node in nodes if node.up is None], key)
    return [node for node in ordered if depth is None or node.depth <= depth]


_COLUMNS = {
    "module": pa.string(), "parent": pa.string(), "type": pa.string(), "depth": pa.int64(),
    "calls": pa.float64(), "parameters": pa.int64(), "share_pct": pa.float64(),
    "total_ns": pa.int64(), "self_ns": pa.int64(), "forward_ns": pa.int64(),
    "backward_ns": pa.int64(), "recompute_ns": pa.int64(), "step_ns": pa.int64(),
    "device_ns": pa.int64(), "device_pct": pa.float64(), "allocated_bytes": pa.int64(),
    "max_allocated_bytes": pa.int64(), "processes": pa.int64(), "slowest_rank": pa.int64(),
    "slowest_pid": pa.int64(), "slowest_ns": pa.int64(), "fastest_rank": pa.int64(),
    "fastest_pid": pa.int64(), "fastest_ns": pa.int64(), "spread_pct": pa.float64(),
}  # fmt: skip


def make_table(nodes: Sequence[ModuleNode], report: ModuleReport, *, flat: bool) -> pa.Table:
    """Return modules as rows; `flat` ones, which have no callers, without a depth."""
    rows = [_describe(node, report, flat) for node in nodes]
    return pa.Table.from_pylist(rows, schema=pa.schema(list(_COLUMNS.items())))


def _describe(node: ModuleNode, report: ModuleReport, flat: bool) -> dict[str, object]:
    fast, slow = report.find_extremes(node)
    return {
        "module": node.label if flat else node.modules[0],
        "parent": node.up.modules[0] if node.up else None,
        "type": node.type, "depth": None if flat else node.depth, "calls": node.calls,
        "parameters": node.parameters, "share_pct": find_pct(node.total_s, report.step_s),
        "total_ns": _scale(node.total_s, 1e9), "self_ns": _scale(node.own_s, 1e9),
        **{f"{stage}_ns": _scale(node.total.get(stage, 0.0), 1e9) for stage in STAGES},
        "device_ns": _scale(node.device, 1e9),
        "device_pct": None if node.device is None else find_pct(node.device, report.device_s),
        "allocated_bytes": _scale(node.allocated, 1e6),
        "max_allocated_bytes": _scale(node.max_allocated, 1e6),
        "processes": len(node.total_of), "slowest_rank": slow.rank, "slowest_pid": slow.pid,
        "slowest_ns": _scale(node.total_of[slow.part], 1e9), "fastest_rank": fast.rank,
        "fastest_pid": fast.pid, "fastest_ns": _scale(node.total_of[fast.part], 1e9),
        "spread_pct": find_spread_pct(list(node.total_of.values())),
    }  # fmt: skip


def find_spread_pct(values: Sequence[float]) -> float:
    """Return the difference between the largest and the smallest value, in percent of the mean."""
    return find_pct(max(values) - min(values), fmean(values))


def _scale(value: float | None, by: float) -> int | None:
    """Return seconds as nanoseconds, or the megabytes of python.torch_trace as bytes."""
    return None if value is None else round(value * by)


# ---- the same for exporters ----------------------------------------------------------------------


class Stage(RecordedThread):
    """A stage of a step, in place of a thread."""

    @property
    def label(self) -> str:
        return self.name


class ModuleProfile(Profile):
    """One mean step as stacks of modules, for exporters."""

    report: ModuleReport

    @cached_property
    def stacks(self) -> list[Stack]:
        return [
            Stack(Stage(self.processes[0], at, stage), _path(node), (1, 0, 0), (round(ns), 0, 0))
            for at, stage in enumerate(STAGES)
            for node in self.report.nodes
            if (ns := node.own.get(stage, 0.0) * 1e9)
        ]

    @cached_property
    def span_ns(self) -> tuple[int, int]:
        start_ns = self.selection.window.since_ns
        return start_ns, start_ns + round(self.report.step_s * 1e9)


def _path(node: ModuleNode) -> tuple[ProfileFrame, ...]:
    found = []
    above: ModuleNode | None = node
    while above is not None:
        found.append(ProfileFrame(above.label, above.type, 0, 0))
        above = above.up
    return tuple(reversed(found))


# ---- SQL -----------------------------------------------------------------------------------------


def _choose(recording: Recording, choice: StepSelection) -> str:
    since_ns, until_ns = choice.window
    named = choice.first is not None or choice.last is not None
    return _CHOSEN.format(
        processes=", ".join(list_parts(recording)),
        # On `ts` as well as the exact bounds: it saves reading all of a long archive.
        since_us=since_ns // 1000 - 1,
        until_us=until_ns // 1000 + 1,
        since_ns=since_ns,
        until_ns=until_ns,
        first=0 if choice.first is None else choice.first,
        last=2**62 if choice.last is None else choice.last,
        # The first step does not belong in a mean: kernels are chosen, memory is allocated.
        warm="true" if named else "step > first_step",
        wanted="false" if choice.evaluation else "true",
    )


# `part` is the recorded process. Some steps are left out, with their time: those whose first rows
# are gone from the ring, and those recorded in less detail than others of the same models (less
# deep, or without backward). In a mean with them, modules would lose time to their callers.
# Shares refer to the steps whose modules are complete.
_CHOSEN = """\
WITH RECURSIVE process AS (SELECT UNNEST([{processes}], recursive := true)),
trace AS MATERIALIZED (
    SELECT part, t.* FROM python.torch_trace t JOIN process USING (host, pid)
    WHERE epoch_us(ts) >= first_us AND epoch_us(ts) < next_us
        AND ts >= make_timestamptz({since_us}) AND ts <= make_timestamptz({until_us})),
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

_STEPS = """\
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
_MODULES = """\
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

_NOISE_PCT = 5.0
_OVERHEAD = """\
SELECT low_pct, high_pct, direct_pct FROM sonde.overhead WHERE source = 'torch'
QUALIFY row_number() OVER (PARTITION BY host, pid ORDER BY t_ns DESC) = 1
"""
