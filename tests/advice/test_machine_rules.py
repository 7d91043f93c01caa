"""Each rule: it fires on a machine with its cause planted, alone; and on none that is healthy."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from types import SimpleNamespace

import pytest

import sonde
from sonde import plugins
from sonde.advice.finding import Advice
from sonde.advice.judge import load_rules, read_verdicts
from sonde.advice.period import find_period
from sonde.advice.verdict import Verdict
from sonde.store.held import HeldRecording
from sonde.store.recording import open_recording
from support.handmade_machine import GB, NOTHING, OFF, PROCESS, Change, Machine, record
from support.places import GOLDEN

ROUNDS = 2  # `make stress` takes more
HARDWARE = (
    "alternating", "cpu_limit", "cpu_starved", "fragmentation", "gpu_errors", "gpu_free", "gpu_memory_creep",
    "gpu_memory_full", "gpu_memory_pressure", "gpu_memory_uneven", "gpu_throttle", "gpu_uneven",
    "gpu_util_lies", "handles_creep", "host_memory", "io_pressure", "low_gpu", "memory_creep", "pcie_link",
    "room_to_grow", "swap",
)  # fmt: skip


def swing(high: float, low: float, period_s: float, shift_s: float = 0) -> Callable[[float], float]:
    return lambda t: high if (t + shift_s) % period_s < period_s / 2 else low


def _by_turns(name: str, value: Callable[[float], float]) -> Callable[[float], dict]:
    return lambda t: {name: value(t)}


def _hold(**values: float) -> list[dict]:
    return [{"step": 1, "device": "cuda:0", "allocated_bytes": 20 * GB, "max_allocated_bytes": 40 * GB,
             "cached_bytes": 45 * GB, "inactive_split_bytes": 10**8, "retries": 0, "ooms": 0, **values}]  # fmt: skip


def _leak(t: float) -> list[dict]:
    return [{**PROCESS, "rss_bytes": round(4 * GB + 10e6 * t)}]


def _copy_on_write(t: float) -> list[dict]:
    worker = {"depth": 1, "pss_bytes": round(GB + 5e6 * t), "rss_bytes": 5 * GB}
    return [PROCESS, worker, worker]


PLANTED: dict[str, dict[str, Change]] = {
    "alternating": {"cpu": _by_turns("busy_pct", swing(80, 5, 4)),
                    "gpu": _by_turns("util_pct", swing(90, 2, 4, 2))},
    "cpu_limit": {"cgroup": {"throttled_pct": 60.0}},
    "cpu_starved": {"cpu": {"busy_pct": 99.0, "cores": 4},
                    "process": {"run_wait_pct": 500.0, "user_pct": 380.0}},
    "fragmentation": {"torch_memory": lambda _t: _hold(cached_bytes=70 * GB, inactive_split_bytes=30 * GB)},
    "gpu_errors": {"gpu": lambda t: {"ecc_uncorrected": int(t == 33)}},
    "gpu_free": {"gpu": {"util_pct": 75.0, "memory_used_bytes": 20 * GB}},
    "gpu_memory_creep": {"torch_memory": lambda t: _hold(allocated_bytes=round(20 * GB + 2e7 * t))},
    "gpu_memory_full": {"gpu": {"util_pct": 75.0, "memory_used_bytes": 76 * GB}},
    "gpu_memory_pressure": {"torch_memory": lambda t: _hold(retries=int(t // 7))},
    "gpu_memory_uneven": {"gpu": [{"memory_used_bytes": 76 * GB}, {"memory_used_bytes": 40 * GB}]},
    "gpu_throttle": {"gpu": lambda t: {"throttle": "hw_thermal" if t % 20 < 5 else None,
                                       "sm_clock_mhz": 900 if t % 20 < 5 else 1900}},
    "gpu_uneven": {"gpu": [{"util_pct": 95.0}, {"util_pct": 50.0}]},
    "gpu_util_lies": {"gpu": {"power_w": 200.0}},
    "handles_creep": {"process": lambda t: [{**PROCESS, "fds": round(100 + 3 * t)}]},
    "host_memory": {"memory": {"used_bytes": 250 * GB, "available_bytes": 6 * GB}},
    "io_pressure": {"pressure": [{"resource": "io", "scope": "cgroup", "some_pct": 60.0,
                                  "full_pct": 50.0}], "disk": {"busy_pct": 99.0}},
    "low_gpu": {"gpu": {"util_pct": 12.0}},
    "memory_creep": {"process": _leak},
    "pcie_link": {"gpu": {"pcie_width": 8}},
    "room_to_grow": {"gpu": {"util_pct": 40.0, "memory_used_bytes": 10 * GB},
                     "cpu": {"busy_pct": 10.0, "max_core_pct": 40.0}},
    "swap": {"memory": {"swap_in_bytes": 20 * 10**6}},
}  # fmt: skip
# A symptom of the same cause that a user wants to read beside it.
BESIDE = {"room_to_grow": {"low_gpu"}}


def judge(folder: str, *rules: str, **options: object) -> Advice:
    """What these rules say; all, if none is named."""
    advice = sonde.advise(folder, rules=rules or HARDWARE, **options)  # type: ignore[arg-type]
    assert [o for o in advice.outcomes if o.state == "failed"] == []
    return advice


def find(advice: Advice) -> set[str]:
    return {finding.rule for finding in advice.findings}


def test_every_rule_here_has_a_planted_cause() -> None:
    assert set(PLANTED) == set(HARDWARE) <= set(plugins.list_names("advice.rules"))


@pytest.mark.parametrize("rule", HARDWARE)
def test_a_rule_fires_on_its_cause_and_no_other_rule_does(rule: str) -> None:
    advice = judge(record(120, **PLANTED[rule]))
    assert find(advice) == {rule} | BESIDE.get(rule, set())
    finding = next(finding for finding in advice.findings if finding.rule == rule)
    assert finding.evidence
    assert finding.why
    assert finding.todo


def test_a_process_that_ends_has_grown_although_its_last_reading_is_small() -> None:
    def leak(t: float) -> list[dict]:
        size = round(4 * GB + 50e6 * t) if t < 20 else GB
        return [{**PROCESS, "rss_bytes": size, "fds": round(size / 10**7)}]

    rules = ("memory_creep", "handles_creep")
    found = judge(record(20, process=leak), *rules, limits={"handles_creep.least_pct": 1})
    assert find(found) == set(rules)


@pytest.mark.parametrize(
    ("process", "told"),
    [
        (lambda t: {"threads": round(20 + t)}, "threads"),
        (lambda t: {"threads": round(20 + t), "fds": round(100 + 3 * t)}, "threads"),
        (lambda t: {"fds": 100 + 300 * (t > 60)}, None),  # more at once, and no more since then
        (lambda t: {"fds": round(5000 + 3 * t)}, None),  # a small part of what it has open
        (lambda t: {"fds": round(100 + t / 10)}, None),
    ],
)
def test_what_grows_all_the_time_is_told_and_what_has_grown_is_not(
    process: Callable[[float], dict], told: str | None
) -> None:
    advice = judge(record(120, process=lambda t: [{**PROCESS, **process(t)}]), "handles_creep")
    assert [told in one.title for one in advice.findings] == [True] * (told is not None)


def test_a_healthy_machine_gets_no_advice() -> None:
    advice = judge(record(120, gpu=[{}, {"util_pct": 93.0}], torch_memory=lambda _t: _hold()))
    assert find(advice) == set()
    assert {outcome.state for outcome in advice.outcomes} == {"clear"}


@pytest.mark.parametrize(
    ("own", "expected"),
    (({"read_bytes": 0, "written_bytes": 0}, set()),
     ({"read_bytes": 10**6, "written_bytes": 0}, set()),
     ({"read_bytes": 60 * 10**6, "written_bytes": 0}, {"io_pressure"}),
     ({"read_bytes": 0, "written_bytes": 0, "state": "D"}, {"io_pressure"}),
     ({"read_bytes": None, "written_bytes": None}, {"io_pressure"})),
)  # fmt: skip
def test_a_disk_that_others_are_busy_with_is_not_the_jobs(own: dict, expected: set[str]) -> None:
    planted = PLANTED["io_pressure"]
    disk = {"busy_pct": 99.0, "read_bytes": 80 * 10**6, "written_bytes": 0}
    folder = record(60, **{**planted, "disk": disk}, process={"state": "R", **own})
    advice = judge(folder, "io_pressure")
    assert find(advice) == expected


def test_rules_abstain_without_their_tables_and_say_so() -> None:
    advice = judge(record(30, **{**NOTHING, "network": {"interface": "eth0"}}))
    for outcome in advice.outcomes:
        assert outcome.state == "abstained", outcome
        assert outcome.detail.endswith("has no rows"), outcome


def test_unknown_is_not_zero() -> None:
    unknown = dict.fromkeys(("util_pct", "memory_used_bytes", "power_w", "sm_clock_mhz",
                             "pcie_width", "ecc_uncorrected"))  # fmt: skip
    advice = judge(record(60, gpu=[unknown, unknown], cpu={"busy_pct": 0.0},
                          memory={"swap_in_bytes": None}, cgroup={"throttled_pct": None},
                          pressure=None, process=None))  # fmt: skip
    states = {outcome.rule: outcome.state for outcome in advice.outcomes}
    assert states.pop("host_memory") == "clear"
    assert set(states.values()) == {"abstained"}, states


def test_a_rule_says_why_it_abstains_though_the_data_is_there() -> None:
    advice = judge(record(60, gpu={"util_pct": 0.0, "memory_used_bytes": 10**6}))
    details = {outcome.rule: outcome.detail for outcome in advice.outcomes}
    assert details["low_gpu"] == "the job uses no GPU"
    assert details["gpu_uneven"] == "the job uses fewer than two GPUs"


def _shake(seed: int) -> dict[str, Change]:
    """A healthy machine whose numbers are anything that is healthy."""
    chance = random.Random(seed)

    def gpu(_t: float) -> list[dict]:
        return [{"util_pct": min(100.0, max(86.0, chance.gauss(95, 4))),
                 "memory_used_bytes": round(chance.uniform(58, 62) * GB),
                 "power_w": chance.uniform(400, 700), "temperature_c": chance.randint(40, 80),
                 "throttle": chance.choice((None, None, "sw_power_cap")),
                 "sm_clock_mhz": chance.randint(1750, 1980)} for _ in range(2)]  # fmt: skip

    return {
        "gpu": gpu,
        "cpu": lambda _t: {"busy_pct": chance.uniform(5, 95), "max_core_pct": chance.uniform(50, 100)},
        "memory": lambda _t: {"used_bytes": round(chance.uniform(20, 230) * GB),
                              "swap_in_bytes": chance.choice((0, 0, 4096))},
        "process": lambda _t: {"rss_bytes": round(chance.uniform(3, 5) * GB)},
        "disk": lambda _t: {"busy_pct": chance.uniform(0, 100)},
        "cgroup": lambda _t: {"memory_bytes": round(chance.uniform(5, 63) * GB),
                              "throttled_pct": chance.uniform(0, 8)},
        "torch_memory": lambda _t: _hold(allocated_bytes=round(chance.uniform(15, 35) * GB)),
    }  # fmt: skip


def test_no_rule_fires_on_healthy_noise() -> None:
    for seed in range(2 * ROUNDS):
        assert find(judge(record(120, **_shake(seed)))) == set(), seed


# ---- single rules --------------------------------------------------------------------------------


def test_the_cpu_that_swings_on_its_own_does_not_alternate_with_the_gpu() -> None:
    for seed in range(ROUNDS):
        chance = random.Random(seed)
        shift = chance.uniform(0, 5)
        folder = record(
            300, cpu=lambda _t, chance=chance: {"busy_pct": chance.uniform(0, 100)},
            gpu=_by_turns("util_pct", swing(90, 5, 5, shift)),
        )  # fmt: skip
        assert "alternating" not in find(judge(folder, "alternating"))


def test_two_rhythms_that_drift_do_not_alternate() -> None:
    folder = record(300, cpu=_by_turns("busy_pct", swing(90, 5, 4.7)),
                    gpu=_by_turns("util_pct", swing(90, 5, 4)))  # fmt: skip
    assert "alternating" not in find(judge(folder, "alternating"))


def test_growing_workers_are_told_apart_from_a_growing_program() -> None:
    (finding,) = judge(record(120, process=_copy_on_write)).findings
    assert finding.rule == "memory_creep"
    assert "worker" in finding.title
    assert "NumPy" in finding.todo
    assert finding.who[0].startswith("workers of pid")


def test_growth_of_half_a_minute_is_mentioned() -> None:
    grows = {"process": lambda t: {"rss_bytes": round(GB + 1e6 * t * 20)}}
    (finding,) = judge(record(30, **grows), "memory_creep").findings
    assert finding.severity == "info"  # it may be how the program starts
    (finding,) = judge(record(90, **grows), "memory_creep").findings
    assert finding.severity == "critical"


def test_a_program_that_fills_up_at_its_start_is_not_told_to_grow() -> None:
    grows = {"process": lambda t: {"rss_bytes": round(GB / 4 + 1e6 * t)}}
    assert not judge(record(40, **grows), "memory_creep").findings
    (finding,) = judge(record(90, **grows), "memory_creep").findings
    assert finding.severity == "info"


def test_growth_names_its_line_or_how_to_find_it() -> None:
    (rule,) = load_rules(["memory_creep"])
    line = {"file": "/job/app.py", "lineno": 7, "func": "parse", "type": "str", "grown_bytes": 4e8}

    def judge_growth(most: object, heap_bytes: float | None) -> Verdict:
        rows = [
            SimpleNamespace(piece=at, last_piece=at, part=at + 1, host="h", pid=9, own=True,
                            process=9, begin_s=10.0 * at, end_s=10.0 * at + 9, readings=5,
                            most=most, bytes=1e9 + 1e8 * at, heap_bytes=heap_bytes, look_bytes=7e8)
            for at in range(8)
        ]  # fmt: skip
        return next(iter(rule.module.judge(rows, rule.limits)))

    named = judge_growth(line, 5e8)
    assert named.fired and named.line == "/job/app.py:7 in parse"
    assert named.title.endswith("parse allocates what stays, as str objects")
    outside = judge_growth({**line, "grown_bytes": 1e6}, 2e6)
    assert outside.line == "" and "outside of the heap that sonde sees" in outside.title
    spread = judge_growth({**line, "grown_bytes": 1e8}, 6e8)
    assert spread.line == "" and spread.title.endswith("keeps growing, at many lines")
    assert "sonde config 9 source.heap=on" in judge_growth(None, None).todo


def test_threads_that_others_keep_from_running_are_not_the_jobs_doing() -> None:
    busy = {"cpu": {"busy_pct": 100.0, "cores": 2}}
    others = record(60, **busy, process={"run_wait_pct": 480.0, "user_pct": 6.0, "system_pct": 1.0})
    (finding,) = judge(others, "cpu_starved").findings
    assert (finding.severity, finding.title.split()[0]) == ("info", "Other")
    own = record(60, **busy, process={"run_wait_pct": 480.0, "user_pct": 80.0, "system_pct": 1.0})
    assert judge(own, "cpu_starved").findings[0].severity == "warning"


def test_pressure_without_full_memory_is_not_a_lack_of_memory() -> None:
    waits = [{"resource": "memory", "scope": "cgroup", "some_pct": 6.0, "full_pct": 4.0}]
    assert judge(record(60, pressure=waits), "host_memory").findings == []
    tight = {"used_bytes": 200 * GB, "available_bytes": 56 * GB}
    (found,) = judge(record(60, pressure=waits, memory=tight), "host_memory").findings
    assert found.severity == "warning"


def test_copies_of_files_do_not_fill_a_container() -> None:
    advice = judge(record(60, cgroup={"memory_bytes": 64 * GB}))
    assert find(advice) == set()


def test_a_container_near_its_limit_is_told_though_the_machine_has_room() -> None:
    (finding,) = judge(record(60, cgroup={"memory_bytes": 64 * GB},
                              process={"rss_bytes": 63 * GB})).findings  # fmt: skip
    assert finding.rule == "host_memory"
    assert finding.severity == "critical"
    assert finding.evidence["max_container_pct"] == pytest.approx(98.4, abs=0.1)


def test_a_killed_process_is_critical() -> None:
    advice = judge(record(60, cgroup=lambda t: {"oom_kills": int(t == 20)}))
    (finding,) = advice.findings
    assert (finding.rule, finding.severity, finding.fired) == ("host_memory", "critical", 1)


def test_processors_that_others_use_are_not_the_jobs_fault() -> None:
    busy = {"busy_pct": 99.0, "cores": 4}
    (found,) = judge(record(60, cpu=busy, process={"run_wait_pct": 90.0}), "cpu_starved").findings
    assert (found.severity, "Other programs" in found.title) == ("info", True)
    assert found.evidence["waiting_for_processor_pct"] == pytest.approx(50)


def test_a_power_cap_at_full_clock_is_no_finding() -> None:
    assert find(judge(record(60, gpu={"throttle": "sw_power_cap"}))) == set()


def test_a_gpu_that_works_as_hard_as_its_power_limit_lets_it_is_healthy() -> None:
    capped = {"throttle": "sw_power_cap", "sm_clock_mhz": 1400}
    assert find(judge(record(60, gpu=capped))) == set()


def test_an_idle_gpu_with_a_slow_link_is_left_alone() -> None:
    advice = judge(record(60, gpu={"util_pct": 5.0, "pcie_gen": 1}), "pcie_link")
    assert "pcie_link" not in find(advice)


def test_gpus_of_others_are_not_judged() -> None:
    idle = {"util_pct": 3.0, "memory_used_bytes": 70 * GB}
    advice = judge(record(60, gpu=[{}, idle], gpu_process={"gpu": 0, "process": 7,
                                                           "memory_bytes": GB}))  # fmt: skip
    assert find(advice) == set()


def test_a_job_that_uses_no_gpu_is_not_blamed_for_it() -> None:
    advice = judge(record(60, gpu={"util_pct": 0.0, "memory_used_bytes": 10**6}))
    assert find(advice) == set()
    # Someone else's job is on the GPU.
    others = {"gpu": {"util_pct": 5.0, "memory_used_bytes": 70 * GB},
              "gpu_process": {"gpu": 0, "process": None, "memory_bytes": 70 * GB}}  # fmt: skip
    assert find(judge(record(60, **others))) == set()
    assert find(judge(record(60, **others, torch_memory=lambda _t: _hold(device="cpu")))) == set()
    assert (
        find(judge(record(60, **others, torch_memory=lambda _t: _hold(device="cuda:0")))) != set()
    )


def test_a_job_that_has_begun_cuda_and_steps_on_the_processor_uses_no_gpu() -> None:
    # torch.compile makes a context, in which nothing is kept.
    idle = {"util_pct": 3.0, "memory_used_bytes": 70 * GB}
    given = {"gpu": idle, "gpu_process": {"gpu": 0, "process": 7, "memory_bytes": GB // 2}}
    steps = {"torch_step": lambda t: {"step": int(t), "dur_ns": 10**9}}
    on_gpu = {"torch_memory": lambda _t: _hold(device="cuda:0")}

    def list_rules(**tables: Callable[[float], object]) -> set[str]:
        return {one.rule for one in judge(record(60, **given, **tables)).findings}

    # An allocator that is not torch's says nothing of its memory.
    launching = {"cuda_call": lambda _t: {"kind": "launch", "calls": 100}}
    assert "low_gpu" in list_rules(**steps, **on_gpu)
    assert "low_gpu" in list_rules(**steps, **launching)
    assert not list_rules(**steps) & {"low_gpu", "gpu_shared", "gpu_free"}


def test_the_originals_thresholds_and_gpu_0_alone_give_its_votes() -> None:
    windows = json.loads((GOLDEN / "pai_votes.json").read_text())
    for_each = [w for w in windows if w["samples"] == 80]
    folder = _record_golden(for_each)
    names = ("gpu_memory_uneven", "gpu_free", "gpu_memory_full", "alternating")
    recording = HeldRecording(open_recording(folder).sessions)
    period = find_period(recording, "+0s", None, 10)
    for pattern, rule in enumerate(load_rules(names, {f"{name}.compat": 1 for name in names})):
        verdicts = read_verdicts(recording, rule, period)
        fired = {verdict.piece: int(verdict.fired) for verdict in verdicts}
        assert [fired[at] for at in range(len(for_each))] == [w["votes"][pattern] for w in for_each]


def _record_golden(windows: list[dict]) -> str:
    """The windows as the collector would have recorded them, one after the other."""
    folder = sonde.start(**OFF)
    assert folder is not None
    machine = Machine(0.125)
    for window in windows:
        for at in range(80):
            gpus = [{"util_pct": float(_pick(gpu["util"], at)),
                     "memory_used_bytes": round(_pick(gpu["used"], at) * 2**30),
                     "memory_total_bytes": gpu["total"] * 2**30} for gpu in window["gpu"]]  # fmt: skip
            cpu = {"busy_pct": float(_pick(window["cpu"], at))}
            machine.write_reading(**{**NOTHING, "cpu": cpu, "gpu": gpus})
        machine.drain()
    sonde.stop()
    return folder


def _pick(values: object, at: int) -> float:
    return values[at] if isinstance(values, list) else values  # type: ignore[return-value]


def test_limits_move_a_verdict() -> None:
    folder = record(60, gpu={"util_pct": 75.0, "memory_used_bytes": 20 * GB})
    assert find(judge(folder)) == {"gpu_free"}
    assert find(judge(folder, "gpu_free", limits={"gpu_free.util_pct": 70})) == set()


def test_all_gpus_are_judged_not_the_first_alone() -> None:
    busy, free = ({"util_pct": util, "memory_used_bytes": 20 * GB} for util in (95.0, 78.0))
    folder = record(60, gpu=[busy, free, free, free])
    assert find(judge(folder)) == {"gpu_free"}
    assert find(judge(folder, "gpu_free", limits={"gpu_free.compat": 1})) == set()
