"""Strobelight: a drop-in for PyTorch's `StrobelightCLIFunctionProfiler` that works on any machine.

    from sonde.integrations.strobelight import StrobelightCLIFunctionProfiler, strobelight

    @strobelight(sample_tags=["load"])
    def load(path): ...

    StrobelightCompileTimeProfiler.enable(profiler_class=StrobelightCLIFunctionProfiler)

Names and defaults are those of the original; docs/differences.md says what differs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction

import sonde

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_CYCLES_A_SECOND = 3e9  # the original counts in cycles of a processor; sonde in time
_LEAST_S, _MOST_S = 50e-6, 3600.0
# The work of these is done after the call of the function has returned.
_LATER = (iscoroutinefunction, isgeneratorfunction, isasyncgenfunction)


class FunctionProfiler:
    """Profiles calls of functions, one at a time in a process. Other calls, and calls that cannot
    be profiled, simply run."""

    def __init__(
        self,
        *,
        stop_at_error: bool = False,
        max_profile_duration_sec: float = 600,
        sample_each: float = 1e7,
        run_user_name: str | None = None,
        timeout_wait_for_running_sec: float | None = None,
        timeout_wait_for_finished_sec: float = 60,
        recorded_env_variables: Iterable[str] | None = None,
        sample_tags: Iterable[str] | None = None,
        stack_max_len: int = 127,
        async_stack_max_len: int = 127,
    ) -> None:
        # A coroutine and those that await it are frames of one stack here.
        max_frames = max(stack_max_len, async_stack_max_len)
        settings: dict[str, Any] = {
            "stop_at_error": stop_at_error, "max_duration": max_profile_duration_sec,
            "every": min(max(sample_each / _CYCLES_A_SECOND, _LEAST_S), _MOST_S),
            "user": run_user_name, "environment": list(recorded_env_variables or ()),
            "tags": sorted(sample_tags or ()), "max_frames": max_frames,
        }  # fmt: skip
        if timeout_wait_for_running_sec is not None:
            settings["start_timeout"] = timeout_wait_for_running_sec
        self._profiled = sonde.profile(**settings)
        self._timeout_s = timeout_wait_for_finished_sec
        self.current_run_id: str | None = None
        self.profile_result: list[str] | None = None  # lines for people; None: there is no profile

    def profile(self, work_function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the function and return what it returns; the profile is in `profile_result`."""
        run: Any = None
        try:
            with self._profiled as run:
                self.current_run_id, self.profile_result = run.id, None
                return work_function(*args, **kwargs)
        finally:
            if run is not None and run.id is not None:
                self.profile_result = self._read(run)

    def decorate(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a coroutine or generator function, profiled from its first moment to its end."""
        decorated: Callable[..., Any] = self._profiled(function)
        return decorated

    def _read(self, run: Any) -> list[str] | None:
        try:
            return str(run.result(self._timeout_s)).splitlines()
        except sonde.Error:
            return None  # the log of the recording says why


# The names under which programs for the original import them.
StrobelightCLIFunctionProfiler = FunctionProfiler
StrobelightCLIProfilerError = sonde.Error


def strobelight(
    profiler: FunctionProfiler | None = None, **settings: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that profiles each call with `profiler`, or with one of these settings."""
    chosen = FunctionProfiler(**settings) if profiler is None else profiler

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        if any(test(function) for test in _LATER):
            return chosen.decorate(function)

        @wraps(function)
        def profiled(*args: Any, **kwargs: Any) -> Any:
            return chosen.profile(function, *args, **kwargs)

        return profiled

    return decorate
