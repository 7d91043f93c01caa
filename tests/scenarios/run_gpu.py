"""Run the jobs of gpu_jobs.py on this machine's GPU, and see what `sonde advise` says of each.

    python tests/scenarios/run_gpu.py [--seconds 14] [JOB …]

A job must get the rule of its problem, with the function in which it lies; the same job without the
problem must get nothing of WARNING or above."""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from run import end_collector

from sonde.advice.finding import Advice
from sonde.advice.judge import advise

JOBS = Path(__file__).with_name("gpu_jobs.py")
PIECE_S = 4.0


def read_rules() -> dict[str, tuple[str, str]]:
    """Return RULES of the jobs without importing torch here."""
    for node in ast.parse(JOBS.read_text()).body:
        if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "RULES":
            return ast.literal_eval(node.value)  # type: ignore[arg-type]
    raise LookupError("RULES")


def run_job(name: str, fixed: bool, seconds: float) -> Advice:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        root = Path(folder) / "sonde"
        command = [sys.executable, str(JOBS), name, "--seconds", str(seconds)]
        env = {**os.environ, "SONDE": "1", "SONDE_DIR": str(root)}
        try:
            subprocess.run([*command, *(["--fixed"] if fixed else [])], env=env, check=True)
        finally:
            end_collector(root)
        return advise(str(root), piece_s=PIECE_S)


def show(advice: Advice) -> None:
    for one in advice.findings:
        print(f"      {one.severity} {one.rule} {one.fired}/{one.judged}: {one.title}; {one.line}; "
              f"{dict(one.evidence)} lost {one.lost_pct}")  # fmt: skip
    for outcome in advice.outcomes:
        if outcome.state == "failed":
            print(f"      {outcome.rule} failed: {outcome.detail}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("jobs", nargs="*", metavar="JOB")
    parser.add_argument("--seconds", type=float, default=14.0)
    args = parser.parse_args()
    rules = read_rules()
    causes = lines = alarms = 0
    for name in args.jobs or rules:
        rule, place = rules[name]
        advice = run_job(name, False, args.seconds)
        found = {one.rule: one.line for one in advice.findings}
        has_line = rule in found and place in found[rule]
        causes, lines = causes + (rule in found), lines + has_line
        said = "named" if has_line else "cause only" if rule in found else "MISSED"
        print(f"{name:16} {rule:18} {said}", flush=True)
        show(advice)
        healthy = run_job(name, True, args.seconds)
        loud = [one.rule for one in healthy.findings if one.severity != "info"]
        alarms += bool(loud)
        print(f"{'  fixed':16} {'':18} {', '.join(loud) or 'nothing'}", flush=True)
        show(healthy)
    count = len(args.jobs or rules)
    print(f"cause {causes} of {count}, line {lines} of {count}, false alarms {alarms} of {count}")


if __name__ == "__main__":
    main()
