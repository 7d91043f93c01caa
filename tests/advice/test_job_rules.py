"""Rules about the job itself, on recordings made by hand: each number is known, the SQL is real."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

import sonde
from sonde.advice.finding import Advice
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


def test_batches_that_are_not_pinned_are_told_when_moving_them_takes_long() -> None:
    (found,) = advise(
        record_loop({"host_to_device": 0.008}, torch_loader=once(LOADER)), "pinned_memory"
    ).findings
    assert found.evidence["moving_pct"] == pytest.approx(8)
    assert found.lost_pct == pytest.approx(8)


@pytest.mark.parametrize(
    ("parts", "loader"),
    [
        ({"host_to_device": 0.008}, [{**LOADER[0], "pin_memory": True}]),
        ({"host_to_device": 0.004}, LOADER),
    ],
    ids=["they are pinned", "moving them is quick"],
)
def test_nothing_is_said_of_pinning(parts: dict[str, float], loader: list[dict]) -> None:
    advice = advise(record_loop(parts, torch_loader=once(loader)), "pinned_memory")
    assert [outcome.state for outcome in advice.outcomes] == ["clear"]


def test_without_a_gpu_nothing_is_said_of_pinning_or_launches() -> None:
    folder = record(40, torch_step=steps(host_to_device=0.02), torch_loader=once(LOADER), gpu=None)
    advice = advise(folder, "pinned_memory", "launch_bound", "sync_points")
    assert {outcome.state for outcome in advice.outcomes} == {"abstained"}


@pytest.mark.parametrize(
    ("line", "is_told"),
    [
        ("total += loss.item()", True),
        ("losses.append(float(loss.detach().cpu()))", True),
        ("if (prediction.argmax(1) == target).sum().item() > best:", True),
        ("x = model(x).float()", False),
        ("loss = F.cross_entropy(model(x), target)", False),
        ("prediction = model(x).cpu()", False),
        ("torch.save(model.state_dict(), path)", False),
        ("for x, target in loader:", False),
    ],
)
def test_a_line_waits_for_the_gpu_only_if_all_that_it_calls_is_known(
    line: str, is_told: bool, tmp_path: Path
) -> None:
    from sonde.advice.rules import sync_points

    (program := tmp_path / "train.py").write_text(line)
    row = SimpleNamespace(file=str(program), lineno=1, leaf_func="train")
    assert sync_points._waits(row) == is_told
    assert sync_points.MOST == "warning"


def test_a_gpu_that_waits_for_launches_is_told() -> None:
    (found,) = advise(record_loop({}, gpu={"util_pct": 30.0}), "launch_bound").findings
    assert found.severity == "critical"
    assert found.evidence["host_in_model_pct"] == pytest.approx(95)
    assert found.evidence["gpu_util_pct"] == 30


@pytest.mark.parametrize(
    "changes",
    [
        {"gpu": {"util_pct": 95.0}},
        {"gpu": {"util_pct": 30.0}, "process": {"user_pct": 20.0}},
    ],
    ids=["the GPU is busy", "the host is not"],
)
def test_launches_are_not_blamed(changes: dict[str, object]) -> None:
    advice = advise(record_loop({}, **changes), "launch_bound")
    assert [outcome.state for outcome in advice.outcomes] == ["clear"]


# ---- the loop -----------------------------------------------------------------------------------

ADAM = {"optimizer": "Adam", "way": "single", "can_fuse": True, "tensors": 200, "device": "cuda:0"}


def test_an_optimizer_that_takes_its_parameters_one_by_one_is_told() -> None:
    folder = record(40, torch_step=steps(optimizer=0.02), torch_optimizer=once([ADAM]))
    (found,) = advise(folder, "optimizer_loop").findings
    assert found.evidence["optimizer_pct"] == pytest.approx(20)


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

    def waiting(t: float) -> list[dict]:
        rows = collectives(0.005)(t) if t < 20 else []
        hung = {"seq": rows[-1]["seq"] + 1, "state": "running"} if 19 <= t < 20 else None
        return [*rows, rows[-1] | hung] if hung else rows

    def ended(t: float) -> list[dict]:
        return collectives(0.005)(t) if t < 20 else []

    ranks = [{"collective": one, "stack_sample": sampled} for one in (waiting, ended)]
    record_ranks(monkeypatch, *ranks)
    (waiting,) = [one for one in list_sessions(os.environ["SONDE_DIR"]) if one.rank == 0]
    (found,) = advise(waiting.folder, "desync").findings
    assert found.title.startswith("Rank 1 has not called all_reduce, in which others have waited ")
    assert found.who == ["rank 1"] and found.sureness == "high"
    assert found.severity == "critical"
