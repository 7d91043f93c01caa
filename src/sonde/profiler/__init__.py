"""A drop-in replacement for `mxnet.profiler`, built on sonde's recording.

    from sonde import profiler
    profiler.set_config(filename="profile.json", aggregate_stats=True)
    profiler.set_state("run")
    with profiler.Task(profiler.Domain("job"), "load"): ...
    print(profiler.dumps()); profiler.dump()

See docs/profiler.md. Failures of the recording never reach the program; a call with invalid
arguments raises a `sonde.Error`.
"""

from __future__ import annotations

try:
    from sonde.job.mxnet.calls import (
        dump,
        dump_profile,
        dumps,
        pause,
        profiler_set_config,
        profiler_set_state,
        resume,
        set_config,
        set_kvstore_handle,
        set_state,
    )
except ImportError as error:
    from sonde.job.subinterpreter import check, refuse

    check(error)
    dump, dump_profile = refuse("profiler.dump()"), refuse("profiler.dump_profile()")
    dumps = refuse("profiler.dumps()", "")
    pause, resume = refuse("profiler.pause()"), refuse("profiler.resume()")
    set_config, set_state = refuse("profiler.set_config()"), refuse("profiler.set_state()")
    profiler_set_config, profiler_set_state = set_config, set_state
    set_kvstore_handle = refuse("profiler.set_kvstore_handle()")
from sonde.job.mxnet.objects import Counter, Domain, Event, Frame, Marker, Task, scope

__all__ = [
    "Counter", "Domain", "Event", "Frame", "Marker", "Task", "dump", "dump_profile", "dumps",
    "pause", "profiler_set_config", "profiler_set_state", "resume", "scope", "set_config",
    "set_kvstore_handle", "set_state",
]  # fmt: skip
