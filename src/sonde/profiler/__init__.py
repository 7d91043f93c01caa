"""A drop-in for `mxnet.profiler`: its calls and objects, on sonde's recording.

    from sonde import profiler
    profiler.set_config(filename="profile.json", aggregate_stats=True)
    profiler.set_state("run")
    with profiler.Task(profiler.Domain("job"), "load"): ...
    print(profiler.dumps()); profiler.dump()

See docs/profiler.md. What goes wrong with the recording never reaches the program; a call that
cannot mean anything raises a `sonde.Error`.
"""

from __future__ import annotations

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
from sonde.job.mxnet.objects import Counter, Domain, Event, Frame, Marker, Task, scope

__all__ = [
    "Counter", "Domain", "Event", "Frame", "Marker", "Task", "dump", "dump_profile", "dumps",
    "pause", "profiler_set_config", "profiler_set_state", "resume", "scope", "set_config",
    "set_kvstore_handle", "set_state",
]  # fmt: skip
