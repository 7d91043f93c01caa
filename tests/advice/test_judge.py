"""The engine of advice: pieces, votes, severity, confidence, and what it does with bad rules."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import sonde
from sonde.advice.finding import Advice, Finding, Outcome, Tally, name_votes, show_evidence
from sonde.advice.judge import Rule, judge, load_rules
from sonde.advice.period import find_period
from sonde.advice.verdict import Limits, Rows, Verdict, group
from sonde.errors import ConfigError
from sonde.session import list_sessions
from sonde.store.held import HeldRecording
from sonde.store.recording import Recording, open_recording
from support.handmade_machine import OFF, Machine, record
from support.handmade_model import Job, Part

SQL = "SELECT {piece} AS piece, COUNT(*) AS readings FROM system.cpu WHERE {inside} GROUP BY ALL"


def make_rule(name: str = "made", sql: str = SQL, verdict: object = None, **names: object) -> Rule:
    """A rule as if from a file; `verdict(row)` judges each row."""
    module = ModuleType(name)
    module.__doc__ = "Made up.\n\nWhy it hurts: it\ndoes.\n\nWhat to do: nothing."

    def decide(rows: Rows, _limits: Limits) -> Iterator[Verdict]:
        for row in rows:
            yield (
                verdict(row)
                if callable(verdict)
                else Verdict(row.piece, True, readings=row.readings)
            )

    for key, value in {"SQL": sql, "LIMITS": {}, "judge": decide, **names}.items():
        setattr(module, key, value)
    return Rule(name, module, Limits())


def ask(folder: str, *rules: Rule, piece_s: float = 10, since: str | None = "+0s") -> Advice:
    with HeldRecording(open_recording(folder).sessions) as recording:
        return judge(recording, rules, find_period(recording, since, None, piece_s))


def tally(*verdicts: Verdict, danger: bool = False) -> Tally:
    return Tally(verdicts, danger)


# ---- votes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fired", "word"),
    [(0, "none"), (1, "a little"), (29, "a little"), (30, "several"), (79, "several"),
     (80, "most"), (100, "most")],
)  # fmt: skip
def test_the_words_are_the_originals(fired: int, word: str) -> None:
    assert name_votes(fired, 100) == word


def test_every_piece_has_one_vote_however_many_gpus() -> None:
    votes = tally(*(Verdict(0, gpu == 3, who=f"GPU {gpu}") for gpu in range(8)), Verdict(1, False))
    assert (votes.fired, votes.judged) == ([0], 2)
    assert votes.who == ["GPU 3"]


def test_what_is_seen_in_few_pieces_is_told_only_if_it_is_a_danger() -> None:
    verdicts = [Verdict(at, at == 0) for at in range(10)]
    assert not tally(*verdicts).is_found
    assert tally(*verdicts, danger=True).is_found


def test_severity_is_the_share_of_time_lost_over_all_pieces() -> None:
    def lose(pct: float, pieces: int) -> str:
        return tally(
            *(Verdict(at, at < pieces, lost_pct=pct, readings=10) for at in range(10))
        ).severity

    assert lose(9, 10) == "info"
    assert lose(12, 10) == "warning"
    assert lose(25, 10) == "critical"
    assert lose(25, 5) == "warning"


def test_two_looks_are_needed_to_warn_and_twenty_to_be_critical() -> None:
    def see(readings: int) -> str:
        return tally(Verdict(0, True, lost_pct=90, readings=readings)).severity

    assert [see(1), see(2), see(19), see(20)] == ["info", "warning", "warning", "critical"]


def test_one_piece_of_two_or_three_is_only_mentioned() -> None:
    def judge(*fired: bool, danger: bool = False) -> str:
        verdicts = [
            Verdict(at, one, lost_pct=90.0 if one else None, readings=99)
            for at, one in enumerate(fired)
        ]
        return Tally(verdicts, danger=danger).severity

    assert judge(True, False) == judge(True, False, False) == "info"
    assert judge(True) == judge(True, True, False) == judge(True, False, danger=True) == "critical"


def test_a_danger_is_as_bad_as_its_worst_piece_and_a_symptom_as_its_usual_one() -> None:
    levels = ["warning"] * 9 + ["critical"]
    verdicts = [Verdict(at, True, severity=level) for at, level in enumerate(levels)]
    assert tally(*verdicts, danger=True).severity == "critical"
    assert tally(*verdicts).severity == "warning"


def test_more_pieces_give_more_confidence() -> None:
    one, many = (tally(*(Verdict(at, True) for at in range(n))) for n in (1, 20))
    assert one.confidence == pytest.approx(1 / 3)
    assert many.confidence > 0.9


def test_a_piece_with_many_readings_gives_more_confidence() -> None:
    few, many = (tally(Verdict(0, True, readings=readings)) for readings in (19, 20))
    assert few.confidence == pytest.approx(1 / 3)
    assert many.confidence == pytest.approx(1 / 2)


def test_evidence_is_the_median_or_what_its_name_says() -> None:
    verdicts = [Verdict(at, True, {"util_pct": v, "max_c": v, "min_b": v, "total_n": v, "disk": "a"})
                for at, v in enumerate((1, 2, 9))]  # fmt: skip
    quiet = Verdict(3, False, {"util_pct": 1000})
    found = {"util_pct": 2, "max_c": 9, "min_b": 1, "total_n": 12, "disk": "a"}
    assert tally(*verdicts, quiet).evidence == found


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [("util_pct", 43.21, "util 43.2 %"), ("held_bytes", 3 * 2**30, "held 3 GiB"),
     ("max_temperature_c", 87, "max temperature 87 °C"), ("gpus", 8, "gpus 8"),
     ("disk", "sda", "disk sda"), ("what", "main waits", "main waits"),
     ("power_w", 612.4, "power 612 W"), ("gpus", None, "gpus unknown"),
     ("in_use_bytes", 0, "in use 0 B"), ("step_ns", 12.3e6, "step 12.3 ms")],
)  # fmt: skip
def test_evidence_is_shown_with_its_unit(name: str, value: object, text: str) -> None:
    assert show_evidence(name, value) == text  # type: ignore[arg-type]


def test_rows_are_grouped_by_piece() -> None:
    rows = [type("Row", (), {"piece": piece})() for piece in (0, 0, 2)]
    assert [(piece, len(found)) for piece, found in group(rows)] == [(0, 2), (2, 1)]


# ---- pieces and warm-up -------------------------------------------------------------------------


def test_pieces_cover_the_recording_and_what_is_left_counts_if_it_is_most_of_one() -> None:
    for seconds, pieces in ((30, 3), (34, 3), (36, 4), (3, 1)):
        advice = ask(record(seconds), make_rule())
        assert advice.pieces == pieces
        assert advice.outcomes[0].judged == pieces
        sonde.stop()


def test_each_row_is_in_one_piece() -> None:
    seen: list[int] = []
    rule = make_rule(verdict=lambda row: (seen.append(row.readings), Verdict(row.piece, False))[1])
    ask(record(40), rule)
    assert seen == [10, 10, 10, 10]


def test_the_first_steps_are_left_out_while_they_take_far_longer() -> None:
    folder = sonde.start(**OFF)
    assert folder is not None
    machine = Machine()
    job = Job(machine.start_ns)
    for number, other_ms in enumerate((12_000, 6_000, *[500] * 60)):
        job.step(number, Part("Net"), other_ms=other_ms)
    machine.run(50)
    sonde.stop()
    advice = ask(folder, make_rule(), since=None)
    assert advice.warm_up_s == pytest.approx(18, abs=1)
    assert ask(folder, make_rule()).warm_up_s == 0  # --since names a start


def test_steps_that_are_slow_for_most_of_the_time_are_no_warm_up_but_the_first() -> None:
    folder = sonde.start(**OFF)
    assert folder is not None
    machine = Machine()
    job = Job(machine.start_ns)
    for number, other_ms in enumerate((5_000, *[3_000] * 10, *[200] * 60)):
        job.step(number, Part("Net"), other_ms=other_ms)
    machine.run(50)
    sonde.stop()
    assert 5 <= ask(folder, make_rule(), since=None).warm_up_s < 25  # the others end after 35 s


def test_without_steps_the_time_until_a_gpu_works_is_left_out() -> None:
    folder = record(100, gpu=lambda t: {"util_pct": 0.0 if t < 25 else 95.0})
    advice = ask(folder, make_rule(), since=None)
    assert advice.warm_up_s == pytest.approx(24.5, abs=1)


def test_what_is_inferred_is_never_more_severe_than_its_rule_allows() -> None:
    verdicts = [Verdict(piece, True, lost_pct=90, readings=20) for piece in range(5)]
    assert Tally(verdicts, False).severity == "critical"
    assert Tally(verdicts, False, "warning").severity == "warning"


def test_without_steps_the_imports_are_left_out(run, tmp_path: Path) -> None:
    spin = "import time\nend = time.monotonic() + 0.6\nwhile time.monotonic() < end: pass\n"
    (tmp_path / "slow_module.py").write_text(spin)
    done = run(
        "import sonde, time\nfolder = sonde.start(collector='off')\nbegin = time.monotonic()\n"
        "import slow_module\nimported = time.monotonic()\n" + spin +
        "print(folder, imported - begin, time.monotonic() - imported)\n"
    )  # fmt: skip
    folder, imported_s, worked_s = done.stdout.split()
    period = find_period(sonde.open(folder), None, None, 10.0)
    assert 0.5 * float(imported_s) < period.warm_up_s
    assert 0.1 * float(worked_s) < period.length_s  # on a busy machine samples come late
    assert find_period(sonde.open(folder), "+0s", None, 10.0).warm_up_s == 0


def test_a_program_that_only_imports_has_nothing_to_judge_yet(run, tmp_path: Path) -> None:
    spin = "import time\nend = time.monotonic() + 0.6\nwhile time.monotonic() < end: pass\n"
    (tmp_path / "slow_module.py").write_text(spin)
    done = run(
        "import sonde\nfolder = sonde.start(collector='off')\nimport slow_module\nprint(folder)\n"
    )
    period = find_period(sonde.open(done.stdout.strip()), None, None, 10.0)
    assert period.length_s < period.warm_up_s
    since_ns, until_ns = period.shown_ns  # but people are told where the time went
    assert until_ns - since_ns > 0.5 * period.warm_up_s * 1e9


def test_threads_that_waited_for_each_other_are_told_after_the_program_has_ended(run) -> None:
    done = run(
        "import sonde, threading, time\nfolder = sonde.start(collector='off')\n"
        "locks = threading.Lock(), threading.Lock()\nboth = threading.Barrier(2)\n"
        "def work(mine, other):\n"
        "    with mine:\n        both.wait()\n        with other: pass\n"
        "for pair in (locks, locks[::-1]):\n"
        "    threading.Thread(target=work, args=pair, daemon=True).start()\n"
        "end = time.monotonic() + 4\n"
        "while time.monotonic() < end: time.sleep(0.05)\n"
        "print(folder)\n"
    )
    limits = {"deadlock.least_s": 1}
    (finding,) = sonde.advise(
        done.stdout.strip(), piece_s=1.0, rules=["deadlock", "hang"], limits=limits
    ).findings
    assert (finding.rule, finding.severity) == ("deadlock", "critical")
    assert "waited for each other" in finding.title


def test_a_gpu_that_idles_for_most_of_the_time_is_no_warm_up() -> None:
    folder = record(100, gpu=lambda t: {"util_pct": 0.0 if t < 90 else 95.0})
    assert ask(folder, make_rule(), since=None).warm_up_s == 0


def test_a_recording_of_nothing_is_judged_without_failing() -> None:
    folder = sonde.start(**OFF)
    sonde.stop()
    assert folder is not None
    advice = sonde.advise(folder)
    assert advice.findings == []
    assert not [outcome for outcome in advice.outcomes if outcome.state == "failed"]


@pytest.mark.parametrize("piece_s", [0, -1, 1e9])
def test_a_senseless_piece_is_refused(piece_s: float) -> None:
    with pytest.raises(ConfigError, match="--piece"):
        sonde.advise(record(3), piece_s=piece_s)


# ---- rules that are bad, or know too little ------------------------------------------------------


def _break(_row: object) -> Verdict:
    raise ZeroDivisionError("by hand")


def test_a_rule_that_raises_is_told_and_the_others_go_on() -> None:
    rules = (make_rule("bad", verdict=_break), make_rule("worse", sql="SELECT nonsense"),
             make_rule("good"))  # fmt: skip
    advice = ask(record(20), *rules)
    bad, worse, good = advice.outcomes
    assert bad == Outcome("bad", "failed", "ZeroDivisionError: by hand")
    assert worse.state == "failed"
    assert "nonsense" in worse.detail
    assert good.state == "found"
    assert [finding.rule for finding in advice.findings] == ["good"]


def test_a_table_that_this_recording_cannot_have_is_named() -> None:
    rule = make_rule(NEEDS=("system.cpu.busy_pct", "system.tea.cups"))
    (outcome,) = ask(record(20), rule).outcomes
    assert outcome == Outcome("made", "abstained", "not recorded: system.tea.cups")


def test_a_column_that_is_always_unknown_is_named() -> None:
    rule = make_rule(sql="SELECT {piece} AS piece FROM system.memory WHERE swap_in_bytes > 0",
                     NEEDS=("system.memory.used_bytes", "system.memory.swap_in_bytes"))  # fmt: skip
    (outcome,) = ask(record(20, memory={"swap_in_bytes": None}), rule).outcomes
    assert outcome.detail == "system.memory.swap_in_bytes is unknown"


def test_a_symptom_is_not_told_beside_its_cause() -> None:
    rules = make_rule("symptom", UNLESS=("cause",)), make_rule("cause")
    advice = ask(record(20), *rules)
    assert [finding.rule for finding in advice.findings] == ["cause"]
    assert [outcome.state for outcome in advice.outcomes] == ["found", "found"]
    assert advice.outcomes[0].detail == "in 2 of 2 pieces; left to cause"


def test_a_symptom_that_is_worse_than_its_cause_is_told() -> None:
    def at(level: str):
        return lambda row: Verdict(row.piece, True, severity=level, readings=row.readings)

    rules = (
        make_rule("symptom", verdict=at("warning"), UNLESS=("cause",)),
        make_rule("cause", verdict=at("info")),
    )
    advice = ask(record(20), *rules)
    assert [finding.rule for finding in advice.findings] == ["symptom", "cause"]


@pytest.mark.parametrize(("cause", "told"), [("warning", "info"), ("info", "critical")])
def test_a_symptom_is_only_mentioned_beside_a_cause_that_is_worth_a_warning(
    cause: str, told: str
) -> None:
    rules = (
        make_rule(
            "symptom",
            BESIDE=("cause",),
            verdict=lambda row: Verdict(row.piece, True, lost_pct=50.0, readings=99),
        ),
        make_rule(
            "cause", verdict=lambda row: Verdict(row.piece, True, severity=cause, readings=99)
        ),
    )
    found = {one.rule: one.severity for one in ask(record(40), *rules).findings}
    assert found == {"symptom": told, "cause": cause}


def test_a_loss_of_less_than_a_hundredth_of_the_time_is_not_told() -> None:
    def lose(lost_pct: float, danger: bool = False) -> bool:
        return Tally([Verdict(0, True, lost_pct=lost_pct)], danger).is_found

    assert lose(1.5) and not lose(0.4)
    assert lose(0.4, danger=True)  # seeing it once is enough


@pytest.mark.parametrize("pieces", [4, 2])
def test_where_others_have_the_processors_times_are_only_mentioned(pieces: int) -> None:
    def is_crowd(row):
        return Verdict(row.piece, row.piece < pieces, severity="info", readings=99, is_own=False)

    rules = (
        make_rule("cpu_starved", verdict=is_crowd),
        make_rule(
            "slow",
            CROWD="info",
            verdict=lambda row: Verdict(row.piece, True, lost_pct=50.0, readings=99),
        ),
        make_rule(
            "wrong", verdict=lambda row: Verdict(row.piece, True, lost_pct=50.0, readings=99)
        ),
    )
    told = {finding.rule: finding.severity for finding in ask(record(40), *rules).findings}
    assert told["wrong"] == "critical"
    assert told["slow"] == ("info" if pieces == 4 else "critical")


@pytest.mark.parametrize("line", ["app.py:3 in load", "app.py:9 in save"])
def test_a_cause_comes_before_its_effect_at_the_same_line_however_bad_that_is(line: str) -> None:
    def at(level: str, line: str):
        return lambda row: Verdict(row.piece, True, severity=level, readings=99, line=line)

    rules = (
        make_rule("effect", verdict=at("warning", "app.py:3 in load"), BEHIND=("cause",)),
        make_rule("cause", verdict=at("info", line)),
        make_rule("other", verdict=at("critical", "")),
    )
    told = [finding.rule for finding in ask(record(20), *rules).findings]
    usual = ["other", "effect", "cause"]
    assert told == (["other", "cause", "effect"] if "load" in line else usual)


def test_the_worst_finding_comes_first() -> None:
    rules = [make_rule(level, verdict=lambda row, level=level: Verdict(
        row.piece, True, severity=level, readings=row.readings)) for level in ("info", "critical", "warning")]  # fmt: skip
    advice = ask(record(40), *rules)
    assert [finding.severity for finding in advice.findings] == ["critical", "warning", "info"]
    assert advice.worst == "critical"


def test_what_tells_of_the_surroundings_comes_last_of_those_as_severe() -> None:
    rules = [
        make_rule(name, LAST=name == "a_crowd", verdict=lambda row, level=level: Verdict(
            row.piece, True, severity=level, readings=row.readings))
        for name, level in (("a_crowd", "info"), ("cause", "info"), ("worse", "warning"))
    ]  # fmt: skip
    found = ask(record(40), *rules).findings
    assert [one.rule for one in found] == ["worse", "cause", "a_crowd"]


def test_a_finding_says_when_what_why_and_what_to_do() -> None:
    rule = make_rule(verdict=lambda row: Verdict(row.piece, row.piece in (1, 2), {"util_pct": 5.0}))
    (finding,) = ask(record(40), rule).findings
    assert (finding.title, finding.why, finding.todo) == ("Made up", "it does.", "nothing.")
    assert (finding.votes, finding.fired, finding.judged) == ("several", 2, 4)
    assert isinstance(finding, Finding)
    assert finding.since < finding.until


def test_a_number_that_is_none_is_not_told() -> None:
    rule = make_rule(verdict=lambda row: Verdict(row.piece, True, {"a": float("nan"), "b": None}))
    advice = ask(record(20), rule)
    assert advice.findings[0].evidence == {"a": None, "b": None}
    json.loads(advice.to_json(), parse_constant=pytest.fail)


def test_advice_is_json_for_programs() -> None:
    told = json.loads(ask(record(20), make_rule()).to_json())
    assert told["pieces"] == 2
    (finding,) = told["findings"]
    assert (finding["rule"], finding["sureness"]) == ("made", "medium")
    assert told["outcomes"][0]["state"] == "found"


# ---- limits --------------------------------------------------------------------------------------


def test_limits_come_from_the_caller_then_the_environment_then_the_rule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def read(given: dict[str, object] | None = None) -> float:
        return load_rules(["low_gpu"], given)[0].limits.low_pct

    assert read() == 30
    monkeypatch.setenv("SONDE_ADVICE_LOW_GPU_LOW_PCT", "20")
    assert read() == 20
    assert read({"low_gpu.low_pct": "10"}) == 10


@pytest.mark.parametrize(
    ("rules", "limits", "said"),
    [(["nonsense"], {}, "there is no rule nonsense"), (None, {"nonsense.a": 1}, "no rule nonsense"),
     (None, {"low_gpu.nonsense": 1}, "low_gpu has no limit nonsense"),
     (None, {"low_gpu.low_pct": "much"}, "not understood")],
)  # fmt: skip
def test_a_wrong_name_or_number_is_refused(rules, limits, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_rules(rules, limits)


def test_every_rule_tells_what_why_and_what_to_do_and_what_its_limits_mean() -> None:
    for rule in load_rules():
        assert rule.title
        assert rule.why, rule.name
        assert rule.todo, rule.name
        assert all(limit.help for limit in rule.module.LIMITS.values())
        words = ("{inside}", "{to_end}", "{last_piece}")  # which time it is about
        assert any(word in rule.module.SQL for word in words), rule.name


# ---- the line of code ----------------------------------------------------------------------------

PROGRAM = """
import json, time
def spin(end):
    while time.monotonic() < end:
        sum(range(1000))
def rest(end):
    while time.monotonic() < end:
        time.sleep(0.05)
begin = time.monotonic()
json.dumps([])
spin(begin + 1.5)
rest(begin + 3)
"""


def test_the_line_that_ran_or_waited_is_named(root: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    subprocess.run([sys.executable, "-m", "sonde", "run", "--set", "collector=off", str(script)],
                   check=True, timeout=240)  # fmt: skip
    sql = "SELECT {piece} AS piece, COUNT(*) AS readings FROM python.stack_sample WHERE {inside} GROUP BY 1"
    rules = [make_rule(kind, sql=sql, LINE=kind) for kind in ("busy", "waiting")]
    others = make_rule(
        "others", sql=sql, LINE="busy", verdict=lambda row: Verdict(row.piece, True, is_own=False)
    )
    found = {one.rule: one.line for one in ask("all", *rules, others, piece_s=1).findings}
    assert f"{script}:5 in spin" in found["busy"]
    assert f"{script}:8 in rest" in found["waiting"]
    assert found["others"] == ""  # the job's code is not the cause


def test_a_rule_that_knows_the_line_itself_is_believed() -> None:
    rule = make_rule(verdict=lambda row: Verdict(row.piece, True, line="train.py:3 in load"))
    (finding,) = ask(record(20), rule).findings
    assert finding.line == "train.py:3 in load"


# ---- frozen recordings ---------------------------------------------------------------------------


def test_a_frozen_recording_stands_still_and_the_other_does_not() -> None:
    folder = sonde.start(**OFF)
    assert folder is not None
    machine = Machine()
    machine.write_reading()
    count = "SELECT COUNT(*) AS n FROM system.cpu"

    def read(recording: Recording) -> int:
        return recording.query(count)["n"][0].as_py()

    recording = open_recording(folder)
    with recording.freeze(count) as frozen:
        assert read(frozen) == 1
        machine.write_reading()
        assert read(frozen) == 1
        assert read(recording) == 2


def test_what_is_below_a_process_is_judged_with_it(run, root) -> None:
    run(
        "import os, sonde\nsonde.start(collector='off')\n"
        "if os.fork() == 0:\n"
        "    if os.fork() == 0: sonde.mark('here'); os._exit(0)\n"
        "    os.wait(); sonde.mark('here'); os._exit(0)\n"
        "os.wait()"
    )
    oldest = min(list_sessions(str(root)), key=lambda session: session.start_wall_ns)
    assert len(sonde.advise(oldest.folder).processes) == 3
