"""Rules about the job itself, on recordings made by hand: each number is known, the SQL is real."""

from __future__ import annotations

import os
import random
from collections import namedtuple
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import duckdb
import pytest

import sonde
from sonde.advice.finding import Advice, Outcome, Tally
from sonde.advice.judge import _leave_out, choose_some, load_rules
from sonde.advice.places import _LOOPS as LOOPS
from sonde.advice.rules import loop_blocked, slow_rank, step_change
from sonde.advice.verdict import Limits, Verdict
from sonde.session.folder import list_sessions
from support.handmade_machine import NOTHING, OFF, Machine, record

MS = 10**6
STEP = {
    "dur_ns": 100 * MS, "input_wait_ns": 0, "host_to_device_ns": 0, "forward_ns": 40 * MS,
    "backward_ns": 50 * MS, "optimizer_ns": 5 * MS, "other_ns": 5 * MS, "ended_by": "optimizer", "modules": 50,
    "unrecorded": False,
    "training": True,
}  # fmt: skip
CUDA = [{"device": "cuda:0", "allocated_bytes": 40 * 10**9, "max_allocated_bytes": 40 * 10**9,
         "cached_bytes": 50 * 10**9}]  # fmt: skip
LOADER = [{"dataset": "shop.Images", "workers": 4, "pin_memory": False, "batch_size": 8,
           "persistent_workers": False, "drop_last": False}]  # fmt: skip


def steps(count: int = 10, **parts: float) -> Callable[[float], Sequence[dict]]:
    """So many steps a second, with these parts in seconds."""
    given = {f"{name}_ns": round(1e9 * value) for name, value in parts.items()}
    return lambda t: [{**STEP, "step": int(t) * count + at, **given} for at in range(count)]


def once(rows: Sequence[dict]) -> Callable[[float], Sequence[dict]]:
    return lambda t: rows if t < 2 else []


def advise(folder: str, *rules: str, **limits: float) -> Advice:
    given = {f"{rules[0]}.{name}": value for name, value in limits.items()}
    advice = sonde.advise(folder, rules=rules, limits=given)
    assert [one for one in advice.outcomes if one.state == "failed"] == []
    return advice


# ---- beside a GPU -------------------------------------------------------------------------------


def record_loop(parts: dict[str, float], **changes: object) -> str:
    return record(40, torch_step=steps(**parts), torch_memory=once(CUDA), **changes)


def call(ms: float, **more: object) -> Callable[[float], Sequence[dict]]:
    """Calls of CUDA of so many milliseconds each second, at one line of the program."""
    place = {"file": "/job/train.py", "lineno": 7, "func": "train", "thread": os.getpid()}
    return lambda _: [{"dur_ns": round(ms * MS), "calls": 10, **place, **more}]


WAIT = {"kind": "synchronize", "call": "cudaStreamSynchronize"}
COPY = {"kind": "copy", "call": "cudaMemcpyAsync", "direction": "host to device", "pinned": False,
        "bytes": 10**9}  # fmt: skip
FREE = {"kind": "free", "call": "cudaFree"}


def test_waits_for_a_gpu_that_is_not_busy_are_told_with_their_line() -> None:
    folder = record_loop({}, gpu={"util_pct": 60.0}, cuda_call=call(300, **WAIT))
    (found,) = advise(folder, "sync_points").findings
    assert found.severity == "critical" and found.line == "/job/train.py:7 in train"
    assert found.evidence["waiting_pct"] == pytest.approx(30)
    assert found.evidence["waits_a_step"] == pytest.approx(1)
    assert found.lost_pct == pytest.approx(30)


def test_waits_of_many_small_copies_are_told_as_such() -> None:
    waits, copies = call(200, **WAIT), call(100, **COPY)
    many = [{**copies(0)[0], "calls": 1000, "bytes": 10**6}]
    folder = record_loop(
        {}, gpu={"util_pct": 60.0},
        cuda_call=lambda t: [{**waits(t)[0], "calls": 1000}, *many],
    )  # fmt: skip
    (found,) = advise(folder, "sync_points").findings
    assert "many small copies" in found.title and "own wait" in found.why
    assert found.evidence["copies_a_step"] == pytest.approx(100)
    assert found.evidence["waiting_pct"] == pytest.approx(30)
    assert found.line == "/job/train.py:7 in train"
    # Pinned copies have no wait of their own: then it is the wait that counts.
    folder = record_loop(
        {}, gpu={"util_pct": 60.0}, cuda_call=lambda t: [*waits(t), *many]
    )  # fmt: skip
    (found,) = advise(folder, "sync_points").findings
    assert "synchronisation" in found.title


def test_copies_from_memory_that_is_not_pinned_are_told_with_their_line() -> None:
    folder = record_loop({}, gpu={"util_pct": 70.0}, cuda_call=call(150, **COPY))
    (found,) = advise(folder, "pinned_memory").findings
    assert found.severity == "warning" and found.line == "/job/train.py:7 in train"
    assert found.evidence["copying_pct"] == pytest.approx(15)
    assert found.evidence["copied_a_step_bytes"] == pytest.approx(1e8)


def test_memory_that_is_got_anew_all_the_time_is_told() -> None:
    folder = record_loop({}, cuda_call=call(250, **FREE))
    (found,) = advise(folder, "gpu_allocations").findings
    assert found.severity == "critical" and "given back" in found.title
    folder = record_loop({}, cuda_call=call(250, kind="allocate", call="cudaHostAlloc"))
    (found,) = advise(folder, "gpu_allocations").findings
    assert "pins memory" in found.title and "DataLoader" in found.todo
    # To get it again takes longer, at another line; but the program would not have to.
    again = call(200, kind="allocate", call="cudaMalloc", lineno=9)
    folder = record_loop({}, cuda_call=lambda t: [*call(50, **FREE)(t), *again(t)])
    (found,) = advise(folder, "gpu_allocations").findings
    assert found.line == "/job/train.py:7 in train"


@pytest.mark.parametrize(
    ("rule", "calls", "util_pct"),
    [
        ("sync_points", call(900, **WAIT), 95.0),
        ("sync_points", call(30, **WAIT), 60.0),
        ("sync_points", call(300, **COPY), 60.0),
        ("pinned_memory", call(300, **{**COPY, "pinned": True}), 60.0),
        ("pinned_memory", call(30, **COPY), 60.0),
        ("gpu_allocations", call(10, **FREE), 60.0),
    ],
    ids=["busy GPU", "short waits", "no wait", "pinned", "short copies", "rarely"],
)
def test_a_gpu_that_is_used_well_is_not_blamed(rule: str, calls: object, util_pct: float) -> None:
    advice = advise(record_loop({}, gpu={"util_pct": util_pct}, cuda_call=calls), rule)
    assert [outcome.state for outcome in advice.outcomes] == ["clear"]


def test_without_a_gpu_nothing_is_said_of_it() -> None:
    folder = record(40, torch_step=steps(host_to_device=0.02), torch_loader=once(LOADER), gpu=None)
    rules = ("pinned_memory", "launch_bound", "sync_points", "gpu_allocations", "float32_matmul")
    assert {outcome.state for outcome in advise(folder, *rules).outcomes} == {"abstained"}


EXACT = {"tf32_matmul": False, "tf32_convolution": True, "capability": 9.0}


@pytest.mark.parametrize(
    ("precision", "kind", "severity"),
    [
        (EXACT, "Linear", "warning"),
        ({**EXACT, "tf32_matmul": True}, "Linear", None),
        ({**EXACT, "autocast": "bfloat16"}, "Linear", None),
        ({**EXACT, "capability": 7.0}, "Linear", None),
        (EXACT, "Embedding", None),
    ],
)
def test_matrices_in_full_float32_are_told(
    precision: dict, kind: str, severity: str | None
) -> None:
    module = {"type": kind, "module": "Net.0", "dtype": "float32", "device": "cuda:0"}
    spans = [{"module": "Net", "depth": 0, "device_duration": 0.9, "stage": "forward"},
             {"module": "Net.0", "depth": 1, "device_duration": 0.8, "stage": "forward"}]  # fmt: skip
    folder = record_loop(
        {}, torch_precision=once([precision]), torch_trace=lambda _: spans,
        torch_module=once([module, {**module, "module": "Net", "type": "Net"}]),
    )  # fmt: skip
    found = advise(folder, "float32_matmul").findings
    assert [one.severity for one in found] == ([severity] if severity else [])


def test_a_gpu_that_waits_for_launches_is_told() -> None:
    (found,) = advise(record_loop({}, gpu={"util_pct": 30.0}), "launch_bound").findings
    assert found.severity == "critical"
    assert found.evidence["host_in_model_pct"] == pytest.approx(95)
    assert found.evidence["gpu_util_pct"] == 30


@pytest.mark.parametrize(("launches", "is_other"), [(300, True), (100_000, False), (100, False)])
def test_a_host_that_does_more_than_launch_is_told_so(launches: int, is_other: bool) -> None:
    calls = [{"kind": "launch", "call": "cudaLaunchKernel", "calls": launches}]
    folder = record_loop({}, gpu={"util_pct": 30.0}, cuda_call=lambda _: calls)
    (found,) = advise(folder, "launch_bound").findings
    assert ("work that the host does" in found.title) is is_other


def hold(more_bytes: float, more_blocks: float) -> Callable[[float], Sequence[dict]]:
    return lambda t: [
        {**CUDA[0], "step": round(10 * t) + at, "blocks": 1000 + round(more_blocks * t),
         "allocated_bytes": 4 * 10**9 + round(more_bytes * t)} for at in range(10)
    ]  # fmt: skip


def test_what_grows_on_a_gpu_is_told_from_what_is_kept_and_by_whom() -> None:
    here = {"device": "cuda:0", "file": "/job/train.py", "func": "keep"}

    def look(t: float) -> Sequence[dict]:
        if t not in (20, 21):
            return []
        alive = 10**8 if t == 20 else 3 * 10**8
        return [{**here, "lineno": 7, "alive_bytes": alive, "alive_blocks": 10, "step": int(t)},
                {**here, "lineno": 9, "alive_bytes": 10**9, "alive_blocks": 1, "step": int(t)}]  # fmt: skip

    memory = hold(1e7, 5)
    folder = record(40, torch_step=steps(), torch_memory=memory, cuda_memory=look)
    (found,) = advise(folder, "gpu_memory_creep").findings
    assert found.severity == "warning" and found.line == "/job/train.py:7 in keep"
    assert found.evidence["more_blocks"] > 100
    once_looked = {"torch_memory": memory, "cuda_memory": lambda t: look(t) if t == 20 else []}
    (found,) = advise(record(40, torch_step=steps(), **once_looked), "gpu_memory_creep").findings
    assert not found.line  # what was there before is no growth

    def stay(t: float) -> Sequence[dict]:
        return [{**row, "step": int(t)} for row in look(20)] if t in (20, 21) else []

    folder = record(40, torch_step=steps(), torch_memory=hold(0, 0), cuda_memory=stay)
    assert advise(folder, "gpu_memory_creep").findings == []
    folder = record(40, torch_step=steps(), torch_memory=hold(1e7, 0))
    (found,) = advise(folder, "gpu_memory_creep").findings
    assert found.severity == "info" and "larger and larger" in found.title and not found.line


@pytest.mark.parametrize(("retries", "severity"), [(1, "info"), (4, "warning")])
def test_memory_that_was_given_back_once_is_only_mentioned(retries: int, severity: str) -> None:
    memory = [{**CUDA[0], "ooms": 0}]
    folder = record(40, torch_step=steps(), torch_memory=lambda t: [
        {**memory[0], "retries": retries if t >= 20 else 0}])  # fmt: skip
    (found,) = advise(folder, "gpu_memory_pressure").findings
    assert found.severity == severity


def test_a_gpu_that_is_done_with_each_module_at_once_waits_though_it_calls_itself_busy() -> None:
    spans = [{"module": "Net", "device_duration": 0.09, "stage": "forward", "device_timed": False}]
    folder = record_loop({}, torch_trace=lambda _: spans)
    (found,) = advise(folder, "launch_bound").findings
    assert found.severity == "warning" and found.evidence["gpu_kept_up_pct"] == 100


@pytest.mark.parametrize(
    "changes",
    [
        {"gpu": {"util_pct": 95.0}},
        {"gpu": {"util_pct": 30.0}, "process": {"user_pct": 20.0}},
        {"gpu": {"util_pct": 30.0}, "count": 2},
    ],
    ids=["the GPU is busy", "the host is not", "most of the time is outside of steps"],
)
def test_launches_are_not_blamed(changes: dict[str, object]) -> None:
    advice = advise(record_loop({"count": changes.pop("count", 10)}, **changes), "launch_bound")
    assert [outcome.state for outcome in advice.outcomes] == ["clear"]


def test_aids_for_finding_faults_that_are_left_on_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def turn(**now: bool) -> Callable[[float], Sequence[dict]]:
        return once([{"anomaly": False, "profiler": False, "launch_blocking": False, **now}])

    (found,) = advise(record_loop({}, torch_debug=turn(anomaly=True)), "debug_mode").findings
    assert "anomaly mode" in found.title and found.severity == "warning"
    assert "set_detect_anomaly" in found.todo and found.evidence == {"left_on": "anomaly"}
    gpu = {"util_pct": 30.0}  # launches are slow because of it
    both = advise(
        record_loop({}, torch_debug=turn(anomaly=True), gpu=gpu), "debug_mode", "launch_bound"
    )
    assert [one.rule for one in both.findings] == ["debug_mode"]
    for calm in (turn(), lambda t: turn(profiler=int(t) % 4 == 0)(0)):
        assert advise(record_loop({}, torch_debug=calm), "debug_mode").findings == []
    (found,) = advise(
        record_loop({}, torch_debug=turn(launch_blocking=True)), "debug_mode"
    ).findings
    assert "CUDA_LAUNCH_BLOCKING" in found.title
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    (found,) = advise(record(40), "debug_mode").findings
    assert found.evidence == {"left_on": "TORCH_DISTRIBUTED_DEBUG=DETAIL"}
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "OFF")
    assert advise(record(40), "debug_mode").findings == []


# ---- the loop -----------------------------------------------------------------------------------

ADAM = {"optimizer": "Adam", "way": "single", "can_fuse": True, "tensors": 200, "device": "cuda:0"}


def test_an_optimizer_that_takes_its_parameters_one_by_one_is_told() -> None:
    folder = record(40, torch_step=steps(optimizer=0.02), torch_optimizer=once([ADAM]))
    (found,) = advise(folder, "optimizer_loop").findings
    assert found.evidence["optimizer_pct"] == pytest.approx(20)


@pytest.mark.parametrize(
    ("examples", "optimizer_s", "told"), [(1, 0.05, True), (256, 0.05, False), (1, 0.01, False)]
)
def test_small_batches_are_mentioned_where_the_optimizer_takes_much_of_a_step(
    examples: int, optimizer_s: float, told: bool
) -> None:
    loader = {"loader": 0, "dataset": "Table", "workers": 0, "batch_size": examples,
              "pin_memory": False, "prefetch_factor": None, "persistent_workers": False,
              "drop_last": False, "context": None}  # fmt: skip
    folder = record(40, torch_step=steps(optimizer=optimizer_s), torch_loader=once([loader]))
    found = advise(folder, "small_batches").findings
    assert [one.severity for one in found] == ["info"] * told


def test_on_a_processor_that_is_what_every_optimizer_does_and_only_mentioned() -> None:
    adam = ADAM | {"device": "cpu"}
    found = advise(
        record(40, torch_step=steps(optimizer=0.04), torch_optimizer=once([adam])), "optimizer_loop"
    ).findings
    assert [one.severity for one in found] == ["info"]
    folder = record(40, torch_step=steps(optimizer=0.02), torch_optimizer=once([adam]))
    assert advise(folder, "optimizer_loop").findings == []


@pytest.mark.parametrize("facts", [{"way": "fused"}, {"way": "foreach"}, {"tensors": 3}])
def test_other_optimizers_are_not(facts: dict[str, object]) -> None:
    folder = record(40, torch_step=steps(optimizer=0.02), torch_optimizer=once([ADAM | facts]))
    assert advise(folder, "optimizer_loop").findings == []


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"direct_pct": 0.5, "low_pct": 6.0, "overhead_pct": 8.0}, True),
        ({"direct_pct": 7.0}, True),
        ({"direct_pct": 0.5, "low_pct": 1.0, "overhead_pct": 6.0}, False),
    ],
    ids=["by comparison", "by its own measure", "perhaps"],
)
def test_our_own_cost_is_told_when_it_is_sure(row: dict[str, float], told: bool) -> None:
    sonde.start(**OFF)
    folder = sonde.open("all").sessions[0].folder
    machine = Machine()
    machine.run(40, torch_step=steps(), **NOTHING)
    _write_overhead(machine, row)
    sonde.stop()
    assert bool(advise(folder, "own_overhead").findings) == told


def _write_overhead(machine: Machine, row: dict[str, float]) -> None:
    from sonde.tables.overhead import Overhead

    values = {"t_ns": machine.now_ns, "step": 10**6, "source": "torch", "budget_pct": 1.0,
              "level": 0, "plan": "all", "compared_steps": 40, "overhead_pct": None,
              "low_pct": None, "high_pct": None, **row}  # fmt: skip
    order = list(Overhead.__annotations__)
    machine._watched.write(Overhead, tuple(values[name] for name in order))


@pytest.mark.parametrize(("every", "told"), [(15, True), (1, False)])
def test_outliers_must_be_regular(every: int, told: bool) -> None:
    def loop(t: float) -> Sequence[dict]:
        rows = steps()(t)
        slow = [row for row in rows if _is_slow(row["step"], every)]
        return [row | {"dur_ns": 600 * MS} if row in slow else row for row in rows]

    found = advise(record(60, torch_step=loop, **NOTHING), "periodic_outliers").findings
    assert bool(found) == told
    if told:
        assert found[0].title == "Every 15 steps, one takes far longer"


OUTLIERS = {
    "queue_s": 0.0,
    "piece": 0, "host": "one", "pid": 1, "rank": None, "steps": 100, "step_s": 20.0, "lost_s": 9.0,
    "usual_s": 0.1, "outlier_ns": 3e9, "outliers": [7, 20, 51, 90],
    "excesses_s": [3.0, 2.0, 2.0, 2.0], "explained_pct": 80.0, "file": "job.py", "lineno": 3,
    "func": "save_best", "util_pct": 20.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, True),
        ({"explained_pct": 50.0}, False),
        ({"explained_pct": None}, False),
        ({"lost_s": 1.5}, False),
        ({"util_pct": 97.0}, False),
        # From some moment on, most steps are long: they have become slower.
        ({"outliers": [60, 61, 62, 64, 65, 66], "excesses_s": [1.5] * 6}, False),
        ({"outliers": [7, 90, 91, 92], "excesses_s": [2.0] * 4}, False),  # only twice
        ({"outliers": [7, 20], "excesses_s": [5.0, 4.0]}, False),
        ({"queue_s": 60.0}, False),
    ],
    ids=[
        "all",
        "other code",
        "no samples",
        "little lost",
        "the GPU is busy",
        "slower from a moment on",
        "twice, several steps long",
        "two only",
        "others have the processors",
    ],
)
def test_outliers_that_come_irregularly_must_run_code_of_their_own(
    changes: dict, told: bool
) -> None:
    (rule,) = load_rules(["periodic_outliers"])
    row = SimpleNamespace(**OUTLIERS | changes)
    (verdict,) = rule.module.judge([row], rule.limits)
    assert verdict.fired is told
    if told:
        assert verdict.title.startswith("Now and then") and "save_best" in verdict.line


@pytest.mark.parametrize(
    ("changes", "most"),
    [
        ({"outliers": [20, 40, 60, 80]}, "critical"),
        ({"outliers": [20, 40, 60, 80], "explained_pct": None}, "warning"),
        ({}, "warning"),
    ],
)
def test_long_steps_are_critical_only_if_they_recur_and_are_explained(
    changes: dict, most: str
) -> None:
    (rule,) = load_rules(["periodic_outliers"])
    (verdict,) = rule.module.judge([SimpleNamespace(**OUTLIERS | changes)], rule.limits)
    assert verdict.fired and verdict.most == most
    assert Tally([verdict], danger=False).severity == most


def judge_travel(*, travels_idle: bool, queue_pct: float = 5.0, busy_pct: float = 99.0) -> Verdict:
    """Return what is said of two ranks, 100 steps of 100 ms; the last 40 ms of each are a collective. In one case the loop
    sleeps in it, in the other it sleeps before, for data, and works in it."""
    (rule,) = load_rules(["comm_bound"])
    idle_at = "number % 10 >= 6" if travels_idle else "number % 10 < 6"
    with duckdb.connect() as connection:
        connection.execute(f"""
            CREATE SCHEMA python;
            CREATE TABLE cpu_now AS
              SELECT make_timestamptz(0) AS ts, 'one' AS host, {busy_pct} AS busy_pct, 2 AS cores;
            CREATE TABLE cgroup_now(ts TIMESTAMPTZ, host TEXT, allowed_cores INT);
            CREATE TABLE process_now AS
              SELECT make_timestamptz(0) AS ts, 'one' AS host, rank AS process,
                     {queue_pct} AS run_wait_pct FROM range(2) AS ranks(rank);
            CREATE TABLE python.torch_step AS
              SELECT make_timestamptz(0) AS ts, 'one' AS host, rank AS pid, rank, number AS step,
                     number * 100000000 AS t_ns, 100000000 AS dur_ns, 'optimizer' AS ended_by
              FROM range(100) AS steps(number), range(2) AS ranks(rank);
            CREATE TABLE python.collective AS
              SELECT * EXCLUDE (t_ns, dur_ns, ended_by), t_ns + 60000000 AS t_ns,
                     40000000 AS dur_ns, NULL::BIGINT AS device_dur_ns, 'completed' AS state
              FROM python.torch_step;
            CREATE TABLE python.stack_sample AS
              SELECT make_timestamptz(0) AS ts, 'one' AS host, rank AS pid, rank, rank AS thread,
                     number * 10000000 + 5000000 AS t_ns, 10000000 AS wall_ns, {idle_at} AS idle
              FROM range(1000) AS samples(number), range(2) AS ranks(rank)
        """)
        words = {"piece": "0", "inside": "TRUE", "main_step": "TRUE"}
        sql = rule.module.SQL  # DuckDB has a `system` of its own
        for table in ("cpu", "cgroup", "process"):
            sql = sql.replace(f"system.{table}", f"{table}_now")
        found = connection.execute(sql.format(**words, **rule.limits))
        make = namedtuple("Found", [column[0] for column in found.description])
        (verdict,) = rule.module.judge([make(*row) for row in found.fetchall()], rule.limits)
    assert verdict.evidence["travelling_pct"] == pytest.approx(40)
    return verdict


@pytest.mark.parametrize(("travels_idle", "is_told"), [(True, True), (False, False)])
def test_only_sleep_in_collectives_is_lost_to_them(travels_idle: bool, is_told: bool) -> None:
    verdict = judge_travel(travels_idle=travels_idle)
    assert verdict.fired == is_told
    assert verdict.lost_pct == pytest.approx(40 if is_told else 0)


@pytest.mark.parametrize(
    ("queue_pct", "busy_pct", "severity"),
    [(85.0, 99.0, "info"), (5.0, 99.0, "critical"), (85.0, 30.0, "critical")],
    ids=["processors are short", "ranks get them", "processors are free"],
)
def test_ranks_that_lack_processors_are_not_accused_of_communicating(
    queue_pct: float, busy_pct: float, severity: str
) -> None:
    verdict = judge_travel(travels_idle=True, queue_pct=queue_pct, busy_pct=busy_pct)
    assert verdict.fired
    assert Tally([verdict], danger=False).severity == severity
    assert ("processors" in verdict.title) == (severity == "info")


def test_steps_that_are_longer_from_a_moment_on_are_not_called_outliers_as_well() -> None:
    rules = load_rules(["periodic_outliers", "step_change"])
    votes = [Verdict(piece, True, lost_pct=15.0, most="warning") for piece in range(5)]
    outcomes = [Outcome(rule.name, "found", "in 5 of 5 pieces") for rule in rules]
    kept = _leave_out([(rule, Tally(votes, danger=False)) for rule in rules], outcomes)
    assert [rule.name for rule, _tally in kept] == ["step_change"]
    assert "left to step_change" in outcomes[0].detail


@pytest.mark.parametrize(("file", "is_told"), [("dataloader.py", False), ("saving.py", True)])
def test_workers_that_start_for_each_epoch_are_no_outliers(file: str, is_told: bool) -> None:
    """100 steps of 20 ms; every tenth takes 400 ms, in a library's code."""
    (rule,) = load_rules(["periodic_outliers"])
    with duckdb.connect() as connection:
        connection.execute(f"""
            CREATE SCHEMA python;
            CREATE TABLE gpu_now(host TEXT, util_pct DOUBLE);
            CREATE TABLE python.gc_pause(host TEXT, pid INT, t_ns BIGINT, dur_ns BIGINT);
            CREATE TABLE python.cuda_call(host TEXT, pid INT, thread INT, step INT, dur_ns BIGINT,
                                          kind TEXT, direction TEXT);
            CREATE TABLE python.torch_step AS
              SELECT 'one' AS host, 7 AS pid, NULL::INT AS rank, number AS step,
                     number * 1000000000 AS t_ns, 0 AS input_wait_ns, 'optimizer' AS ended_by,
                     CASE WHEN number % 10 = 9 THEN 400000000 ELSE 20000000 END AS dur_ns
              FROM range(100) AS steps(number);
            CREATE TABLE python.stack_sample AS
              SELECT host, pid, pid AS thread, t_ns + 1000000 AS t_ns, FALSE AS idle,
                     CASE WHEN step % 10 = 9 THEN 2 ELSE 1 END AS stack, dur_ns AS wall_ns,
                     dur_ns AS cpu_ns FROM python.torch_step;
            CREATE TABLE python.frame(stack INT, depth INT, func TEXT, file TEXT, lineno INT);
            INSERT INTO python.frame VALUES (1, 0, 'train', '/job/train.py', 5),
              (2, 1, 'train', '/job/train.py', 4),
              (2, 0, 'start', '/v/site-packages/torch/utils/data/{file}', 9)
        """)
        words = {"piece": "0", "inside": "TRUE", "main_step": "TRUE", "job_gpu": "TRUE"}
        sql = rule.module.SQL.replace("system.gpu", "gpu_now")  # DuckDB has a `system` of its own
        found = connection.execute(sql.format(**words, **rule.limits))
        make = namedtuple("Found", [column[0] for column in found.description])
        (verdict,) = rule.module.judge([make(*row) for row in found.fetchall()], rule.limits)
    assert verdict.fired == is_told


def test_steps_that_are_a_little_late_do_not_hide_the_rhythm_of_long_ones() -> None:
    def loop(t: float) -> Sequence[dict]:
        rows = []
        for row in steps()(t):
            late = row["step"] % 30 == 0 or _is_slow(row["step"], 1)
            long_ns = 1500 * MS if row["step"] % 30 == 0 else 250 * MS
            rows.append(row | {"dur_ns": long_ns} if late else row)
        return rows

    (found,) = advise(record(60, torch_step=loop, **NOTHING), "periodic_outliers").findings
    assert found.title == "Every 30 steps, one takes far longer"


def test_evaluation_between_steps_of_training_is_no_outlier() -> None:
    def loop(t: float) -> Sequence[dict]:
        return [row | {"dur_ns": 600 * MS, "training": False} if row["step"] % 15 == 0 else row
                for row in steps()(t)]  # fmt: skip

    assert not advise(record(60, torch_step=loop, **NOTHING), "periodic_outliers").findings


def _is_slow(step: int, every: int) -> bool:
    """One in 15, or as often without any rhythm."""
    return step % 15 == 0 if every == 15 else step * 2654435761 % 2**32 < 2**32 / 15


# ---- event loops --------------------------------------------------------------------------------


def holds(ms: int, **more: object) -> Callable[[float], list[dict]]:
    """One callback a second that keeps the loop so long."""
    row = {"dur_ns": ms * MS, "held_ns": ms * MS, "thread": 1, "callback": "handle", "stack": 1,
           "samples": 12, "cpu_ns": 0, "wait": "network"}  # fmt: skip
    return lambda _t: [row | more]


def run_loop(held: Callable[[float], list[dict]], callbacks: int = 500) -> list:
    loop = {"thread": 1, "wall_ns": 1000 * MS, "idle_ns": 100 * MS, "callbacks": callbacks,
            "held_ns": 0, "longest_ns": 0}  # fmt: skip
    return advise(record(40, event_loop=[loop], loop_hold=held, **NOTHING), "loop_blocked").findings


def test_a_loop_beside_the_main_thread_that_runs_nothing_is_no_place_of_the_time() -> None:
    def add_up(callbacks: int, thread: int) -> int | None:
        loop = {"thread": thread, "wall_ns": 1000 * MS, "idle_ns": 1000 * MS, "held_ns": 0,
                "callbacks": callbacks, "longest_ns": 0}  # fmt: skip
        recording = sonde.open(record(4, event_loop=[loop], **NOTHING))
        return recording.query(LOOPS.format(inside="TRUE")).to_pylist()[0]["idle_ns"]

    assert add_up(0, thread=1) is None
    assert add_up(5, thread=1) and add_up(0, thread=os.getpid())


def test_a_blocked_loop_is_told_with_its_callback_and_what_it_does() -> None:
    (found,) = run_loop(holds(240))
    assert found.title.startswith("The event loop is blocked: handle waits for the network")
    assert found.severity == "critical"
    assert found.evidence["max_longest_ns"] == 240 * MS
    (found,) = run_loop(holds(140, wait=None, cpu_ns=130 * MS))
    assert "handle computes" in found.title and found.severity == "warning"


def test_hours_in_which_nobody_asks_a_server_do_not_outvote_those_in_which_it_was_blocked() -> None:
    limits = Limits({name: limit.default for name, limit in loop_blocked.LIMITS.items()})
    loop = {"pid": 7, "wall_ns": 1e10, "idle_ns": 1e9, "callbacks": 500, "own_ns": 8e9, "times": 9,
            "samples": 800, "longest_ns": 9e8, "longest_kept_ns": 9e8, "kept_ns": 8e9,
            "most": {"func": "price", "callback": None, "kind": "cpu", "file": "a.py", "lineno": 3},
            }  # fmt: skip
    resting = {**loop, "idle_ns": 9.99e9, "callbacks": 2, "own_ns": None}
    rows = [SimpleNamespace(piece=at, **(loop if at < 3 else resting)) for at in range(60)]
    assert [one.fired for one in loop_blocked.judge(rows, limits)] == [True] * 3
    assert [one.fired for one in loop_blocked.judge(rows[3:], limits)] == [False] * 57


def test_many_short_waits_without_await_block_a_loop_as_one_long_one_does() -> None:
    def held(t: float) -> list[dict]:  # each began at another time
        return [{**holds(20)(t)[0], "held_ns": (20 + n) * MS} for n in range(20)]

    (found,) = run_loop(held)
    assert "handle waits for the network" in found.title and found.evidence["blocked_pct"] > 30
    assert not run_loop(lambda t: [{**row, "wait": None, "cpu_ns": 20 * MS} for row in held(t)])


def test_on_a_crowded_machine_a_callback_blocks_the_loop_for_as_long_as_it_keeps_it() -> None:
    def held(t: float) -> list[dict]:  # 12 callbacks a second, each with 30 of 60 ms of CPU
        row = holds(60, wait=None, cpu_ns=30 * MS)(t)[0]
        return [{**row, "held_ns": (60 + n) * MS} for n in range(12)]

    (found,) = run_loop(held)
    assert "handle computes" in found.title and found.evidence["max_longest_ns"] == 60 * MS
    assert found.evidence["blocked_pct"] > 60
    assert 30 < found.evidence["waiting_for_processor_pct"] < 40
    assert not run_loop(lambda t: [{**row, "cpu_ns": 10 * MS} for row in held(t)])


def test_in_a_crowd_that_leaves_hardly_any_processor_a_blocked_loop_is_mentioned() -> None:
    def held(t: float) -> list[dict]:  # three callbacks a second, each with 24 of 300 ms of CPU
        row = holds(300, wait=None, cpu_ns=24 * MS)(t)[0]
        return [{**row, "held_ns": (300 + n) * MS} for n in range(3)]

    (found,) = run_loop(held)
    assert "handle computes" in found.title and found.severity == "info"
    assert not run_loop(lambda t: held(t)[:1])


@pytest.mark.parametrize(
    ("held", "callbacks"),
    [
        (holds(30), 500),
        (holds(240), 3),
        (holds(240, wait="gil"), 500),
        (holds(240, wait=None, cpu_ns=40 * MS), 500),
    ],
    ids=["short", "nobody waits", "the GIL is another's", "others have the processor"],
)
def test_a_loop_that_is_not_to_blame(held: Callable[[float], list[dict]], callbacks: int) -> None:
    assert not run_loop(held, callbacks)


@pytest.mark.parametrize(("file", "count"), [("/v/ipykernel/kernelbase.py", 0), ("/job/a.py", 1)])
def test_the_loop_of_a_notebook_is_left_out_also_where_frames_are_not_known_yet(
    file: str, count: int
) -> None:
    connection = duckdb.connect()
    connection.execute(f"""
    CREATE SCHEMA python;
    CREATE TABLE python.frame AS
      SELECT 1 AS stack, 0 AS depth, 'run' AS func, '{file}' AS file, 7 AS lineno;
    CREATE TABLE python.loop_hold AS
      SELECT 'h' AS host, 5 AS pid, 5 AS thread, 0 AS t_ns, 9e8 AS dur_ns, 9e8 AS held_ns,
             'Kernel.shell_main' AS callback, unnest([1, 2]) AS stack, 9 AS samples, NULL::VARCHAR AS wait,
             9e8 AS cpu_ns;
    CREATE TABLE python.event_loop AS
      SELECT 'h' AS host, 5 AS pid, 5 AS thread, 1e9 AS wall_ns, 0 AS idle_ns,
             50 AS callbacks""")
    limits = {name: limit.default for name, limit in loop_blocked.LIMITS.items()}
    rows = connection.execute(loop_blocked.SQL.format(piece=0, inside="TRUE", **limits)).fetchall()
    assert len(rows) == 1 and (rows[0][5] is not None) == bool(count)


# ---- ranks --------------------------------------------------------------------------------------


def record_ranks(monkeypatch, *ranks: dict[str, object], seconds: float = 40) -> str:
    """One session for each rank, with these changes."""
    for rank, changes in enumerate(ranks):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(len(ranks)))
        record(seconds, **{**NOTHING, **changes})
    return os.environ["SONDE_DIR"]


def collectives(wait_s: float, count: int = 10, **more: object) -> Callable[[float], list[dict]]:
    return lambda t: [
        {"dur_ns": round(1e9 * wait_s), "op": "all_reduce", "backend": "gloo", "group_name": "0",
         "group_ranks": "0,1", "seq": int(t) * count + at + 1, "state": "ended",
         "step": int(t) * count + at, **more}
        for at in range(count)
    ]  # fmt: skip


def test_the_rank_that_waits_least_is_the_slow_one(monkeypatch) -> None:
    slow = {"torch_step": steps(1, input_wait=0.03), "collective": collectives(0.005, 1)}
    fast = {"torch_step": steps(1), "collective": collectives(0.035, 1)}
    (found,) = advise(record_ranks(monkeypatch, fast, slow), "slow_rank").findings
    assert found.who == ["rank 1"]
    assert found.title.endswith("it waits for data for longer")
    assert found.evidence["waiting_of_others_pct"] == pytest.approx(30)


def test_a_slow_rank_says_what_it_does_differently() -> None:
    (rule,) = load_rules(["slow_rank"])
    place = {"file": "/job/data.py", "lineno": 7, "func": "read"}

    def rank(number: int, wait_s: float, queue_s: float = 0.0, **lines: float) -> SimpleNamespace:
        parts = dict.fromkeys(
            ("backward", "input_wait", "host_to_device", "forward", "optimizer", "other"), 0.0
        )
        seen = [
            {**place, "lineno": at, "kind": kind.strip("_") or None, "call": "io.read", "s": s / 10}
            for at, (kind, s) in enumerate(lines.items())
        ]
        return SimpleNamespace(
            piece=0, rank=number, host="node1", pid=9, steps=10, step_s=0.1, wait_s=wait_s,
            queue_s=queue_s, lines=seen, **parts,
        )  # fmt: skip

    def judge(*ranks: SimpleNamespace) -> Verdict:
        slow = min(ranks, key=lambda one: one.wait_s)
        for at, line in enumerate(slow.lines):
            line["usual_s"] = ranks[0].lines[at]["s"] if ranks[0].lines else 0.0
        (found,) = rule.module.judge(ranks, rule.limits)
        return found

    waits = judge(rank(0, 0.05, disk=0.1), rank(1, 0.0, disk=0.6))
    assert waits.title.endswith("it waits for a disk in read (io.read)")
    assert waits.line == "/job/data.py:0 in read"
    assert waits.evidence["longer_there_ns"] == pytest.approx(50e6) and "tree 9" in waits.todo
    works = judge(rank(0, 0.05, _=0.1), rank(1, 0.0, _=0.6))
    assert works.title.endswith("it works longer in read (io.read)")
    starved = judge(rank(0, 0.05, 0.01), rank(1, 0.0, 0.5, _=0.1))
    assert starved.title.endswith("it waits for a processor") and "node1" in starved.todo
    machine = judge(rank(0, 0.05, _=0.2, __=0.3, ___=0.2), rank(1, 0.0, _=0.4, __=0.6, ___=0.4))
    assert machine.title.endswith("it takes longer for everything")
    assert machine.evidence["times_as_long"] == pytest.approx(2)
    alike = judge(rank(0, 0.05, _=0.1), rank(1, 0.0, _=0.2))
    assert alike.line == "" and alike.todo == ""
    ranks = [rank(number, 0.05 if number < 4 else 0.001 * (number - 4)) for number in range(6)]
    for one in ranks:
        one.host = f"node{one.rank // 2}"
    host = judge(*ranks)
    assert host.who == "host node2" and "wait for its ranks 4-5" in host.title


def test_only_the_slowest_rank_has_lines_with_the_median_of_the_others_at_each() -> None:
    connection = duckdb.connect()
    connection.execute("""
    CREATE SCHEMA python;
    CREATE TABLE python.frame AS
      SELECT line AS stack, 0 AS depth, 'read' AS func, '/job/data.py' AS file, line AS lineno
      FROM UNNEST([7, 8, 9]) AS every(line);
    CREATE TABLE python.torch_step AS
      SELECT 'h' AS host, rank AS pid, rank, step, 1e9 AS dur_ns, 0 AS input_wait_ns, 0 AS
             host_to_device_ns, 0 AS forward_ns, 0 AS backward_ns, 0 AS optimizer_ns, 0 AS other_ns,
             '' AS ended_by
      FROM range(4) AS ranks(rank), range(2) AS steps(step);
    CREATE TABLE python.collective AS
      SELECT rank, pid, step, (10 * step * 1e9)::BIGINT AS t_ns, (3 - rank) * 1e8 AS dur_ns,
             NULL::BIGINT AS device_dur_ns, 'ended' AS state FROM python.torch_step;
    CREATE TABLE python.stack_sample AS
      SELECT 'h' AS host, rank AS pid, rank AS thread, rank, stack, FALSE AS idle, NULL::VARCHAR AS
             wait, NULL::VARCHAR AS call, s * 1e9 AS wall_ns, 1 AS cpu_ns, 0 AS queue_ns
      FROM (VALUES (3, 7, 6), (0, 7, 1), (3, 8, 3), (0, 8, 2), (1, 8, 1), (2, 8, 4), (1, 9, 5))
           AS seen(rank, stack, s)""")
    filled = slow_rank.SQL.format(piece=0, inside="TRUE", main_step="TRUE")
    rows = connection.sql(filled).to_arrow_table().to_pylist()
    lines = {row["rank"]: row["lines"] for row in rows}
    assert {rank for rank, found in lines.items() if found} == {3}
    seen = {line["lineno"]: (line["s"], line["usual_s"]) for line in lines[3]}
    assert seen == {7: (3, 0), 8: (1.5, 1)}  # of two steps each; where a rank is not, it has 0


def test_ranks_without_a_recording_are_named() -> None:
    (rule,) = load_rules(["missing_rank"])
    seen = [SimpleNamespace(piece=0, job="train", size=size, ranks=[0, 1, 3]) for size in (4, 9)]
    one, many = rule.module.judge(seen, rule.limits)
    assert (one.fired, one.title) == (True, "Rank 2 of the job: no recording")
    assert one.who == ""  # the title has named it: it would follow in brackets once more
    assert many.title == "Ranks 2, 4-8 of the job: no recording"
    whole = SimpleNamespace(piece=0, job="train", size=2, ranks=[0, 1])
    assert [found.fired for found in rule.module.judge([whole], rule.limits)] == [False]


def test_of_a_large_job_some_processes_are_looked_at_one_by_one() -> None:
    sessions = [SimpleNamespace(rank=rank, host="node", pid=rank) for rank in range(1000)]
    some = choose_some(sessions)
    assert len(some) == 32 and some[0].rank == 0 and some[-1].rank > 900
    assert choose_some(sessions[:32]) == sessions[:32]
    (slow, gc) = load_rules(["slow_rank", "gc_pauses"])
    assert slow.is_wide and not gc.is_wide


def test_even_ranks_are_not_told(monkeypatch) -> None:
    even = {"torch_step": steps(1), "collective": collectives(0.005, 1)}
    assert advise(record_ranks(monkeypatch, even, even), "slow_rank").findings == []


def sampled(_t: float) -> list[dict]:
    return [{"thread": os.getpid(), "stack": 1, "samples": 100, "wall_ns": 1000 * MS, "gil": False,
             "idle": True}]  # fmt: skip


def test_ranks_in_different_collectives_are_told(monkeypatch) -> None:
    def other(t: float) -> list[dict]:
        rows = collectives(0.005)(t)
        return [row | {"op": "broadcast"} if row["seq"] == 155 else row for row in rows]

    ranks = [{"collective": one, "stack_sample": sampled} for one in (collectives(0.005), other)]
    (found,) = advise(record_ranks(monkeypatch, *ranks), "desync").findings
    assert found.title == "Ranks call different collectives: all_reduce, broadcast"
    assert found.evidence["seq"] == 155


def test_a_rank_that_has_not_come_is_named(monkeypatch) -> None:
    monkeypatch.setenv("SONDE_JOB", "night")

    def ended(t: float) -> list[dict]:
        return collectives(0.005, group_ranks="0,1,2")(t) if t < 20 else []

    def waiting(t: float, **more: object) -> list[dict]:
        rows = ended(t)
        hung = {"seq": rows[-1]["seq"] + 1, "state": "running", **more} if 19 <= t < 20 else None
        return [*rows, rows[-1] | hung] if hung else rows

    def unnamed(t: float) -> list[dict]:
        return waiting(t, group_ranks=None)

    ranks = [{"collective": one, "stack_sample": sampled} for one in (waiting, ended, unnamed)]
    record_ranks(monkeypatch, *ranks)
    (waiting,) = [one for one in list_sessions(os.environ["SONDE_DIR"]) if one.rank == 0]
    (found,) = advise(waiting.folder, "desync").findings
    assert found.title.startswith("Rank 1 has not called all_reduce, in which others have waited ")
    assert found.who == ["rank 1"] and found.sureness == "high"
    assert found.severity == "critical"


def test_a_loop_that_waits_for_its_gpu_now_and_then_has_no_outliers() -> None:
    def loop(t: float) -> list[dict]:
        first = int(t) * 10
        return [{**STEP, "step": first + at, "dur_ns": (400 if at == 0 else 20) * MS}
                for at in range(10)]  # fmt: skip

    def wait(t: float) -> list[dict]:
        return [
            {**WAIT, "dur_ns": 380 * MS, "calls": 1, "thread": os.getpid(), "step": int(t) * 10}
        ]

    given = {"torch_step": loop, "torch_memory": once(CUDA), "gpu": {"util_pct": 80.0}}
    (found,) = advise(record(60, **given), "periodic_outliers").findings
    assert found.evidence["period_steps"] == 10 and found.lost_pct == pytest.approx(20)
    assert not advise(record(60, cuda_call=wait, **given), "periodic_outliers").findings
    given["gpu"] = {"util_pct": 99.0}  # it is behind, wherever the host waits for that
    assert not advise(record(60, **given), "periodic_outliers").findings


def test_a_hook_that_takes_more_and_more_is_called_one() -> None:
    def make_part(hook_s: float) -> SimpleNamespace:
        line = {"file": "/job/watch.py", "lineno": 5, "func": "note", "kind": None, "s": hook_s,
                "call": "torch._C.TensorBase.abs", "is_hook": True}  # fmt: skip
        other = {**line, "lineno": 9, "func": "train", "s": 1.0, "is_hook": False, "call": None}
        return SimpleNamespace(steps=10, lines=[line, other])

    limits = Limits({"explained_pct": 50.0})
    what, line = step_change.explain([make_part(1)], [make_part(9)], 0.8, limits)
    assert what == "works longer in note (torch.Tensor.abs), a hook of a module"
    assert line == "/job/watch.py:5 in note"


def test_growth_that_is_spread_over_the_lines_of_one_function_is_named() -> None:
    def make_part(*lines_s: float) -> SimpleNamespace:
        line = {"file": "/job/metric.py", "func": "update", "kind": None, "call": None}
        lines = [{**line, "lineno": 5 + at, "s": s} for at, s in enumerate(lines_s)]
        return SimpleNamespace(
            steps=10, lines=[*lines, {**line, "lineno": 9, "func": "train", "s": 5.0}]
        )

    limits = Limits({"explained_pct": 50.0})
    what, line = step_change.explain([make_part(1, 1, 1)], [make_part(4, 5, 4)], 1.0, limits)
    assert (what, line) == ("works longer in update", "/job/metric.py:6 in update")
    assert step_change.explain([make_part(1, 1, 1)], [make_part(2, 2, 2)], 1.0, limits) == ("", "")
    # One line has most of it, and the one beside it has grown as much for its size.
    what, line = step_change.explain([make_part(10, 6)], [make_part(53, 34)], 6.5, limits)
    assert (what, line) == ("works longer in update", "/job/metric.py:5 in update")


# ---- a change at one moment ----------------------------------------------------------------------


def test_a_change_at_one_moment_is_found_with_its_time() -> None:
    def slower(t: float) -> list[dict]:
        length = 180 * MS if t >= 60 else 100 * MS
        return [{**STEP, "step": int(t) * 4 + at, "dur_ns": length} for at in range(4)]

    (found,) = advise(record(120, torch_step=slower), "step_change").findings
    assert found.title.startswith("Since ") and "1.8 times as long" in found.title
    assert found.evidence["step_before_ns"] == pytest.approx(100 * MS)
    assert found.severity == "info" and found.fired < found.judged  # no line is known
    noise = random.Random(1)

    def uneven(t: float) -> list[dict]:
        return [{**STEP, "step": int(t), "dur_ns": round(noise.uniform(80, 160) * MS)}]

    assert advise(record(120, torch_step=uneven), "step_change").findings == []
    quicker = {"torch_step": lambda t: slower(120 - t)}
    assert advise(record(120, **quicker), "step_change").findings == []


def test_a_change_says_what_takes_longer_since_then() -> None:
    (rule,) = load_rules(["step_change"])
    line = {"file": "/job/a.py", "lineno": 3, "func": "track", "call": None}
    names = "piece part host pid rank steps step_s forward_s backward_s begin_us own_s lines"
    Part = namedtuple("Part", names)

    def part(at: int, step_s: float, own_s: float, kind: str | None, s: float, rest: float) -> Part:
        lines = [{**line, "kind": kind, "s": s}, {**line, "lineno": 9, "kind": None, "s": rest}]
        return Part(at // 10, at, "h", 9, None, 10, step_s, 0.0, 0.0, 10**12 + at, own_s, lines)

    def judge(kind: str | None, own_s: float, s: float, rest: float = 0.9) -> Verdict:
        old = [part(at, 0.1, 1.0, kind, 0.1, 0.9) for at in range(20)]
        new = [part(at, 0.2, own_s, kind, s, rest) for at in range(20, 40)]
        return list(rule.module.judge([*old, *new], rule.limits))[-1]

    works = judge(None, 2.0, 1.1)
    assert works.title.endswith("the program works longer in track since then")
    assert works.line == "/job/a.py:3 in track" and works.lost_pct == pytest.approx(50)
    assert "waits for the network in track" in judge("network", 2.0, 1.1).title
    assert not judge(None, 1.0, 0.1).fired  # others have the processors
    everything = judge(None, 3.0, 0.3, rest=2.7)
    assert everything.fired and (everything.line, everything.lost_pct) == ("", None)
    assert judge(None, 2.0, 0.1).line == ""


def test_steps_that_grow_say_what_grows() -> None:
    def grow(**rates: float) -> Callable[[float], Sequence[dict]]:
        """Steps of which these parts grow by so many milliseconds a second."""

        def loop(t: float) -> list[dict]:
            more = {f"{name}_ns": round(STEP[f"{name}_ns"] + rate * MS * t)
                    for name, rate in rates.items()}  # fmt: skip
            added = sum(more[name] - STEP[name] for name in more)
            length = {"dur_ns": STEP["dur_ns"] + added}
            return [{**STEP, "step": int(t) * 4 + at, **more, **length} for at in range(4)]

        return loop

    (back,) = advise(record(60, torch_step=grow(backward=3)), "slower_steps").findings
    assert "backward pass" in back.title and back.severity == "warning"
    assert back.evidence["times_as_long"] > 1.5
    (both,) = advise(record(60, torch_step=grow(forward=1.5, backward=2)), "slower_steps").findings
    assert "backward" not in both.title and both.severity == "info"
    assert advise(record(60, torch_step=grow(backward=0.1)), "slower_steps").findings == []
    assert advise(record(60, torch_step=grow(backward=-0.7)), "slower_steps").findings == []


def test_a_model_of_float64_is_only_mentioned() -> None:
    def layer(kind: str) -> Callable[[float], Sequence[dict]]:
        one = {"module": "net", "type": "Linear", "parameters": 100, "own_parameters": 100}
        return once([{**one, "dtype": kind, "device": "cpu"}])

    wide = record(30, torch_step=steps(), torch_module=layer("float64"))
    (found,) = advise(wide, "float64_model").findings
    assert found.severity == "info" and found.evidence["float64_values_pct"] == 100
    narrow = record(30, torch_step=steps(), torch_module=layer("float32"))
    assert advise(narrow, "float64_model").findings == []


@pytest.mark.parametrize(
    ("threads", "device", "severity"),
    [(24, "cpu", "warning"), (4, "cpu", "info"), (2, "cpu", None), (24, "cuda:0", None)],
)
def test_more_threads_than_processors_are_told(
    threads: int, device: str, severity: str | None
) -> None:
    layer = {"module": "fc", "type": "Linear", "parameters": 10, "own_parameters": 10}
    layer |= {"dtype": "float32", "device": device, "parent": None}
    used = {"threads": threads, "interop_threads": 1, "allowed_cores": 2}
    folder = record(30, torch_step=steps(), torch_module=once([layer]), torch_threads=once([used]))
    found = advise(folder, "many_threads").findings
    assert [one.severity for one in found] == ([severity] if severity else [])
