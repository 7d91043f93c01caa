"""The GPU waits for the host to launch its work.

Why it hurts: the model is many small operators, and the host needs longer to launch one than the
GPU to run it. A faster GPU would not help.

What to do: torch.compile (mode="reduce-overhead" uses CUDA graphs), a larger batch, operations on
the whole batch in place of a loop over its examples, fused operators and optimizers; `sonde capture
TARGET` shows kernels beside their launches.
"""

from __future__ import annotations

from collections.abc import Iterator

from sonde.advice.verdict import Limit, Limits, Rows, Verdict

LINE = "busy"
ON_GPU = True
NEEDS = ("python.torch_step.forward_ns", "system.gpu.util_pct", "system.process.run_wait_pct")
UNLESS = ("debug_mode", "sync_points", "gpu_allocations")
LIMITS = {
    "gpu_pct": Limit(70, "utilisation below which the GPU waits"),
    "model_pct": Limit(60, "of a step that the host spends in model, backward pass and optimizer"),
    "steps_pct": Limit(50, "of the time that is part of steps: else something beside them counts"),
    "kept_up_pct": Limit(
        60,
        "of the calls of modules after which the GPU had nothing left to do: then it waits, "
        "however busy it calls itself",
    ),
    "launches": Limit(
        0.5,
        "launches that were seen for each module that was called, at least: what is compiled is "
        "launched in other ways",
    ),
    "launch_ns": Limit(
        3e5, "of the host's time for each launch of a kernel, from which it does other work too"
    ),
    "cpu_pct": Limit(
        80, "of one processor that the process uses meanwhile, or would if it could have it"
    ),
}
# A GPU is called busy as long as it has one small kernel at a time. Where modules are timed on the
# device, `device_timed` is false for those that took as long there as on the host: the GPU was done
# with each as soon as the host was. Where kernels were seen (`sonde capture`), their time counts.
SQL = """
WITH job AS (
  SELECT DISTINCT host, pid FROM python.torch_memory WHERE device LIKE 'cuda%'),
step AS (
  SELECT {piece} AS piece, host, pid, ANY_VALUE(rank) AS rank, COUNT(*) AS steps,
         100 * SUM(forward_ns + backward_ns + optimizer_ns) / SUM(dur_ns) AS model_pct,
         SUM(dur_ns) / 1e7 / {piece_s} AS steps_pct, AVG(modules) AS modules,
         AVG(dur_ns) AS step_ns
  FROM python.torch_step WHERE {inside} AND {main_step} AND ended_by <> 'end' GROUP BY 1, 2, 3),
gpu AS (
  SELECT {piece} AS piece, host, MEDIAN(util_pct) AS util_pct
  FROM system.gpu WHERE {inside} AND {job_gpu} GROUP BY 1, 2
  HAVING COUNT(util_pct) >= LEAST(3, {piece_s})),
cpu AS (
  SELECT {piece} AS piece, host, pid,
         AVG(user_pct + system_pct + COALESCE(run_wait_pct, 0)) AS cpu_pct,
         AVG(COALESCE(run_wait_pct, 0)) AS queue_pct
  FROM system.process WHERE {inside} AND depth = 0 GROUP BY 1, 2, 3),
pace AS (
  SELECT {piece} AS piece, host, pid,
         100 * AVG(CASE WHEN device_timed THEN 0 ELSE 1 END) AS kept_up_pct
  FROM python.torch_trace
  WHERE {inside} AND stage IN ('forward', 'backward') AND device_duration IS NOT NULL
  GROUP BY 1, 2, 3),
launch AS (
  SELECT {piece} AS piece, host, pid, SUM(calls) AS launches
  FROM python.cuda_call WHERE {inside} AND kind = 'launch' GROUP BY 1, 2, 3),
kernel AS (
  SELECT host, pid, AVG(busy_pct) AS busy_pct, AVG(kernel_ns) AS kernel_ns
  FROM (SELECT host, pid, capture, MEDIAN(dur_ns) AS kernel_ns,
               100 * SUM(dur_ns) / (MAX(t_ns + dur_ns) - MIN(t_ns)) AS busy_pct
        FROM python.torch_kernel GROUP BY 1, 2, 3) GROUP BY 1, 2)
SELECT piece, rank, steps, step_ns, steps_pct, model_pct, modules, util_pct, busy_pct, kernel_ns,
       cpu_pct, queue_pct, kept_up_pct, launches / steps AS launches
FROM step JOIN job USING (host, pid) JOIN cpu USING (piece, host, pid)
LEFT JOIN gpu USING (piece, host) LEFT JOIN kernel USING (host, pid)
LEFT JOIN pace USING (piece, host, pid) LEFT JOIN launch USING (piece, host, pid)
"""
_OTHER_WORK = (
    "The GPU waits for work that the host does in the middle of the model",
    "see what the host does at this line, where it takes far longer than to launch a kernel: "
    "arithmetic in Python or NumPy, parsing, building of something for each new shape of its "
    "input (cuDNN's plans, autotuning, compilation; pad to few shapes). Do it once, in workers "
    "ahead of time, or on the GPU. If the model is compiled, it may be launches after all: "
    'torch.compile(mode="reduce-overhead").',
    "the GPU is given its next work only when the host is done with this.",
)


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        known = [one for one in (row.busy_pct, row.util_pct) if one is not None]
        if not known or row.cpu_pct is None:
            continue
        kept_up = (row.kept_up_pct or 0) >= limits.kept_up_pct
        fired = (
            (kept_up or min(known) < limits.gpu_pct)
            and row.model_pct >= limits.model_pct
            and row.steps_pct >= limits.steps_pct
            and row.cpu_pct >= limits.cpu_pct
            # A host that mostly waits for a processor would launch faster if it had one.
            and row.queue_pct < row.cpu_pct / 2
        )
        evidence = {
            "gpu_util_pct": row.util_pct, "kernels_run_pct": row.busy_pct,
            "gpu_kept_up_pct": row.kept_up_pct, "launches_a_step": row.launches,
            "usual_kernel_ns": row.kernel_ns, "host_in_model_pct": row.model_pct,
            "cpu_of_process_pct": row.cpu_pct, "modules_a_step": row.modules,
            "step_ns": row.step_ns,
        }  # fmt: skip
        # How long the GPU was idle between kernels is known only if it called itself idle.
        is_idle = min(known) < limits.gpu_pct
        launch_ns = row.model_pct / 100 * row.step_ns / row.launches if row.launches else 0.0
        is_seen = (row.launches or 0) >= limits.launches * (row.modules or 0)
        is_other = is_seen and launch_ns >= limits.launch_ns
        title, todo, why = _OTHER_WORK if is_other else ("", "", "")
        yield Verdict(
            row.piece, fired, {name: one for name, one in evidence.items() if one is not None},
            lost_pct=min(100 - min(known), row.model_pct) if is_idle else None,
            severity=None if is_idle else "warning", readings=row.steps,
            who="" if row.rank is None else f"rank {row.rank}", title=title, todo=todo,
            why=why,
        )  # fmt: skip
