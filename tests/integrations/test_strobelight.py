"""The drop-in for PyTorch's Strobelight profiler of functions."""

from __future__ import annotations

import json

import pytest

from support.needs import need

HEAD = """
import asyncio, inspect, json, os, time
from sonde.integrations.strobelight import StrobelightCLIFunctionProfiler as FunctionProfiler, strobelight
def burn(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end: pass
    return 42
"""


def test_a_function_is_profiled_and_returns_its_value(run) -> None:
    done = run(HEAD + """
profiler = FunctionProfiler(sample_tags={"load"}, recorded_env_variables=["HOME"], stack_max_len=9,
                            async_stack_max_len=9, run_user_name="ann", sample_each=3e6)
value = profiler.profile(burn, seconds=0.1)
import sonde
(about,) = sonde.open(os.getpid()).query("SELECT * FROM sonde.run").to_pylist()
print(json.dumps([value, profiler.current_run_id == about["run"], profiler.profile_result[0],
                  about["tags"], about["user_name"], list(json.loads(about["environment"]))]))
""", SONDE_COLLECTOR="off")  # fmt: skip
    value, is_same, first, *about = json.loads(done.stdout)
    assert (value, is_same, about) == (42, True, ["load", "ann", ["HOME"]])
    assert "samples in" in first


def test_work_that_raises_or_runs_inside_other_work_or_cannot_be_profiled_runs(
    run, tmp_path
) -> None:
    code = (
        HEAD
        + """
profiler = FunctionProfiler()
@strobelight(profiler)
def inner(): return 1
@strobelight(profiler)
def outer(): return inner() + 1
@strobelight()
async def wait():
    await asyncio.sleep(0.01)
    return 3
def fail(): raise ValueError("of the work")
print(outer(), asyncio.run(wait()), inspect.iscoroutinefunction(wait))
try: profiler.profile(fail)
except ValueError as error: print(error, profiler.profile_result is not None)
print(inner())
"""
    )
    done = run(code, SONDE_COLLECTOR="off")
    assert done.stdout.splitlines() == ["2 3 True", "of the work True", "1"]
    (tmp_path / "file").write_text("")
    done = run(code, SONDE_COLLECTOR="off", SONDE_DIR=str(tmp_path / "file"))
    assert done.stdout.splitlines() == ["2 3 True", "of the work False", "1"]
    # The warning names the program's own line, not one of ours.
    places = [line.split(":")[0] for line in done.stderr.splitlines() if "ProfileWarning" in line]
    assert places and "strobelight.py" not in " ".join(places), done.stderr


def test_torch_takes_it_as_the_class_that_profiles_compilations(run_torch) -> None:
    need("torch")
    done = run_torch("""
import torch
from torch._strobelight.compile_time_profiler import StrobelightCompileTimeProfiler as Compilations
from sonde.integrations.strobelight import FunctionProfiler
Compilations.enable(profiler_class=FunctionProfiler)
value = Compilations.profile_compile_time(sum, "phase", range(10))
print(value, Compilations.success_profile_count, Compilations.failed_profile_count)
""", SONDE_COLLECTOR="off")  # fmt: skip
    assert done.stdout.split() == ["45", "1", "0"]


@pytest.mark.parametrize("wrong", ["stack_length", "sample_rate"])
def test_an_option_that_the_original_lacks_is_an_error(wrong: str) -> None:
    from sonde.integrations.strobelight import FunctionProfiler

    with pytest.raises(TypeError):
        FunctionProfiler(**{wrong: 1})  # type: ignore[arg-type]
