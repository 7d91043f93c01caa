"""Run the jobs of gpu_jobs.py on this machine's GPU, and see what `sonde advise` says of each.

    python tests/scenarios/run_gpu.py [--seconds 9] [--details FILE] [JOB …]

A job must get the rule of its problem, with the function in which it lies; the same job without the
problem must get nothing of WARNING or above. All of them take about 15 minutes on an H200: while
one runs, the next imports torch, and the last one is judged."""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from run import end_collector

JOBS = Path(__file__).with_name("gpu_jobs.py")
PIECE_S = 3.0
HOST_EVERY = "0.5s"  # a rule wants three readings of a GPU in each piece
PATIENCE_S = 120.0
# A save that takes much of the time is named as that, whether or not it is seen to recur.
ALSO = {"checkpoint": ("costly_calls",), "best_saved": ("costly_calls",)}
MOST = 3  # findings that are shown of each


def read_rules() -> dict[str, tuple[str, str]]:
    """Return RULES of the jobs without importing torch here."""
    for node in ast.parse(JOBS.read_text()).body:
        if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "RULES":
            return ast.literal_eval(node.value)  # type: ignore[arg-type]
    raise LookupError("RULES")


class Run:
    """One job, with its problem or without: it waits until it may begin."""

    def __init__(self, name: str, is_fixed: bool, seconds: float, folder: Path) -> None:
        self.name, self.is_fixed = name, is_fixed
        self.root = folder / f"{name}{'-fixed' * is_fixed}"
        command = [sys.executable, str(JOBS), name, "--wait", "--seconds", str(seconds)]
        env = {key: value for key, value in os.environ.items() if not key.startswith("SONDE")}
        env |= {"SONDE_DIR": str(self.root), "SONDE_HOST_EVERY": HOST_EVERY}
        self.errors = (folder / f"{self.root.name}.stderr").open("w+")
        self.process = subprocess.Popen([*command, *["--fixed"] * is_fixed], env=env, text=True,
                                        stdin=subprocess.PIPE, stderr=self.errors)  # fmt: skip

    def go(self) -> None:
        """Let it begin, and wait for its end."""
        try:
            self.process.communicate("go\n", PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
        finally:
            end_collector(self.root)

    def advise(self) -> dict:
        """Return what `sonde advise` says, as it prints it for programs."""
        if self.process.returncode:
            self.errors.seek(0)
            return {"failed": f"ended with {self.process.returncode}: {self.errors.read()[-300:]}"}
        command = [sys.executable, "-m", "sonde", "advise", str(self.root), "--format", "json",
                   "--piece", f"{PIECE_S}s"]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
        return json.loads(done.stdout) if done.stdout else {"failed": done.stderr[-300:]}


def run_all(names: list[str], seconds: float, tell: Callable[[Run], None]) -> None:
    """Run one after the other, and tell of each while the next one runs."""
    todo = [(name, is_fixed) for name in names for is_fixed in (False, True)]
    temporary = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    with temporary as folder, ThreadPoolExecutor(1) as teller:
        coming, told = Run(*todo[0], seconds, Path(folder)), []
        for after in [*todo[1:], None]:
            now = coming
            if after is not None:
                coming = Run(*after, seconds, Path(folder))
            now.go()
            told.append(teller.submit(tell, now))
        for one in told:
            one.result()  # raises what went wrong there


def judge(run: Run, advice: dict, rule: str, place: str) -> str:
    """Return named, cause only, MISSED, failed; of a twin quiet or FALSE ALARM: rules."""
    if "failed" in advice:
        return "failed"
    if run.is_fixed:
        loud = [one["rule"] for one in advice["findings"] if one["severity"] != "info"]
        return f"FALSE ALARM: {' '.join(loud)}" if loud else "quiet"
    rules = {rule, *ALSO.get(run.name, ())}
    lines = [one["line"] for one in advice["findings"] if one["rule"] in rules]
    return "MISSED" if not lines else "named" if place in lines[0] else "cause only"


def show(run: Run, advice: dict, said: str, rule: str) -> None:
    print(f"{run.name + ' fixed' * run.is_fixed:22} {'' if run.is_fixed else rule:18} {said}")
    if "failed" in advice:
        print(f"      {advice['failed']}")
    for one in advice.get("findings", [])[:MOST]:
        numbers = ", ".join(f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}"
                            for key, value in one["evidence"].items())  # fmt: skip
        print(f"      {one['severity']} {one['rule']} {one['fired']}/{one['judged']} "
              f"{one['line'].rpartition('/')[2]} {numbers}"[:200])  # fmt: skip
    outcomes = {one["rule"]: one for one in advice.get("outcomes", [])}
    for name, one in outcomes.items():
        if one["state"] == "failed" or (said == "MISSED" and name == rule):
            print(f"      {name} {one['state']}: {one['detail']}")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("jobs", nargs="*", metavar="JOB")
    parser.add_argument("--seconds", type=float, default=9.0)
    parser.add_argument("--details", help="write all that was said to this file, as JSON")
    args = parser.parse_args()
    rules, begin = read_rules(), time.monotonic()
    said, details = Counter[str](), {}

    def tell(run: Run) -> None:
        advice, (rule, place) = run.advise(), rules[run.name]
        verdict = judge(run, advice, rule, place)
        said[verdict.partition(":")[0]] += 1
        details[run.root.name] = advice
        show(run, advice, verdict, rule)
        if args.details:
            Path(args.details).write_text(json.dumps(details, indent=1))

    names = args.jobs or list(rules)
    run_all(names, args.seconds, tell)
    right = said["named"] + said["cause only"]
    print(f"{len(names)} problems: cause {right}, also line {said['named']}, missed "
          f"{said['MISSED']}; {len(names)} fixed twins: quiet {said['quiet']}, false alarms "
          f"{said['FALSE ALARM']}; failed {said['failed']}; {time.monotonic() - begin:.0f} s")  # fmt: skip


if __name__ == "__main__":
    main()
