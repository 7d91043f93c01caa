"""A region that other tools are told of, beside the same by the tools' own calls."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import child
from bench_emit import time_calls
from result import Result, interleave

CALLS = 10_000
NATIVE = child.HERE.parent / "tests" / "native"
# What each needs, the library that listens, and the variable that names it.
TOOLS = {
    "itt": ("pyitt", "itt_collector", "INTEL_LIBITTNOTIFY64"),
    "nvtx": ("nvtx", "nvtx_injection", "NVTX_INJECTION64_PATH"),
    "torch": ("torch", None, None),
    "otel": ("opentelemetry.sdk", None, None),
}


def measure(rounds: int) -> list[Result]:
    """Microseconds for a begin and an end; ITT and NVTX have a listener that does nothing."""
    results = []
    with child.open_root() as root:
        for name, (package, library, variable) in TOOLS.items():
            if not is_installed(package):
                continue
            env = {} if library is None else {variable: build(library, root)}
            calls = {"sonde": partial(run, time_mirrored, name, root, env)}
            calls |= {way.__doc__: partial(run, way, name, root, env) for way in WAYS[name]}
            found = interleave(rounds, calls)
            own = found.pop("sonde")
            results.append(Result(f"span, recorded and told to {name}", "µs", own, peers=found))
        alone = interleave(rounds, {"": partial(run, time_mirrored, "off", root, {})})[""]
    results.append(Result("span, recorded alone", "µs", alone))
    return results


def is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def build(library: str, root: str) -> str:
    """A tool that listens; the one of the tests, which writes nothing down unless it is told to."""
    path = Path(root) / f"lib{library}.so"
    if not path.exists():
        command = [os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", "-o", str(path)]
        subprocess.run([*command, str(NATIVE / f"{library}.c"), "-ldl"], check=True)
    return str(path)


def run(way: Callable[[str], float], name: str, root: str, env: dict[str, str]) -> float:
    return float(json.loads(child.run(child.name_call(way, name), root, **env)))


# ---- sonde ------------------------------------------------------------------------------------


def time_mirrored(name: str) -> float:
    import sonde

    if name == "torch":
        import torch  # noqa: F401  # nobody is told before
    if name == "otel":
        open_provider()
    folder = sonde.start(collector=False, event_mirror=name, source_torch=False)
    span = sonde.span("step")
    cost = time_calls(partial(loop_pairs, span.start, span.stop), count_only, CALLS)
    check(folder, name)
    return cost


def check(folder: str, name: str) -> None:
    """The tool was told until the end."""
    from sonde.store.recording import open_recording

    rows = open_recording(folder).query("SELECT source, state FROM sonde.source").to_pylist()
    states = {row["source"]: row["state"] for row in rows}
    assert states.get(f"mirror.{name}") == (None if name == "off" else "on"), states


def loop_pairs(begin: Callable[[], object], end: Callable[[], object]) -> None:
    for _ in range(CALLS):
        begin()
        end()


def open_provider() -> None:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    trace.set_tracer_provider(TracerProvider())


def count_only() -> None:
    for _ in range(CALLS):
        pass


# ---- the tools themselves -----------------------------------------------------------------------


def time_itt(_name: str) -> float:
    """pyitt.native.task_begin, task_end"""
    from pyitt import native

    place, name = native.Domain("sonde"), native.StringHandle("step")
    return time_calls(
        partial(loop_pairs, partial(native.task_begin, place, name),
                partial(native.task_end, place)), count_only, CALLS)  # fmt: skip


def time_itt_task(_name: str) -> float:
    """pyitt.task, begin and end"""
    import pyitt

    task = pyitt.task("step")
    return time_calls(partial(loop_pairs, task.begin, task.end), count_only, CALLS)


def time_nvtx(_name: str) -> float:
    """nvtx Domain.push_range, pop_range"""
    import nvtx

    domain = nvtx.get_domain(None)
    push = partial(domain.push_range, domain.get_event_attributes(message="step"))
    return time_calls(partial(loop_pairs, push, domain.pop_range), count_only, CALLS)


def time_nvtx_annotate(_name: str) -> float:
    """nvtx.annotate"""
    import nvtx

    def loop() -> None:
        for _ in range(CALLS):
            with nvtx.annotate("step"):
                pass

    return time_calls(loop, count_only, CALLS)


def time_torch(_name: str) -> float:
    """torch.profiler.record_function, no profiler"""
    from torch.profiler import record_function

    def loop() -> None:
        for _ in range(CALLS):
            with record_function("step"):
                pass

    return time_calls(loop, count_only, CALLS)


def time_otel(_name: str) -> float:
    """OpenTelemetry start_as_current_span, no export"""
    from opentelemetry import trace

    open_provider()
    tracer = trace.get_tracer("sonde")

    def loop() -> None:
        for _ in range(CALLS):
            with tracer.start_as_current_span("step"):
                pass

    return time_calls(loop, count_only, CALLS)


WAYS = {
    "itt": (time_itt, time_itt_task), "nvtx": (time_nvtx, time_nvtx_annotate),
    "torch": (time_torch,), "otel": (time_otel,),
}  # fmt: skip
