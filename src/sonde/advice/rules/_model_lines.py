"""SQL: the line of the user's own code that calls the model."""

from sonde.advice.rules._code import FILES

# Behind WITH, as the last of them: of each process in `about` (host, pid), the line outside of the
# model, under which the main thread was most often.
MODEL_LINES = f"""
model_sample AS (
  SELECT host, pid, stack, SUM(wall_ns) AS wall_ns FROM python.stack_sample
  SEMI JOIN about USING (host, pid) WHERE {{inside}} AND thread = pid GROUP BY ALL),
model_frame AS (
  SELECT stack, depth, func, file, lineno, is_own FROM python.frame JOIN ({FILES}) USING (file)
  WHERE stack IN (SELECT stack FROM model_sample)),
in_model AS (
  SELECT stack, MAX(depth) AS depth FROM model_frame
  WHERE file LIKE '%/torch/nn/modules/module.py' GROUP BY stack),
model_caller AS (
  SELECT model_frame.stack, MIN(model_frame.depth) AS depth
  FROM model_frame JOIN in_model USING (stack)
  WHERE is_own AND model_frame.depth > in_model.depth GROUP BY model_frame.stack),
model_line AS (
  SELECT host, pid, ARG_MAX(struct_pack(file, lineno, func), wall_ns) AS place
  FROM (SELECT host, pid, file, lineno, func, SUM(wall_ns) AS wall_ns
        FROM model_sample JOIN model_caller USING (stack) JOIN model_frame USING (stack, depth)
        GROUP BY ALL)
  GROUP BY ALL)
"""
