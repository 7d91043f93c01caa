"""Memory that Python and its libraries allocate, sampled by bytes, with its stack."""

from __future__ import annotations

import os
import sys

from sonde import _core
from sonde.errors import Unavailable
from sonde.job.import_watch import ImportWatch
from sonde.job.source_context import SourceContext
from sonde.job.sources._machine_file import open_machine_code
from sonde.job.sources._node_file import open_nodes
from sonde.session.files import HEAP_NODES
from sonde.tables.heap import HeapHistory, HeapSampling

ON = False
NEEDS = ()

_NODES_BYTES = 2 * 2**20
_SEEN_OF_PYTHON = "what Python's own allocators hand out, and PyTorch's tensors on the CPU"
_SEEN = (
    "what Python's own allocators and the C library hand out, and PyTorch's tensors on the CPU; "
    "libraries with an allocator of their own (Arrow, polars) are not seen"
)
_UNSEEN = "the memory of {} is not seen: {}"
_NUMPY = ("numpy._core._multiarray_umath", "numpy.core._multiarray_umath")  # since 2.0, and before
_SEEN_ALONE = f"{_SEEN_OF_PYTHON}, and NumPy's arrays"
_TOOLS = ("memray", "scalene", "filprofiler")  # they also change what libraries call


class Source:
    """Samples allocations in C, from hooks in Python's allocators."""

    def __init__(self, context: SourceContext) -> None:
        self._context = context
        self._rows, self._sampling = context.writer(HeapHistory), context.writer(HeapSampling)
        self._heap: _core.Heap | None = None
        self._is_taken = False
        self._blind = ""  # why the memory of libraries is not seen
        self._lack = ""  # why native functions are not known that were asked for
        self._torch_watch = ImportWatch(_is_torch_here, context.guard(self._add_torch))

    def start(self) -> None:
        if "t" in getattr(sys, "abiflags", ""):
            raise Unavailable("the allocators of a Python without a GIL cannot be watched safely")
        session = self._context.session
        if self._context.why and (tool := _find_other_tool()):
            raise Unavailable(
                f"{tool} watches the allocators, and nobody has asked for the heap but the "
                f"collector, {self._context.why}"
            )
        nodes = open_nodes(os.path.join(session.folder, HEAP_NODES), _NODES_BYTES)
        # Types are read, and slots changed, with system calls that a filter may forbid.
        types = not _core.has_filter()
        self._blind = "" if types else "a filter of system calls may forbid to see libraries"
        if not session.values["heap.libraries"]:
            self._blind = "heap.libraries is off"
        heap = _core.Heap(self._rows, self._sampling, session.text, nodes, session.page, types)
        self._lack = self._see_native(heap, types) if session.values["stack.native"] else ""
        try:
            heap.start(self._every())
        except OSError as error:
            raise Unavailable(f"the allocators cannot be watched: {error}") from None
        self._heap, self._is_taken = heap, False
        why = self._context.why
        self._context.detail = f"for a time, {why}; {self._seen()}" if why else self._seen()
        if not self._blind:
            self._add_libraries(heap)
        if _is_torch_here():
            self._add_torch()
        else:
            self._torch_watch.start()

    def _see_native(self, heap: _core.Heap, may_read: bool) -> str:
        """Also keep which native functions allocate; return why that cannot be, if it cannot.

        The collector starts a process beside this one that knows their names."""
        if not self._context.session.values["collector"]:
            return "without native frames: they need the collector, and that is off"
        if not may_read:
            return "without native frames: a filter of system calls may forbid to read stacks"
        try:
            heap.see_native(open_machine_code(self._context.session))
        except OSError as error:
            return f"without native frames: {error}"
        return ""

    def _seen(self) -> str:
        seen = _SEEN_ALONE if self._context.why else _SEEN
        if self._blind:
            seen = f"{_SEEN_OF_PYTHON}; {self._blind}"
        return f"{seen}; {self._lack}" if self._lack else seen

    def _add_libraries(self, heap: _core.Heap) -> None:
        """Also sample what libraries ask the C library for, those that are loaded later as well.

        While nobody has asked for the heap but the collector, that is NumPy alone."""
        try:
            heap.add_libraries(os.path.basename(_find_numpy()) if self._context.why else None)
        except OSError as error:
            self._context.report(_UNSEEN.format("libraries", error))

    def _add_torch(self) -> None:
        """Also sample the memory of tensors on the CPU."""
        folder = os.path.dirname(sys.modules["torch._C"].__file__ or "")
        try:
            if self._heap is not None:
                self._heap.add_torch(os.fsencode(os.path.join(folder, "lib", "libc10.so")))
        except OSError:
            why = "this build allocates it in a way of its own"
            self._context.report(_UNSEEN.format("PyTorch's tensors", why))

    def stop(self) -> None:
        self._torch_watch.stop()
        self._check()
        heap, self._heap = self._heap, None
        if heap is not None:
            heap.stop()

    def configure(self) -> None:
        if self._heap is not None:
            self._heap.set_every(self._every())
            self._check()
            if self._context.why and self._context.session.values["source.heap"]:
                self._context.why = ""  # now somebody has asked for it
                if not self._blind:
                    self._add_libraries(self._heap)
                self._context.report(self._seen())

    def publish(self) -> None:
        """Write now what has changed since the last time."""
        if self._heap is not None:
            self._heap.publish()
            self._check()

    def _every(self) -> int:
        return int(self._context.session.values["heap.every"])

    def _check(self) -> None:
        """Record that another tool has taken our hooks away, if it has."""
        taken = self._heap is not None and not self._heap.is_complete
        if taken and not self._is_taken:
            self._is_taken = True
            self._context.report(
                "another tool, such as tracemalloc, has taken our hooks out of the allocators; "
                "switch the source off and on again"
            )


def _find_other_tool() -> str:
    """Return what else watches the allocators; empty if nothing does."""
    try:
        import _tracemalloc  # a part of the interpreter; -X tracemalloc does not import it

        if _tracemalloc.is_tracing():
            return "tracemalloc"
    except ImportError:
        pass
    found = next((name for name in _TOOLS if name in sys.modules), "")
    return found or ("" if _core.Heap.is_alone() else "another tool")


def _find_numpy() -> str:
    """Return the file of NumPy's arrays, or a name that no library has."""
    found = (getattr(sys.modules.get(name), "__file__", None) for name in _NUMPY)
    return next((path for path in found if path), "none")


def _is_torch_here() -> bool:
    return getattr(sys.modules.get("torch._C"), "__file__", None) is not None
