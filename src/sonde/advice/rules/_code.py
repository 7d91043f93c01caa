"""What rules need to know about the program's code: whose a frame is, and how a line is named."""

from __future__ import annotations

from sonde.analysis.wait_words import describe_wait
from sonde.words import shorten_func

# Our own files, also where sonde runs from its source: as in analysis/code_names.py.
_OURS = "(-packages|/src)/sonde/((job|session|tables|profiler|integrations)/|\\w+\\.py$)"
# SQL: is a row of python.frame about the user's own code? Libraries do what such a line asked for.
OWN = (
    "(file NOT LIKE '%site-packages%' AND file NOT LIKE '%dist-packages%'"
    " AND file NOT LIKE '%/lib/python3%' AND file NOT LIKE '%/lib64/python3%'"
    " AND file NOT LIKE '<%'"
    " AND NOT regexp_matches(file, '/bin/[^/.]+$')"  # torchrun, gunicorn: launchers
    f" AND NOT regexp_matches(file, '{_OURS}'))"
)
# Stacks that load data for a DataLoader, in a worker or in the loop itself.
FETCHING = "SELECT stack FROM python.frame WHERE file LIKE '%/torch/utils/data/_utils/fetch.py'"
# SQL: the files of all frames, and whether they are the user's own: there are far fewer files than
# frames to hold against so many patterns.
FILES = (
    f"SELECT file, {OWN} AS is_own, regexp_matches(file, '{_OURS}') AS is_ours"
    " FROM (SELECT DISTINCT file FROM python.frame)"
)
# SQL: the innermost line of the user's own code in each stack, and what ran inside it. A forked
# worker has the stack of its parent around its own, from `_bootstrap` on: that is not its doing.
# Nor is what sonde does when it was called from there, as at the end of a step.
PLACE = f"""
  SELECT own.stack, own.depth AS own_depth, f.file, f.lineno, f.func, leaf.file AS leaf_file,
         leaf.lineno AS leaf_line, leaf.func AS leaf_func
  FROM (SELECT stack, MIN(depth) FILTER (is_own) AS depth,
               MIN(depth) FILTER (ends_with(func, '_bootstrap')
                 AND file LIKE '%/multiprocessing/process.py') AS child
        FROM python.frame JOIN ({FILES}) USING (file) GROUP BY stack
        HAVING depth < COALESCE(child, 65536) AND NOT ARG_MIN(is_ours, python.frame.depth)) AS own
  JOIN python.frame AS f ON f.stack = own.stack AND f.depth = own.depth
  JOIN python.frame AS leaf ON leaf.stack = own.stack AND leaf.depth = 0
"""
# SQL: the samples of each piece, added up by where a thread was and what it did there. It is worked
# out once for all rules that ask for it, and has a hundredth of the rows. Of older recordings,
# queue_ns may be longer than the time of its sample.
SUMS = """
  SELECT {piece} AS piece, host, pid, thread, stack, call, gil, idle, wait,
         SUM(wall_ns)::BIGINT AS wall_ns, SUM(cpu_ns)::BIGINT AS cpu_ns,
         SUM(CASE WHEN queue_ns > wall_ns THEN wall_ns ELSE queue_ns END)::BIGINT AS queue_ns,
         SUM(samples)::BIGINT AS samples, COUNT(*) AS rows,
         SUM(GREATEST(0, LEAST(wall_ns - queue_ns, cpu_ns)))::BIGINT AS worked_ns
  FROM python.stack_sample WHERE {inside} GROUP BY ALL
"""


def in_python(path: str) -> str:
    """Return SQL that is true of frames of a file of Python's own library: programs have files with
    such names, too. It lies below `lib`, or `lib64`."""
    places = f"(file LIKE '%/lib/python3%/{path}' OR file LIKE '%/lib64/python3%/{path}')"
    return f"({places} AND file NOT LIKE '%-packages/%')"


def show_place(file: object, lineno: object, func: object) -> str:
    """A line as findings name it; empty if it is not known."""
    return "" if file is None else f"{file}:{lineno} in {shorten_func(str(func))}"


def describe_more(func: str, kind: str | None, call: str | None) -> str:
    """What someone does for longer than others, or than before: `kind` is what it waits for, None
    if it works."""
    where = "at one line" if func == "<module>" else f"in {func}"
    where += f" ({call})" if call else ""
    if kind is None:
        return f"works longer {where}"
    waits = describe_wait((), kind)
    return f"waits{f' for {waits}' if waits else ''} {where}"
