"""SQL: the line of the user's own code that calls a library, such as that which calls the model."""

from __future__ import annotations

from sonde.advice.rules._code import FILES

MODEL = "file LIKE '%/torch/nn/modules/module.py'"
_MAIN_THREAD = """
  SELECT host, pid, stack, SUM(wall_ns) AS wall_ns FROM python.stack_sample
  SEMI JOIN about USING (host, pid) WHERE {inside} AND thread = pid GROUP BY ALL"""


def make_caller_lines(entry: str = MODEL, samples: str = _MAIN_THREAD) -> str:
    """Return what stands behind WITH, as the last of several: `caller_line` has for each process
    (host, pid) the place of the user's own line that most of the time was called from.

    `entry` is true of the frames of the library: whatever of the user's own lies inside of the
    outermost of them does not count. `samples` are rows (host, pid, stack, wall_ns); if not given,
    those of the main threads of the processes in `about`."""
    return f"""
called_sample AS ({samples}),
called_frame AS (
  SELECT stack, depth, func, file, lineno, is_own FROM python.frame JOIN ({FILES}) USING (file)
  WHERE stack IN (SELECT stack FROM called_sample)),
entry AS (SELECT stack, MAX(depth) AS depth FROM called_frame WHERE {entry} GROUP BY stack),
caller AS (
  SELECT called_frame.stack, MIN(called_frame.depth) AS depth
  FROM called_frame JOIN entry USING (stack)
  WHERE is_own AND called_frame.depth > entry.depth GROUP BY called_frame.stack),
caller_line AS (
  SELECT host, pid, ARG_MAX(struct_pack(file, lineno, func), wall_ns) AS place
  FROM (SELECT host, pid, file, lineno, func, SUM(wall_ns) AS wall_ns
        FROM called_sample JOIN caller USING (stack) JOIN called_frame USING (stack, depth)
        GROUP BY ALL)
  GROUP BY ALL)
"""
