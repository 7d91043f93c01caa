"""Summarise arrays without the framework noticing and without waiting for a device."""

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

MAX_NUMBERS = 4096  # that a summary covers
_SLOTS, _SLOT_BYTES = 16, MAX_NUMBERS * 8
_PIECES = 4  # that are copied of a large tensor on a device
_KINDS = {
    "float32": "f", "float64": "d", "float16": "e", "bfloat16": "E", "int64": "q", "int32": "i",
    "int16": "h", "int8": "b", "uint64": "Q", "uint32": "I", "uint16": "H", "uint8": "B",
    "bool": "?",
}  # fmt: skip
NOTHING: Summary = (0, 0, None, None, None)


class Layout:
    """Where an array is in memory, and what it consists of."""

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
        """Return the bytes from its first element to the end of its last."""
        if not self.elements:
            return 0
        pairs = zip(self.shape, self.strides, strict=True)
        return self.itemsize + sum((length - 1) * stride for length, stride in pairs)

    def summarize(self) -> Summary:
        """Summarise its numbers in this process's memory; NOTHING if they cannot be read."""
        kind = _KINDS.get(self.dtype)
        if kind is None or not self.address or not self.elements or len(self.shape) > 16:
            return NOTHING
        return _core.summarize(self.address, kind, self.shape, self.strides, MAX_NUMBERS)


def describe_array(value: Any) -> Layout | None:
    """Return the layout of a numpy array, or None if the value is not one."""
    array = getattr(sys.modules.get("numpy"), "ndarray", None)
    if array is None or type(value) is not array:
        return None
    about = value.__array_interface__
    dtype = value.dtype
    native = dtype.isnative and not dtype.hasobject
    address = about["data"][0] if native else 0
    return Layout(address, str(dtype), "cpu", value.shape, value.strides, dtype.itemsize)


def describe_tensor(value: Any, torch: Any) -> Layout | None:
    """Return the layout of a tensor of torch, or None if the value is not one; its address is 0 if
    it is unknown or must not be read."""
    if not is_tensor(value):
        return None
    # Otherwise torch function modes of the program would be called.
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
    """Return the address; 0 if the tensor has no memory, or if it was freed, as FSDP does."""
    try:
        storage = value.untyped_storage()
        begin = value.storage_offset() * layout.itemsize
        if begin + layout.count_spanned() > storage.nbytes():
            return 0
        # Asking a copy-on-write tensor for its address would make it copy its memory.
        is_shared: Callable[[Any], bool] | None = getattr(torch._C, "_is_cow_tensor", None)
        return 0 if is_shared is not None and is_shared(value) else int(value.data_ptr())
    except RuntimeError as error:  # inside vmap and other transforms
        if is_from_signal(error):
            raise
        return 0


# ---- on a device ---------------------------------------------------------------------------------


class Copy:
    """A copy of some numbers from a device, which may be unfinished."""

    __slots__ = ("event", "layout", "slot")

    def __init__(self, slot: int, layout: Layout, event: Any) -> None:
        self.slot, self.layout, self.event = slot, layout, event


class Copies:
    """Copies small parts of tensors from a CUDA device, in their stream.

    Nothing waits: the copy goes to pinned memory, and is read when its event has passed, steps
    later. It needs no memory on the device, so it can neither cause memory to be freed there nor
    run out of it; the tensor itself is not kept. There is room for a few copies at a time; beyond
    that, none are made."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._pinned: Any = None
        self._free = list(range(_SLOTS))

    def start(self, tensor: Any, layout: Layout) -> Copy | None:
        """Begin to copy; return None if this tensor cannot be copied, or not now."""
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
        """Return whether the copy is finished. During the capture of a CUDA graph the answer is no,
        because querying the event would end the capture."""
        return not self._torch.cuda.is_current_stream_capturing() and bool(copy.event.query())

    def end(self, copy: Copy) -> Summary:
        """Return the summary of a finished copy, and free its slot."""
        self._free.append(copy.slot)
        return copy.layout.summarize()

    def _is_possible(self, tensor: Any, layout: Layout) -> bool:
        torch = self._torch
        # A copy made while a graph is captured would be repeated at every replay, and a dispatch
        # mode would see it.
        return (
            tensor.is_cuda
            and layout.device == f"cuda:{torch.cuda.current_device()}"
            and not torch.cuda.is_current_stream_capturing()
            and torch._C._len_torch_dispatch_stack() == 0
        )

    def _copy(self, tensor: Any, layout: Layout, slot: int) -> tuple[Layout, Any]:
        torch, size = self._torch, layout.itemsize
        count = min(layout.elements, MAX_NUMBERS)
        pieces = 1 if count == layout.elements else _PIECES
        each = count // pieces
        begin = slot * _SLOT_BYTES
        room = self._pinned[begin : begin + count * size].view(tensor.dtype)
        first = tensor.storage_offset()
        for piece in range(pieces):
            # Each piece is contiguous in memory, so it is a plain copy that needs no kernel.
            apart = (layout.elements - each) // max(1, pieces - 1) if pieces > 1 else 0
            part = tensor.as_strided((each,), (1,), first + piece * apart)
            room[piece * each : (piece + 1) * each].copy_(part, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        copied = Layout(room.data_ptr(), layout.dtype, "cpu", (each * pieces,), (size,), size)
        return copied, event
