"""The training loop waits for data.

Why it hurts: while the loop waits for its next batch, the model does nothing, and a GPU is idle.

What to do: see what the loader does while the loop waits: `sonde stacks TARGET`, and the table
python.torch_loader.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from sonde.advice.rules._code import FETCHING, PLACE, show_place
from sonde.advice.verdict import Evidence, Limit, Limits, Rows, Verdict
from sonde.analysis.code_names import name_c_call, name_call, show_call
from sonde.analysis.work_kinds import find_instead, find_kind

NEEDS = (
    "python.torch_step.input_wait_ns", "python.torch_loader.workers", "system.cgroup.cpu_limit",
    "system.process.run_wait_pct",
)  # fmt: skip
LIMITS = {
    "wait_pct": Limit(10, "of a step spent waiting for data"),
    "cheap_pct": Limit(20, "of a step that a loop without workers loads, below which all is well"),
    "alone_pct": Limit(
        25, "of a step that a loop without workers loads, below which workers may cost as much"
    ),
    "uneven": Limit(
        2.5, "times its fair share of the loading, from which one worker holds up the others"
    ),
    "rest_pct": Limit(40, "of the workers' time with nothing to load although the loop waits"),
    "io_pct": Limit(50, "of the loading spent on I/O: neither on a processor nor waiting for one"),
    "sampler_pct": Limit(
        50, "of the wait spent in the sampler, which runs in the loop's own process"
    ),
    "queue_pct": Limit(10, "of the workers' or the loop's time spent waiting for a processor"),
    "anew": Limit(2, "processes for each worker within a piece, from which they are started anew"),
    "crowded_pct": Limit(
        40, "of the workers' time spent waiting for a processor, from which none are free"
    ),
    "mostly_pct": Limit(60, "of the loading spent in one call, from which that is named"),
    "handling_pct": Limit(60, "of a loop's own loading in which torch takes and collates examples"),
    "cpu_pct": Limit(
        80, "of the allowed processors used by workers, from which more would not help"
    ),
}
# Stacks that choose the next examples: the loop's own process does this, with workers or without.
_SAMPLING = (
    "SELECT stack FROM python.frame WHERE file LIKE '%/torch/utils/data/dataloader.py'"
    " AND ends_with(func, '_next_index')"
)
# Stacks in which torch takes examples and collates them: no dataset reads or computes there.
_HANDLING = "SELECT stack FROM python.frame WHERE depth = 0 AND file LIKE '%/torch/utils/data/%'"
_TAKES = "('torch._C.TensorBase.__getitem__', 'numpy.ndarray.__getitem__')"
SQL = f"""
WITH step AS (
  SELECT {{piece}} AS piece, host, pid, ANY_VALUE(rank) AS rank, COUNT(*) AS steps,
         MAX(ts) AS ts, SUM(dur_ns) / 1e9 AS step_s, SUM(input_wait_ns) / 1e9 AS wait_s
  FROM python.torch_step WHERE {{inside}} AND {{main_step}} AND ended_by <> 'end' GROUP BY 1, 2, 3),
owner AS (
  SELECT host, process, pid AS job, worker FROM python.torch_worker
  UNION SELECT host, pid, pid, 0 FROM python.torch_loader WHERE workers = 0),
sample AS (
  SELECT {{piece}} AS piece, host, pid AS process, stack, wall_ns, cpu_ns, idle, call,
         stack IN ({FETCHING}) AS fetching, stack IN ({_SAMPLING}) AS sampling,
         NOT idle AND (stack IN ({_HANDLING}) OR COALESCE(call, '') IN {_TAKES}) AS handling
  FROM python.stack_sample WHERE {{inside}} AND thread = pid),
one AS (
  SELECT piece, host, job, worker, SUM(wall_ns) / 1e9 AS alive_s,
         SUM(wall_ns) FILTER (fetching) / 1e9 AS fetch_s,
         SUM(cpu_ns) FILTER (fetching) / 1e9 AS cpu_s,
         SUM(wall_ns) FILTER (fetching AND handling) / 1e9 AS handled_s,
         SUM(wall_ns) FILTER (fetching AND idle) / 1e9 AS idle_s
  FROM sample JOIN owner USING (host, process) GROUP BY 1, 2, 3, 4),
team AS (
  SELECT piece, host, job, COUNT(*) AS seen, SUM(alive_s) AS alive_s,
         SUM(fetch_s) AS fetch_s, SUM(cpu_s) AS cpu_s, COALESCE(SUM(idle_s), 0) AS idle_s,
         COALESCE(SUM(handled_s), 0) AS handled_s
  FROM one GROUP BY 1, 2, 3),
-- Over all pieces: in a short one chance makes workers uneven.
share AS (
  SELECT host, job, MAX(fetch_s) / SUM(fetch_s) AS hottest
  FROM (SELECT host, job, worker, SUM(fetch_s) AS fetch_s FROM one GROUP BY 1, 2, 3) GROUP BY 1, 2),
loop AS (
  SELECT piece, host, process, SUM(wall_ns) AS alive_ns,
         COALESCE(SUM(wall_ns) FILTER (sampling), 0) / 1e9 AS sampler_s,
         GREATEST(0, SUM(wall_ns) FILTER (NOT idle) - SUM(cpu_ns)) AS queue_ns
  FROM sample GROUP BY 1, 2, 3),
place AS ({PLACE}),
line AS (
  SELECT piece, host, job, file, lineno, func, SUM(wall_ns) AS wall_ns
  FROM sample JOIN owner USING (host, process) JOIN place USING (stack) WHERE fetching
  GROUP BY ALL),
top AS (
  SELECT piece, host, job, ARG_MAX(struct_pack(file, lineno, func), wall_ns) AS place
  FROM line GROUP BY 1, 2, 3),
-- What most of the loading is, as its lines call it: a function of a library, or of C.
doing AS (
  SELECT piece, host, job, ARG_MAX(struct_pack(called, in_file, func, s), s) AS doing
  FROM (SELECT piece, host, job, place.func, inner_frame.file AS in_file,
               COALESCE(inner_frame.func, call) AS called, SUM(wall_ns) / 1e9 AS s
        FROM sample JOIN owner USING (host, process) JOIN place USING (stack)
        LEFT JOIN python.frame AS inner_frame ON inner_frame.stack = sample.stack
          AND inner_frame.depth = own_depth - 1
        WHERE fetching GROUP BY ALL)
  GROUP BY 1, 2, 3),
chooser AS (
  SELECT piece, host, process, ARG_MAX(struct_pack(file, lineno, func), wall_ns) AS place
  FROM (SELECT piece, host, process, file, lineno, func, SUM(wall_ns) AS wall_ns
        FROM sample JOIN place USING (stack) WHERE sampling GROUP BY ALL) GROUP BY 1, 2, 3),
quota AS (SELECT host, pid, MIN(cpu_limit) AS cores FROM system.cgroup GROUP BY 1, 2),
cores AS (
  SELECT host, pid, LEAST(ARG_MAX(allowed_cores, t_ns), ANY_VALUE(quota.cores)) AS cores
  FROM python.torch_threads LEFT JOIN quota USING (host, pid) GROUP BY 1, 2),
-- From outside, for workers whose stacks are not part of the recording.
process AS (
  SELECT piece, p.host, job, AVG(user_pct + system_pct) AS seen_cpu_pct,
         AVG(run_wait_pct) AS seen_queue_pct, 100 * AVG((state = 'D')::INT) AS seen_disk_pct
  FROM (SELECT {{piece}} AS piece, host, process, user_pct, system_pct, run_wait_pct, state
        FROM system.process WHERE {{inside}}) AS p JOIN owner USING (host, process)
  WHERE process <> job GROUP BY 1, 2, 3),
born AS (
  SELECT {{piece}} AS piece, host, pid, COUNT(DISTINCT process) AS started
  FROM python.torch_worker WHERE {{inside}} GROUP BY 1, 2, 3),
loader AS (SELECT ts, host, pid, dataset, workers, prefetch_factor FROM python.torch_loader)
SELECT s.piece, s.rank, s.steps, s.step_s, s.wait_s, l.dataset, l.workers, l.prefetch_factor,
       c.cores, t.seen, COALESCE(b.started, 0) AS started, t.alive_s, t.fetch_s, t.cpu_s,
       t.idle_s, t.handled_s, h.hottest,
       p.seen_cpu_pct, COALESCE(p.seen_queue_pct, 0) AS seen_queue_pct, p.seen_disk_pct,
       100 * m.queue_ns / m.alive_ns AS queue_pct, COALESCE(m.sampler_s, 0) AS sampler_s,
       d.place AS chooser, doing.doing AS doing,
       top.place.file AS file, top.place.lineno AS lineno, top.place.func AS func
FROM step AS s ASOF JOIN loader AS l ON s.host = l.host AND s.pid = l.pid AND s.ts >= l.ts
LEFT JOIN cores AS c ON c.host = s.host AND c.pid = s.pid
LEFT JOIN team AS t ON t.piece = s.piece AND t.host = s.host AND t.job = s.pid
LEFT JOIN share AS h ON h.host = s.host AND h.job = s.pid
LEFT JOIN loop AS m ON m.piece = s.piece AND m.host = s.host AND m.process = s.pid
LEFT JOIN chooser AS d ON d.piece = s.piece AND d.host = s.host AND d.process = s.pid
LEFT JOIN process AS p ON p.piece = s.piece AND p.host = s.host AND p.job = s.pid
LEFT JOIN doing ON doing.piece = s.piece AND doing.host = s.host AND doing.job = s.pid
LEFT JOIN born AS b ON b.piece = s.piece AND b.host = s.host AND b.pid = s.pid
LEFT JOIN top ON top.piece = s.piece AND top.host = s.host AND top.job = s.pid
"""


class Cause(NamedTuple):
    """Why the loop waits."""

    title: str
    todo: str
    evidence: Evidence
    is_own: bool = True  # not the doing of other programs, of which cpu_starved speaks


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        wait_pct = lost_pct = 100 * row.wait_s / row.step_s
        evidence = {"wait_pct": wait_pct, "workers": row.workers, "dataset": row.dataset}
        cause = _find_cause(row, limits)
        if wait_pct < limits.wait_pct and _is_crowded(row, limits):
            # Then the loop does not wait for its workers but for its turn.
            cause, lost_pct = _blame_crowd(row, _measure(row)), wait_pct + row.queue_pct
        is_cheap = wait_pct < limits.alone_pct or _is_handling(row, limits)
        least_pct = limits.wait_pct if row.workers else limits.cheap_pct
        fired = lost_pct >= least_pct and not _is_held_up(row, wait_pct, limits)
        cause = _add_doing(row, cause, limits) if fired else cause
        yield Verdict(
            row.piece, fired, evidence | dict(cause.evidence),
            lost_pct=lost_pct if cause.is_own and (row.workers or not is_cheap) else None,
            severity="info",
            readings=row.steps, who="" if row.rank is None else f"rank {row.rank}",
            title=cause.title, todo=cause.todo,
            line=_find_line(row, cause),
        )  # fmt: skip


_LOADS = (
    "it has no workers and loads each batch itself",
    "too few workers",
    "(CPU-bound)",
    "reads (I/O)",
)


def _add_doing(row: Any, cause: Cause, limits: Limits) -> Cause:
    """Return the cause with what nearly all of the loading is: to do that in another way gains more
    than workers do."""
    one = row.doing
    if one is None or not one["called"] or not any(words in cause.title for words in _LOADS):
        return cause
    share_pct = 100 * one["s"] / row.fetch_s
    if share_pct < limits.mostly_pct:
        return cause
    call = (
        name_call(one["called"], one["in_file"]) if one["in_file"] else name_c_call(one["called"])
    )
    is_waiting = row.idle_s > row.cpu_s
    kind, instead = find_kind(call), find_instead(call, None, is_waiting=is_waiting)
    what = f"{show_call(call)} ({kind})" if kind else show_call(call)
    return cause._replace(
        title=f"{cause.title}, mostly by {what} in {one['func'].rpartition('.')[2]}",
        todo=f"{instead}. If that is not enough: {cause.todo}" if instead else cause.todo,
        evidence={**cause.evidence, "of_the_loading_pct": share_pct},
    )


def _find_line(row: Any, cause: Cause) -> str:
    if "in_the_sampler_pct" in cause.evidence and row.chooser is not None:
        return show_place(*(row.chooser[name] for name in ("file", "lineno", "func")))
    return show_place(row.file, row.lineno, row.func)


def _find_cause(row: Any, limits: Limits) -> Cause:
    """One cause, the most certain first."""
    sampler_pct = 100 * row.sampler_s / row.wait_s if row.wait_s else 0.0
    if sampler_pct >= limits.sampler_pct:
        return Cause(
            "The training loop waits for its sampler, which chooses one example after the other",
            "have the sampler choose many at a time: draw the indices of an epoch at once "
            "(torch.randperm, torch.multinomial of all of them, `tolist`) and yield from the list. "
            "Workers do not help: the sampler runs in the loop's own process.",
            {"in_the_sampler_pct": min(100.0, sampler_pct)},
        )
    if row.workers == 0 and _is_handling(row, limits):
        return Cause(
            "The training loop waits for data: torch takes each example by itself and puts them "
            "together",
            "where all of it is in memory, take a batch with one index (`x[order[i : i + n]]`, "
            "`order = torch.randperm(len(x))`), or give the DataLoader batch_size=None and a "
            "BatchSampler as its sampler, so that the dataset is asked for many examples at once; "
            "else give it num_workers.",
            {"of_the_loading_pct": 100 * row.handled_s / row.fetch_s, **_measure(row)},
        )
    if row.workers == 0:
        return Cause(
            "The training loop waits for data: it has no workers and loads each batch itself",
            "give the DataLoader num_workers (2 to start with, up to the number of processors) and "
            "persistent_workers=True; then batches are loaded while the model computes. What is "
            "the same in every epoch (reading, parsing, decoding, tokenising), do once before.",
            _measure(row) if row.fetch_s else {},
        )
    rest_pct = 100 * (1 - (row.fetch_s or 0) / (row.alive_s or 1))
    if rest_pct >= limits.rest_pct and row.started >= limits.anew * row.workers:
        return Cause(
            "The training loop waits for data: its workers are started anew again and again",
            "give the DataLoader persistent_workers=True, so that workers live longer than an "
            "epoch, and no more of them than there are processors.",
            {"resting_pct": rest_pct, "started_workers": row.started},
        )
    return _find_trouble(row, limits, rest_pct) if row.fetch_s else _guess_load(row, limits)


def _find_trouble(row: Any, limits: Limits, rest_pct: float) -> Cause:
    """What keeps workers that live for long from having the next batch."""
    uneven = row.workers * row.hottest
    if row.workers > 1 and uneven >= min(limits.uneven, 0.8 * row.workers):
        return Cause(
            "The training loop waits for data: one worker has most of the work",
            "spread the work: a worker that gets all large examples, or the only one with a shard, "
            "holds up the others, for batches are handed over in turn. Shuffle, cut the shards to "
            "one size, or see worker_init_fn.",
            {"hottest_worker_share": uneven, **_measure(row)},
        )
    if rest_pct >= limits.rest_pct and row.cores is not None and row.workers > row.cores:
        return _blame_crowd(row, {"resting_pct": rest_pct, **_measure(row)})
    known = _measure_load(row)
    if rest_pct >= limits.rest_pct and known["waiting_for_cpu_pct"] >= limits.crowded_pct:
        return _blame_others({"resting_pct": rest_pct, **known})  # they are late, not behind
    if rest_pct >= limits.rest_pct:
        return Cause(
            "The training loop waits for data: workers may not load far enough ahead (prefetch)",
            "raise prefetch_factor: now and then a batch takes long, and what was loaded ahead is "
            "used up before it comes, while the workers had time to load more. And nothing is "
            "loaded ahead from one epoch to the next: if epochs are short, make one of several "
            "(a sampler that goes through the dataset many times).",
            {"resting_pct": rest_pct, "prefetch_factor": row.prefetch_factor, **_measure(row)},
        )
    return _find_load(row, limits)


def _find_load(row: Any, limits: Limits) -> Cause:
    """What workers that always load are busy with."""
    found = _measure_load(row)
    known: Evidence = {**found, "allowed_cores": row.cores}
    if found["waiting_for_io_pct"] >= limits.io_pct:
        return _blame_reads(known)
    return _blame_processors(row, limits, known, found["waiting_for_cpu_pct"], _count_wanted(row))


def _guess_load(row: Any, limits: Limits) -> Cause:
    """Guess what workers do whose stacks are not recorded, from the kernel's numbers."""
    if row.seen_cpu_pct is None:
        return Cause("", "", {})
    wanted_pct = row.seen_cpu_pct + row.seen_queue_pct
    known: Evidence = {
        "on_cpu_pct": row.seen_cpu_pct, "waiting_for_cpu_pct": row.seen_queue_pct,
        "waiting_for_disk_pct": row.seen_disk_pct, "allowed_cores": row.cores,
    }  # fmt: skip
    if wanted_pct >= 100 - limits.rest_pct:
        wanted = row.workers * wanted_pct / 100
        return _blame_processors(row, limits, known, row.seen_queue_pct, wanted)
    if row.seen_disk_pct >= limits.io_pct / 2:
        return _blame_reads(known)
    return Cause("", "", known)


def _blame_reads(known: Evidence) -> Cause:
    return Cause(
        "The training loop waits for data: its workers wait for reads (I/O)",
        "read larger pieces (shards, webdataset, Arrow), keep the data on a local disk or in "
        "memory, or use more workers, so that more reads are under way at a time.",
        known,
    )


def _blame_processors(
    row: Any, limits: Limits, known: Evidence, queue_pct: float, wanted: float
) -> Cause:
    if row.cores is not None and row.workers > row.cores and queue_pct >= limits.queue_pct:
        return _blame_crowd(row, known)
    if row.cores is None or 100 * wanted >= limits.cpu_pct * row.cores:
        return Cause(
            "The training loop waits for data: its workers use up the processors (CPU-bound)",
            "make loading cheaper: decode and augment on the GPU, prepare the data once and keep "
            "it, or get more processors. More workers will not help.",
            known,
        )
    if queue_pct >= limits.crowded_pct:
        return _blame_others(known)
    return Cause(
        "The training loop waits for data: too few workers, and processors are free",
        "raise num_workers; see that the loop still has a processor of its own.",
        known,
    )


def _blame_others(known: Evidence) -> Cause:
    return Cause(
        "The training loop waits for data: its workers wait for processors that others use",
        "end or move the other programs (see `top`), or give the job processors of its own; "
        "more workers will not help.",
        known,
        is_own=False,
    )


def _count_wanted(row: Any) -> float:
    """How many processors the workers would use if they could have them."""
    return float(row.workers * (row.fetch_s - row.idle_s) / row.alive_s)


def _is_held_up(row: Any, wait_pct: float, limits: Limits) -> bool:
    """Is the loop short of a processor for longer than it waits, while its workers rest? Then what
    it waits for is its turn to run, and theirs: other programs have the processors."""
    if row.workers == 0 or not row.fetch_s or row.queue_pct is None or _is_crowded(row, limits):
        return False
    resting_pct = 100 * (1 - row.fetch_s / row.alive_s)
    is_few = row.cores is None or row.workers <= row.cores
    return bool(
        is_few and resting_pct >= limits.rest_pct
        and row.queue_pct >= max(limits.crowded_pct, wait_pct)
    )  # fmt: skip


def _is_handling(row: Any, limits: Limits) -> bool:
    """Is most of the loading torch's own work with single examples? A small model in a loop of its
    own has this, and is healthy: it is only mentioned."""
    return bool(row.fetch_s and 100 * row.handled_s >= limits.handling_pct * row.fetch_s)


def _is_crowded(row: Any, limits: Limits) -> bool:
    """Do more workers than there are processors keep the loop from running?"""
    if row.cores is None or row.workers <= row.cores or not row.fetch_s or row.queue_pct is None:
        return False
    return bool(row.queue_pct >= limits.queue_pct and _count_wanted(row) >= row.cores)


def _blame_crowd(row: Any, known: Evidence) -> Cause:
    return Cause(
        f"The training loop waits for data: too many workers for {row.cores:g} processors",
        "lower num_workers to the number of allowed processors, less those that the loop itself "
        "uses; see that each worker computes on one thread (OMP_NUM_THREADS=1).",
        {**known, "loop_waiting_for_cpu_pct": row.queue_pct},
    )


def _measure_load(row: Any) -> dict[str, float]:
    found = _measure(row)
    queue_pct = max(0.0, 100 - found["on_cpu_pct"] - found["waiting_for_io_pct"])
    return {**found, "waiting_for_cpu_pct": queue_pct}


def _measure(row: Any) -> dict[str, float]:
    return {
        "on_cpu_pct": 100 * row.cpu_s / row.fetch_s,
        "waiting_for_io_pct": 100 * row.idle_s / row.fetch_s,
    }
