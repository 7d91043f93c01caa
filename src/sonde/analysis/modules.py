"""Where the time of a step goes, by PyTorch module; every number is of a mean step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median
from typing import Any

import pyarrow as pa

from sonde.analysis import module_sql
from sonde.analysis.module_tree import ModuleNode, flatten, fold, grow, walk
from sonde.analysis.profile import Profile, ProfileFrame, RecordedThread, Stack, list_parts
from sonde.analysis.window import Window, find_window
from sonde.errors import Error
from sonde.markup import PctBar, TreeName, show_box, show_table
from sonde.store.recording import Recording, open_recording
from sonde.words import find_pct, show_duration

_MOST_CALLS = 500_000  # of modules, from which means are made
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
    sql: Sequence[str] = ()  # the statements that these come from

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

    def table(self) -> pa.Table:
        """Return a row for each module, as `sonde modules --format csv` does."""
        return make_table(arrange(self), self, flat=False)

    def __repr__(self) -> str:
        return f"<{self._title}: .table() has all of them>"

    def _repr_html_(self) -> str:
        """Return the modules as a tree with bars, repeated blocks in one line, for notebooks."""
        rows = []
        for node in arrange(self, folds=True):
            parts = (
                node.total_s,
                node.total.get("forward"),
                node.total.get("backward"),
                node.own_s,
            )
            times = [show_duration(seconds * 1e9) if seconds else "" for seconds in parts]
            share = PctBar(find_pct(node.total_s, self.step_s))
            rows.append((TreeName(show_name(node), node.depth), node.type, share, *times))
        names = ("module", "type", "share", "total", "forward", "backward", "self")
        return show_box(self._title, (), show_table(names, rows))

    @property
    def _title(self) -> str:
        count = sum(one.count for one in self.steps)
        return f"{show_duration(self.step_s * 1e9)} a step (mean of {count:,}), by module"


def modules(
    target: int | str | Sequence[int | str],
    *,
    since: str | None = None,
    until: str | None = None,
    evaluation: bool = False,
) -> ModuleReport:
    """Return where the time of a mean step of a PyTorch job went, by module."""
    recording = open_recording(target)
    window = find_window(recording, since, until, last=LAST)
    return read_report(recording, StepSelection(window, evaluation=evaluation))


def read_report(recording: Recording, choice: StepSelection) -> ModuleReport:
    """Return where the time of the selected steps went."""
    steps, modules = statements = _list_statements(recording, choice)
    found = recording.query_each(steps).to_pylist()
    if not found:
        raise Error(_explain_nothing(recording, choice))
    rows = recording.query_each(modules).to_pylist()
    return ModuleReport([ProcessSteps(**row) for row in found], grow(rows), statements)


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


def _explain_nothing(recording: Recording, choice: StepSelection) -> str:
    sql = "SELECT COUNT(*) AS n, COUNT(*) FILTER (NOT unrecorded AND modules > 0) AS m, {} FROM {}"
    row = recording.query(
        sql.format("MIN(step) AS first, MAX(step) AS last", "python.torch_step")
    ).to_pylist()[0]
    if row["m"] == 1 and choice.first is None and choice.last is None:
        return (
            "only the first step is recorded so far, and it does not count, as it warms up: ask "
            f"again after some more, or `--steps {row['first']}-` shows what there is"
        )
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


def show_name(node: ModuleNode) -> str:
    """Return the name of a module, and how many it stands for."""
    return node.label + (f" ({node.times}\N{MULTIPLICATION SIGN})" if node.times > 1 else "")


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


def _list_statements(recording: Recording, choice: StepSelection) -> tuple[str, str]:
    """Return the statements for the selected steps, and for the calls of modules in them."""
    chosen = _choose(recording, choice)
    return chosen + module_sql.STEPS, chosen + module_sql.MODULES


def _choose(recording: Recording, choice: StepSelection) -> str:
    since_ns, until_ns = choice.window
    named = choice.first is not None or choice.last is not None
    return module_sql.CHOSEN.format(
        processes=", ".join(list_parts(recording)),
        # On `ts` as well as the exact bounds: it saves reading all of a long archive.
        since_us=since_ns // 1000 - 1,
        until_us=until_ns // 1000 + 1,
        since_ns=since_ns,
        until_ns=until_ns,
        first=0 if choice.first is None else choice.first,
        last=2**62 if choice.last is None else choice.last,
        some=_thin(recording, choice),
        # The first step does not belong in a mean: kernels are chosen, memory is allocated.
        warm="true" if named else "step > first_step",
        wanted="false" if choice.evaluation else "true",
    )


def _thin(recording: Recording, choice: StepSelection) -> str:
    """Return SQL for which steps are looked at: of a long time, every so many, the same in each
    process. A mean needs no more, and the calls of a day do not fit into memory."""
    since_us, until_us = (ns // 1000 for ns in choice.window)
    rows = recording.query_each(
        "SELECT COUNT(*) AS calls FROM python.torch_trace "
        f"WHERE ts >= make_timestamptz({since_us}) AND ts <= make_timestamptz({until_us})"
    ).to_pylist()
    every = -(-sum(row["calls"] for row in rows) // _MOST_CALLS)
    return "true" if every < 2 else f"hash(step) % {every} = 0"


_NOISE_PCT = 5.0
_OVERHEAD = """\
SELECT low_pct, high_pct, direct_pct FROM sonde.overhead WHERE source = 'torch'
QUALIFY row_number() OVER (PARTITION BY host, pid ORDER BY t_ns DESC) = 1
"""
