"""Add up what torch's profiler recorded of one step: by kernel, module and line, and why the device
was idle."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    Place = tuple[str | None, str | None, str | None, int | None]  # module, func, file, lineno
    Key = tuple[str, str, str, bool, Place]  # device, kind, name, backward, place
    Note = tuple[int, int, str | None, str | None, str | None, int | None]  # see op_places_take

NOWHERE: Place = (None, None, None, None)
NOTHING_LAUNCHED, SYNCHRONISATION, QUEUED = "nothing launched", "synchronisation", "queued"
_NEAR_NS = 100_000  # a note is of an operator if it was made that close to its beginning
_WAITS = ("cudaMemcpy", "cuMemcpyDtoH_v2", "hipMemcpyWithStream")  # beside all with Synchronize
_ENGINE = "autograd::engine::"


class Op:
    """An operator on the host."""

    __slots__ = ("begin_ns", "end_ns", "forward", "inner_ns", "is_backward", "is_node", "name",
                 "number", "thread")  # fmt: skip

    def __init__(self, event: Any) -> None:
        self.name, self.thread = event.name(), event.device_resource_id()
        self.begin_ns = event.start_ns()
        self.end_ns = self.begin_ns + event.duration_ns()
        self.number = event.sequence_nr()  # the same in forward and backward; -1: none
        self.is_node = event.fwd_thread_id() > 0
        self.is_backward = self.is_node or self.name.startswith(_ENGINE)
        self.forward = self.number if self.is_node else -1  # number of its forward operator
        self.inner_ns = 0


class Work:
    """A kernel, copy or memset on a device."""

    __slots__ = ("begin_ns", "device", "end_ns", "event", "key", "kind", "launch_ns", "own_ns")

    def __init__(self, event: Any, kind: str, launch_ns: int, key: Key) -> None:
        self.event, self.kind, self.launch_ns, self.key = event, kind, launch_ns, key
        self.begin_ns, self.device, self.own_ns = event.start_ns(), key[0], 0
        self.end_ns = self.begin_ns + event.duration_ns()


class KernelWindow:
    """The events of one step, which lasted from `begin_ns` to `end_ns` on the profiler's clock."""

    def __init__(self, events: Iterable[Any], notes: Iterable[Note], cpu: object,
                 begin_ns: int, end_ns: int) -> None:  # fmt: skip
        self._begin_ns, self._end_ns = begin_ns, end_ns
        self._ops: dict[int, Op] = {}
        self._calls: dict[int, tuple[int, int]] = {}  # of CUDA: begin and end
        self._waits: list[tuple[int, int]] = []
        self._works: list[Any] = []
        for event in events:
            if event.device_type() != cpu:
                self._works.append(event)
            elif _is_runtime(event):
                self._add_call(event)
            elif not event.is_async():
                self._ops[event.correlation_id()] = Op(event)
        self._waits.sort()
        self._notes: dict[int, tuple[list[int], list[Place]]] = {}
        for thread, t_ns, *place in notes:
            times, found = self._notes.setdefault(thread, ([], []))
            times.append(t_ns)
            found.append(tuple(place))  # type: ignore[arg-type]
        self._makers = _nest(self._ops.values())

    def _add_call(self, event: Any) -> None:
        begin_ns, name = event.start_ns(), event.name()
        self._calls[event.correlation_id()] = begin_ns, begin_ns + event.duration_ns()
        if "Synchronize" in name or name in _WAITS:
            self._waits.append(self._calls[event.correlation_id()])

    # ---- places --------------------------------------------------------------------------------

    def _find_place(self, op: Op | None) -> Place:
        """Return where an operator was called from; in backward, where its forward was."""
        if op is None:
            return NOWHERE
        maker = self._makers.get(op.forward)
        op = maker if maker is not None and op.is_backward else op
        times, places = self._notes.get(op.thread, ((), ()))
        at = bisect_left(times, op.begin_ns)
        near = [i for i in (at - 1, at) if 0 <= i < len(times)]
        best = min(near, key=lambda i: abs(times[i] - op.begin_ns), default=None)
        if best is None or abs(times[best] - op.begin_ns) > _NEAR_NS:
            return NOWHERE
        return places[best]

    # ---- sums ----------------------------------------------------------------------------------

    def add_up(self) -> dict[Key, list[Any]]:
        """Return count, total, own time and bytes by device, kind, name, backward and place."""
        sums: dict[Key, list[Any]] = {}
        works, after = self._list_works()
        if not works:
            for op in self._ops.values():
                if self._begin_ns <= op.begin_ns < self._end_ns:
                    key = "cpu", "op", op.name, op.is_backward, self._find_place(op)
                    total_ns = op.end_ns - op.begin_ns
                    _add(sums, key, total_ns, max(0, total_ns - op.inner_ns), None)
            return sums
        for device in {work.device for work in works}:
            mine = [work for work in works if work.device == device]
            _divide(mine)
            for work in mine:
                _add(sums, work.key, work.end_ns - work.begin_ns, work.own_ns, _read_bytes(work))
            later = min((one for one in after if one.device == device), default=None,
                        key=lambda one: one.begin_ns)  # fmt: skip
            for key, idle_ns in self._list_idle(mine, later):
                _add(sums, key, idle_ns, idle_ns, None)
        return sums

    def _list_works(self) -> tuple[list[Work], list[Work]]:
        """Return what was launched in the step, and what was launched after it."""
        mine: list[Work] = []
        after: list[Work] = []
        for event in self._works:
            kind = _find_kind(event)
            call = self._calls.get(event.correlation_id())
            op = self._ops.get(event.linked_correlation_id())
            if kind is None or (call is None and op is None):
                continue  # no work, or launched before the profiler was on
            launch_ns = call[0] if call is not None else op.begin_ns if op is not None else 0
            if launch_ns < self._begin_ns:
                continue
            is_backward = op is not None and op.is_backward
            device = f"cuda:{event.device_index()}"
            place = self._find_place(op) if launch_ns < self._end_ns else NOWHERE
            work = Work(event, kind, launch_ns, (device, kind, event.name(), is_backward, place))
            (mine if launch_ns < self._end_ns else after).append(work)
        return mine, after

    def _list_idle(self, works: list[Work], later: Work | None) -> Iterator[tuple[Key, int]]:
        """Yield the gaps of one device: why, with the place of the work that ended them."""
        until_ns = 0
        every = sorted(works, key=lambda work: work.begin_ns)
        for work in every if later is None else (*every, later):
            if until_ns and work.begin_ns > until_ns:
                _, _, _, is_backward, place = work.key
                launch_ns = min(max(work.launch_ns, until_ns), work.begin_ns)
                if launch_ns > until_ns:
                    why = SYNCHRONISATION if self._has_wait(until_ns, launch_ns) else (
                        NOTHING_LAUNCHED)  # fmt: skip
                    yield (work.device, "idle", why, is_backward, place), launch_ns - until_ns
                if work.begin_ns > launch_ns:
                    key = work.device, "idle", QUEUED, is_backward, place
                    yield key, work.begin_ns - launch_ns
            until_ns = max(until_ns, work.end_ns)

    def _has_wait(self, begin_ns: int, end_ns: int) -> bool:
        """Return whether the host was waiting for the device when that ran dry."""
        return any(begin <= end_ns and end > begin_ns and begin <= begin_ns + _NEAR_NS
                   for begin, end in self._waits)  # fmt: skip


def _is_runtime(event: Any) -> bool:
    """Return whether this is a call of CUDA's or HIP's runtime or driver."""
    name: str = event.name()
    return name.startswith(("cuda", "hip")) or (name[:2] == "cu" and name[2:3].isupper())


def _find_kind(event: Any) -> str | None:
    """Return what a device did; None if it is only a mark on its timeline."""
    name = event.name()
    if event.is_user_annotation() or event.duration_ns() <= 0:
        return None
    # Torch names the activity since 2.12; ranges and waits of streams are no work.
    activity = event.activity_type() if hasattr(event, "activity_type") else ""
    if activity and activity not in ("kernel", "concurrent_kernel", "gpu_memcpy", "gpu_memset"):
        return None
    if activity == "gpu_memcpy" or name.startswith("Memcpy "):
        return "copy"
    if activity == "gpu_memset" or name.startswith("Memset "):
        return "set"
    return None if name in ("Context Sync", "Stream Sync", "Event Sync") else "kernel"


def _read_bytes(work: Work) -> int | None:
    if work.kind == "kernel" or not hasattr(work.event, "metadata_json"):
        return None
    digits = work.event.metadata_json().partition('"bytes":')[2].strip().partition(",")[0]
    return int(digits) if digits.isdigit() else None


def _nest(ops: Iterable[Op]) -> dict[int, Op]:
    """Have operators inherit from those that called them; return the makers of autograd's nodes."""
    makers: dict[int, Op] = {}
    open_ops: dict[int, list[Op]] = {}
    for op in sorted(ops, key=lambda op: (op.begin_ns, -op.end_ns)):
        stack = open_ops.setdefault(op.thread, [])
        while stack and stack[-1].end_ns <= op.begin_ns:
            stack.pop()
        if stack:
            stack[-1].inner_ns += op.end_ns - op.begin_ns
            op.is_backward = op.is_backward or stack[-1].is_backward
            if op.forward < 0:
                op.forward = stack[-1].forward
        stack.append(op)
        if op.number >= 0 and not op.is_node:
            makers[op.number] = op  # the newest: the innermost that made the node
    return makers


def _divide(works: list[Work]) -> None:
    """Give each moment of a device to one work: to kernels before copies, to the one that began."""
    works.sort(key=lambda work: work.begin_ns)
    kernels: list[tuple[int, int]] = []  # when any of them ran
    until_ns = 0
    for work in works:
        if work.kind == "kernel":
            begin_ns = max(work.begin_ns, until_ns)
            if work.end_ns > begin_ns:
                work.own_ns = work.end_ns - begin_ns
                kernels.append((begin_ns, work.end_ns))
                until_ns = work.end_ns
    until_ns = 0
    for work in works:
        if work.kind != "kernel":
            begin_ns = max(work.begin_ns, until_ns)
            until_ns = max(until_ns, work.end_ns)
            shared_ns = _measure_shared(kernels, begin_ns, work.end_ns)
            work.own_ns = max(0, work.end_ns - begin_ns - shared_ns)


def _measure_shared(spans: Sequence[tuple[int, int]], begin_ns: int, end_ns: int) -> int:
    """Return how much of the time the spans cover, which are sorted and do not overlap."""
    shared_ns, at = 0, max(0, bisect_right(spans, (begin_ns, 2**63)) - 1)
    while at < len(spans) and spans[at][0] < end_ns:
        shared_ns += max(0, min(spans[at][1], end_ns) - max(spans[at][0], begin_ns))
        at += 1
    return shared_ns


def _add(sums: dict[Key, list[Any]], key: Key, total_ns: int, own_ns: int,
         size: int | None) -> None:  # fmt: skip
    known = sums.setdefault(key, [0, 0, 0, None])
    known[0] += 1
    known[1] += total_ns
    known[2] += own_ns
    if size is not None:
        known[3] = (known[3] or 0) + size


def fold(sums: dict[Key, list[Any]], most: int) -> dict[Key, list[Any]]:
    """Return the largest sums as they are, and all others as one for each device and kind."""
    found = sorted(sums.items(), key=lambda item: item[1][1], reverse=True)
    kept = dict(found[:most])
    for (device, kind, _, _, _), (count, total_ns, own_ns, size) in found[most:]:
        rest = kept.setdefault((device, kind, "<other>", False, NOWHERE), [0, 0, 0, None])
        rest[0], rest[1], rest[2] = rest[0] + count, rest[1] + total_ns, rest[2] + own_ns
        rest[3] = rest[3] if size is None else (rest[3] or 0) + size
    return kept
