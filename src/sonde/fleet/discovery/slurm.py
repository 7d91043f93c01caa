"""The nodes of a SLURM job: @slurm inside of it, @slurm:JOBID, or @slurm:node[001-128]."""

from __future__ import annotations

import re
import subprocess
from itertools import product

from sonde import environ
from sonde.errors import Error

_ASK_S = 10.0
_MOST = 100_000  # hosts of one list
_WORD = r"(?:[^,\[\]]|\[[^\[\]]+\])+"  # brackets hold commas of their own
_PART = re.compile(r"\[([^\]]*)\]")


def list_hosts(value: str) -> list[str]:
    """Return the nodes of the job that we run in, of a job by its number, or of a list."""
    listed: str | None = value
    if not value:
        listed = environ.read_slurm_nodes()
    elif value.isdecimal():
        listed = _ask_queue(value)
    if not listed:
        raise Error("this is not inside a SLURM job; write @slurm:JOBID or @slurm:node[01-16]")
    return expand_nodes(listed)


def _ask_queue(job: str) -> str:
    words = ["squeue", "--noheader", f"--jobs={job}", "--format=%N"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_ASK_S, check=True)
    except FileNotFoundError:
        raise Error("there is no squeue here; write the nodes, as in @slurm:node[01-16]") from None
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip()
        raise Error(f"squeue does not know job {job}: {said.splitlines()[0]}") from None
    if not done.stdout.strip():
        raise Error(f"job {job} has no nodes now; `squeue --jobs={job}` shows its state")
    return ",".join(done.stdout.split())


def expand_nodes(listed: str) -> list[str]:
    """Return the names that SLURM writes as node[001-003,7],login: node001, node002, …"""
    if not re.fullmatch(rf"{_WORD}(?:,{_WORD})*", listed):
        raise Error(f"{listed[:80]} is not a list of nodes; write node[001-128] or a,b,c")
    found: list[str] = []
    for word in re.findall(_WORD, listed):
        pieces = _PART.split(word.strip())  # text and what stands in brackets, in turn
        choices = [
            [piece] if at % 2 == 0 else _expand_range(piece, listed)
            for at, piece in enumerate(pieces)
        ]
        size = 1
        for choice in choices:
            size *= len(choice)
        if len(found) + size > _MOST:
            raise Error(f"the list of nodes has more than {_MOST:,} names: {listed[:80]}")
        found += ["".join(parts) for parts in product(*choices)]
    return found


def _expand_range(text: str, listed: str) -> list[str]:
    found: list[str] = []
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        high = high if dash else low
        if not (low.isdecimal() and high.isdecimal()) or int(high) - int(low) >= _MOST:
            raise Error(f"[{text[:40]}] in {listed[:80]} is not a range of numbers")
        found += [f"{number:0{len(low)}}" for number in range(int(low), int(high) + 1)]
    return found
