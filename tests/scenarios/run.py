"""Run the scenarios, and see whether the right rule fires and no wrong one does.

    python tests/scenarios/run.py [--runs 10] [--seconds 8] [--busy] [NAME …]

A scenario is a program with a planted cause, recorded as any program is; `sonde.advise` is what
`sonde advise` prints. See loop.py for what stands at the top of each."""

from __future__ import annotations

import argparse
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

from sonde.advice.finding import Advice
from sonde.advice.judge import advise

FOLDER = Path(__file__).parent
PARTS = (  # that are no scenarios
    "loop", "torch_loop", "run", "run_gpu", "gpu_jobs", "gpu_loop", "gpu_memory_jobs", "gpu_text_jobs",
)  # fmt: skip
PLACES = "places"  # no rule finds it: it must be told where the time went
_TOLD_PCT = 15.0  # of the time, from which a place tells what people do
PIECE_S = 1.0
PATIENCE_S = 120.0


class Scenario:
    """A program, and what must be found in its recording."""

    def __init__(self, name: str) -> None:
        stem, _, twin = name.partition("+")
        self.name, self.path, self.is_fixed = name, FOLDER / f"{stem}.py", bool(twin)
        held = runpy.run_path(str(self.path), run_name="read")
        self.rule: str | None = None if twin else held["RULE"]
        self.line: str = held.get("LINE", "")  # the function that must be named
        self.cause: str | None = held["CAUSE"]
        self.also: tuple[str, ...] = held.get("ALSO", ())  # rules that may fire, too: it is true
        self.ranks: int = held.get("RANKS", 1)
        self.options: dict[str, str] = held.get("OPTIONS", {})
        self.limits: dict[str, float] = held.get("LIMITS", {})
        self.piece_s: float = held.get("PIECE_S", PIECE_S)
        self.gpu: bool = held.get("GPU", False)
        self.has_twin: bool = held.get("TWIN", False)
        self.ends: int = held.get("ENDS", 0)  # with this code; -9: it is killed
        self.needs: str = held.get("NEEDS", "")  # a package that not every machine has

    def record(self, root: Path, seconds: float) -> None:
        """Run it to its end, recorded into this folder."""
        own = {
            f"SONDE_{key.upper().replace('.', '_')}": value for key, value in self.options.items()
        }
        env = {key: value for key, value in os.environ.items() if not key.startswith("SONDE")}
        env |= {"SONDE": "1", "SONDE_DIR": str(root), "MEET": str(root) + ".meet", **own}
        if self.gpu:
            env["SONDE_NVML"] = str(_fake_gpu(root))
        ranks = [{"RANK": str(rank), "WORLD_SIZE": str(self.ranks)} for rank in range(self.ranks)]
        started = [
            subprocess.Popen([sys.executable, str(self.path), str(seconds), *["fixed"] * self.is_fixed],
                             env={**env, **(rank if self.ranks > 1 else {})})
            for rank in ranks
        ]  # fmt: skip
        ended = [process.wait(seconds + PATIENCE_S) for process in started]
        assert set(ended) == {self.ends}, f"{self.name} ended with {ended}"

    def advise(self, root: Path) -> Advice:
        return advise(str(root), piece_s=self.piece_s, limits=self.limits)

    def check(self, advice: Advice) -> tuple[bool, list[str]]:
        """Was it found, with its cause and line; and what else was, that is not there."""
        right = self.rule is None or (self.names_cause(advice) and self.names_line(advice))
        others = {"cpu_starved"} if _others_are_busy(advice) else set()  # true of any program here
        expected = {self.rule, *others, *(() if self.rule is None else self.also)}
        wrong = [
            f"{one.rule} ({one.severity})" for one in advice.findings
            if one.rule not in expected and not (one.severity == "info" and self.may_mention(one.rule))
        ]  # fmt: skip
        failed = [f"{o.rule} failed: {o.detail}" for o in advice.outcomes if o.state == "failed"]
        return right, [*wrong, *failed]

    def may_mention(self, rule: str) -> bool:
        """Is it right to mention this, though not to warn of it?"""
        return self.is_fixed or rule in self.also

    def names_cause(self, advice: Advice) -> bool:
        """Is the right rule among the findings, with the right cause?"""
        if self.rule == PLACES:
            return any(
                self.line in one.func and (self.cause or "") in f"{one.facts}; {one.instead}"
                and one.share_pct >= _TOLD_PCT
                for one in advice.places
            )  # fmt: skip
        return any(
            one.rule == self.rule and (self.cause or "") in f"{one.title} {', '.join(one.who)}"
            for one in advice.findings
        )

    def names_line(self, advice: Advice) -> bool:
        """Does the finding name the function that has the cause?"""
        return self.rule == PLACES or any(
            one.rule == self.rule and self.line in one.line for one in advice.findings
        )


def _fake_gpu(root: Path) -> Path:
    """A folder with a library of NVIDIA's that finds an idle GPU until a scenario says more."""
    folder = root.with_name("nvml")
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(FOLDER.parent / "fake" / "pynvml.py", folder)
    script = {"begun_s": time.monotonic(), "repeat_s": 0, "steps": [{"at": 0, "gpus": [{}]}]}
    (folder / "script.json").write_text(json.dumps(script))
    return folder


def _others_are_busy(advice: Advice) -> bool:
    return any(f.rule == "cpu_starved" and f.severity == "info" for f in advice.findings)


def list_names() -> list[str]:
    """Return the scenarios, each with its twin behind it."""
    names = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in PARTS)
    twins = {name for name in names if Scenario(name).has_twin}
    return [one for name in names for one in (name, f"{name}+fixed")[: 1 + (name in twins)]]


def end_collector(root: Path) -> None:
    """The collector would stay for ten seconds more; what it has seen is on disk."""
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if os.fsencode(root) in words and int(entry) != os.getpid():
            os.kill(int(entry), signal.SIGKILL)


def run_once(scenario: Scenario, seconds: float, show: bool = False) -> tuple[bool, list[str]]:
    """Run a scenario and judge its recording."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        root = Path(folder) / "sonde"
        try:
            scenario.record(root, seconds)
        finally:
            end_collector(root)
        advice = scenario.advise(root)
    if show:
        for finding in advice.findings:
            print(f"  {finding.rule}: {finding.title} {finding.fired}/{finding.judged} "
                  f"{finding.line} {dict(finding.evidence)} {finding.lost_pct}")  # fmt: skip
        for outcome in advice.outcomes:
            if outcome.state not in ("found",):
                print(f"    {outcome.rule} {outcome.state}: {outcome.detail}")
    return scenario.check(advice)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--busy", action="store_true", help="keep two processors busy meanwhile")
    parser.add_argument("--show", action="store_true", help="what was found in each run")
    args = parser.parse_args()
    spin = [sys.executable, "-S", "-c", "while True: pass"]
    busy = [subprocess.Popen(spin) for _ in range(2 * args.busy)]
    try:
        run_all(args)
    finally:
        for process in busy:
            process.kill()


def run_all(args: argparse.Namespace) -> None:
    """Run the scenarios, and print a line for each."""
    print(f"{'scenario':24} {'rule':18} {'right':>7}  wrong", flush=True)
    for name in args.names or list_names():
        scenario, hits, wrong = Scenario(name), 0, Counter[str]()
        if scenario.needs and find_spec(scenario.needs) is None:
            print(f"{name:24} not run: {scenario.needs} is not installed", flush=True)
            continue
        begin = time.monotonic()
        for _ in range(args.runs):
            right, others = run_once(scenario, args.seconds, args.show)
            hits += right
            wrong.update(others)
        said = ", ".join(f"{rule} {count}" for rule, count in wrong.items()) or "-"
        took = f"({(time.monotonic() - begin) / args.runs:.0f} s a run)"
        print(f"{name:24} {scenario.rule or 'none':18} {hits:3} of {args.runs}  {said} {took}",
              flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
