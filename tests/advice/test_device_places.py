"""Places at which a program waits for its GPU, from the calls of CUDA's runtime."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pyarrow
import pytest

from sonde.advice.device_places import mark_device
from sonde.analysis.hot_places import HotPlace

PLACE = HotPlace("Meter.update", "/job/train.py", 7, "torch._C.TensorBase.cpu",
                 "tensors moved or converted", "working", 2.0, 50.0)  # fmt: skip
CALL = {"file": "/job/train.py", "lineno": 7, "func": "update", "kind": "synchronize",
        "direction": None, "time_s": 1.9}  # fmt: skip


def mark_all(calls: tuple[dict, ...], *places: HotPlace) -> list[HotPlace]:
    recording = SimpleNamespace(
        find_empty=lambda _names: set() if calls else {"python.cuda_call"},
        query=lambda _sql: pyarrow.Table.from_pylist(list(calls)),
    )
    return mark_device(recording, "TRUE", places)  # type: ignore[arg-type]


def mark(*calls: dict) -> HotPlace:
    (marked,) = mark_all(calls, PLACE)
    return marked


def test_a_line_whose_time_is_in_waits_for_the_gpu_says_so() -> None:
    marked = mark(CALL)
    assert (marked.state, marked.kind) == ("waiting", "waiting for the GPU")
    assert "seldom" in marked.instead


def test_copies_to_the_gpu_are_told_from_waits() -> None:
    copy = {**CALL, "kind": "copy", "direction": "host to device"}
    marked = mark(copy, {**CALL, "time_s": 0.1})
    assert marked.kind == "copying to the GPU" and "pinned" in marked.instead


@pytest.mark.parametrize(
    "change", [{"lineno": 8}, {"file": "/job/net.py"}, {"func": "fill"}, {"time_s": 0.5}]
)
def test_calls_elsewhere_and_short_ones_change_nothing(change: dict) -> None:
    assert mark({**CALL, **change}) == PLACE


def test_without_a_gpu_nothing_is_asked() -> None:
    assert mark() == PLACE


def test_what_was_waited_for_at_a_line_is_given_out_once() -> None:
    model = replace(PLACE, call="torch.Module.__call__", time_s=1.8)
    marked = mark_all((CALL,), model, PLACE)
    assert [one.state for one in marked] == ["working", "waiting"]
