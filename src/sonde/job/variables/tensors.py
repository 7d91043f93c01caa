"""Summaries of arrays, without the framework's noticing and without waiting for a device."""

from __future__ import annotations

import sys
from collections.abc import Callable

from sonde import _core
from sonde.job.source_context import is_from_signal
from sonde.job.variables.finder import is_tensor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeAlias

    Summary: TypeAlias = tuple[int, int, float | None, float | None, float | None]

MOST = 4096  # numbers that are looked at
_SLOTS, _SLOT_BYTES = 16, MOST * 8
_PIECES = 4  # of a large tensor on a device
_KINDS = {
    "float32": "f", "float64": "d", "float16": "e", "bfloat16": "E", "int64": "q", "int32": "i",
    "int16": "h", "int8": "b", "uint64": "Q", "uint32": "I", "uint16": "H", "uint8": "B",
    "bool": "?",
}  # fmt: skip
NOTHING: Summary = (0, 0, None, None, None)


class Layout:
    """Where an array lies, and of what it is."""

    __slots__ = ("address", "device", "dtype", "elements", "itemsize", "shape", "strides")

    def __init__(
        self, address: int, dtype: str, device: str, shape: tuple[int, ...],
        strides: tuple[int, ...], itemsize: int,
    ) -> None:  # fmt: skip
        self.address, self.dtype, self.device = address, dtype, device
        self.shape, self.strides, self.itemsize = shape, strides, itemsize
        self.elements = 1
        for length in shape:
            self.elements *= length

    def count_spanned(self) -> int:
        """Bytes from its first element to the end of its last."""
        if not self.elements:
            return 0
        pairs = zip(self.shape, self.strides, strict=True)
        return self.itemsize + sum((length - 1) * stride for length, stride in pairs)

    def summarize(self) -> Summary:
        """What its numbers in this process's memory are; NOTHING: they cannot be looked at."""
        kind = _KINDS.get(self.dtype)
        if kind is None or not self.address or not self.elements or len(self.shape) > 16:
            return NOTHING
        return _core.summarize(self.address, kind, self.shape, self.strides, MOST)


def describe_array(value: Any) -> Layout | None:
    """Where a numpy array lies; None: it is none."""
    array = getattr(sys.modules.get("numpy"), "ndarray", None)
    if array is None or type(value) is not array:
        return None
    about = value.__array_interface__
    dtype = value.dtype
    native = dtype.isnative and not dtype.hasobject
    address = about["data"][0] if native else 0
    return Layout(address, str(dtype), "cpu", value.shape, value.strides, dtype.itemsize)


def describe_tensor(value: Any, torch: Any) -> Layout | None:
    """Where a tensor of torch lies, address 0 if that cannot be told or must not be looked at."""
    if not is_tensor(value):
        return None
    # Or modes of the program would be asked about what is no business of theirs.
    with torch._C.DisableTorchFunction():
        size = value.element_size()
        layout = Layout(
            0, str(value.dtype).removeprefix("torch."), str(value.device), tuple(value.shape), (),
            size,
        )  # fmt: skip
        if value.layout is torch.strided and not (value.is_quantized or value.is_neg()):
            layout.strides = tuple(stride * size for stride in value.stride())
            layout.address = _find_address(value, layout, torch)
    return layout


def _find_address(value: Any, layout: Layout, torch: Any) -> int:
    """0: it has no memory of its own, or what was there was given back (as FSDP does)."""
    try:
        storage = value.untyped_storage()
        begin = value.storage_offset() * layout.itemsize
        if begin + layout.count_spanned() > storage.nbytes():
            return 0
        # One that shares its memory until it is written would be given a copy by being asked.
        is_shared: Callable[[Any], bool] | None = getattr(torch._C, "_is_cow_tensor", None)
        return 0 if is_shared is not None and is_shared(value) else int(value.data_ptr())
    except RuntimeError as error:  # inside vmap and other transforms
        if is_from_signal(error):
            raise
        return 0


# ---- on a device ---------------------------------------------------------------------------------


class Copy:
    """A copy of some numbers that is on its way from a device."""

    __slots__ = ("event", "layout", "slot")

    def __init__(self, slot: int, layout: Layout, event: Any) -> None:
        self.slot, self.layout, self.event = slot, layout, event


class Copies:
    """Copies small parts of tensors from a CUDA device, behind what their stream has to do.

    Nothing waits: the copy goes to pinned memory, and is looked at when its event has come, steps
    later. It needs no memory of the device, so it cannot make room there or fail for want of it;
    the tensor itself is not kept. There is room for a few; more are not made meanwhile."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._pinned: Any = None
        self._free = list(range(_SLOTS))

    def start(self, tensor: Any, layout: Layout) -> Copy | None:
        """Begin to copy; None: not now, or not this one."""
        torch = self._torch
        if not self._free or not layout.address or not self._is_possible(tensor, layout):
            return None
        dense = layout.count_spanned() == layout.elements * layout.itemsize
        if not dense or layout.dtype not in _KINDS or not layout.elements:
            return None
        with torch._C.DisableTorchFunction(), torch.inference_mode(False):
            if self._pinned is None:
                self._pinned = torch.empty(
                    _SLOTS * _SLOT_BYTES, dtype=torch.uint8, device="cpu", pin_memory=True
                )
            slot = self._free.pop()
            return Copy(slot, *self._copy(tensor.detach(), layout, slot))

    def is_done(self, copy: Copy) -> bool:
        """Has it arrived? Asked while a graph is captured, the driver would end the capture."""
        return not self._torch.cuda.is_current_stream_capturing() and bool(copy.event.query())

    def end(self, copy: Copy) -> Summary:
        """What has arrived; its place may be used again."""
        self._free.append(copy.slot)
        return copy.layout.summarize()

    def _is_possible(self, tensor: Any, layout: Layout) -> bool:
        torch = self._torch
        # What is copied while a graph is captured would be copied at every replay. What is done
        # under a dispatch mode would be seen by it.
        return (
            tensor.is_cuda
            and layout.device == f"cuda:{torch.cuda.current_device()}"
            and not torch.cuda.is_current_stream_capturing()
            and torch._C._len_torch_dispatch_stack() == 0
        )

    def _copy(self, tensor: Any, layout: Layout, slot: int) -> tuple[Layout, Any]:
        torch, size = self._torch, layout.itemsize
        count = min(layout.elements, MOST)
        pieces = 1 if count == layout.elements else _PIECES
        each = count // pieces
        begin = slot * _SLOT_BYTES
        room = self._pinned[begin : begin + count * size].view(tensor.dtype)
        first = tensor.storage_offset()
        for piece in range(pieces):
            # One after the other in memory, so each is a plain copy that needs no kernel.
            apart = (layout.elements - each) // max(1, pieces - 1) if pieces > 1 else 0
            part = tensor.as_strided((each,), (1,), first + piece * apart)
            room[piece * each : (piece + 1) * each].copy_(part, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        there = Layout(room.data_ptr(), layout.dtype, "cpu", (each * pieces,), (size,), size)
        return there, event
