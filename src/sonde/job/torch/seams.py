"""The places where torch can be observed, and checks of whether the installed torch has them."""

from __future__ import annotations

import os
import re
import sys

from sonde import _core
from sonde.errors import Unavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# The core's torch/ and collectives/ rely on torch's headers having these members in this order.
_CALLBACK = (
    r"StartCallback start_;\s*EndCallback end_;\s*double sampling_prob_[^;]*;"
    r"\s*std::array<bool,[^;]*> scopes_[^;]*;\s*bool needs_inputs_[^;]*;"
    r"\s*bool needs_outputs_[^;]*;\s*bool needs_ids_[^;]*;\s*}"
)
_FUNCTION = (
    r"int64_t sequence_nr_[^;]*;\s*c10::ArrayRef<const (?:c10::)?IValue> inputs_;"
    r"\s*std::unordered_map<std::string, (?:c10::)?IValue> kwinputs_;"
    r"\s*std::vector<c10::IValue> outputs_;\s*uint64_t fwd_thread_id_"
)
_SCOPES = (
    r"FUNCTION = 0,\s*BACKWARD_FUNCTION,\s*TORCHSCRIPT_FUNCTION,\s*KERNEL_FUNCTION_DTYPE,"
    r"\s*CUSTOM_CLASS,\s*BUILD_FEATURE,\s*LITE_INTERPRETER,\s*USER_SCOPE,"
    r"\s*STATIC_RUNTIME_OP,\s*STATIC_RUNTIME_MODEL,\s*NUM_SCOPES"
)
_NODE = (
    r"uint64_t sequence_nr_[^;]*;\s*uint64_t topological_nr_[^;]*;"
    r"\s*mutable bool has_parent_[^;]*;(?:\s*bool \w+[^;]*;){0,7}\s*uint64_t thread_id_"
)  # the flags share eight bytes


class ReplacedAttribute:
    """An attribute of torch that is replaced while we record."""

    def __init__(self, owner: Any, name: str, make: Any) -> None:
        self._owner, self._name = owner, name
        self._original = vars(owner)[name]
        self._ours = make(self._original)
        setattr(owner, name, self._ours)

    def put_back(self) -> None:
        """Replace it again if somebody restored the original, as torch.fx does after tracing."""
        if vars(self._owner).get(self._name) is self._original:
            setattr(self._owner, self._name, self._ours)

    def give_back(self) -> None:
        # If somebody has wrapped ours, it stays in place and only passes calls on.
        if vars(self._owner).get(self._name) is self._ours:
            setattr(self._owner, self._name, self._original)


def is_tracing() -> bool:
    """Return whether torch traces operations on tensors (jit.trace, make_fx, a dispatch mode)."""
    inner = sys.modules["torch"]._C
    if inner._get_tracing_state() is not None or getattr(inner, "_len_torch_dispatch_stack", int)():
        return True
    # torch.set_default_device also is such a mode, for the whole program.
    count = getattr(inner, "_len_torch_function_stack", int)()
    mode_at = getattr(inner, "_get_function_stack_at", lambda _: None)
    return any(type(mode_at(at)).__name__ != "DeviceContext" for at in range(count))


def find_engine() -> tuple[Any, str] | None:
    """Return the attribute in which autograd keeps its engine."""
    variable = getattr(sys.modules.get("torch.autograd"), "Variable", None)
    if variable is None or "_execution_engine" not in vars(variable):
        return None
    return variable, "_execution_engine"


def observe_nodes() -> None:
    """Start observing the nodes of autograd's graph; raise Unavailable if something is missing."""
    torch: Any = sys.modules["torch"]
    library = find_library(torch, "libtorch_cpu.so")
    current = getattr(torch._C, "_current_autograd_node", None)
    reason = "torch does not expose the current node" if current is None else check_header(torch)
    try:
        _core.torch_observe(library, None if reason else current, _has_known_nodes(torch))
    except OSError as error:
        reason = str(error)
    if reason:
        raise Unavailable(reason)


def check_header(torch: Any) -> str | None:
    """Return why the layout that we rely on cannot be confirmed, or None if torch has it."""
    text = _read_header(torch, "ATen", "record_function.h")
    if text is None:
        return "torch's headers are not installed"
    if all(re.search(pattern, text) for pattern in (_CALLBACK, _FUNCTION, _SCOPES)):
        return None
    return f"the layout of observers in torch {torch.__version__} is not supported"


def _has_known_nodes(torch: Any) -> bool:
    """Return whether we know the layout of the engine's nodes; observing others costs more."""
    places = (("torch", "csrc", "autograd", name) for name in ("node.h", "function.h"))
    return any(re.search(_NODE, _read_header(torch, *place) or "") for place in places)


def _read_header(torch: Any, *place: str) -> str | None:
    """Return the text of a header without comments, or None if it is not installed."""
    try:
        with open(os.path.join(_folder(torch), "include", *place), encoding="utf-8") as file:
            return re.sub(r"//[^\n]*|^#[^\n]*", "", file.read(), flags=re.MULTILINE)
    except OSError:
        return None


def find_device() -> str | None:
    """Find CUDA's events once the program uses CUDA; return the device, or None until then."""
    torch: Any = sys.modules["torch"]
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return None
    runtime = _find_mapped("libcudart")
    if runtime is None:
        raise Unavailable("CUDA's runtime is not loaded as a library")
    device = torch._C._cuda_getDevice()
    stream = torch._C._cuda_getCurrentRawStream(device)
    try:
        _core.torch_device(runtime, find_library(torch, "libc10_cuda.so"), device, stream)
    except OSError as error:
        raise Unavailable(str(error)) from None
    return f"cuda:{device}"


def _find_mapped(name: str) -> str | None:
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            path = line.rstrip("\n").partition("/")[2]
            if os.path.basename(path).startswith(name):
                return "/" + path
    return None


def _folder(torch: Any) -> str:
    return str(os.path.dirname(os.path.abspath(torch.__file__)))


def find_library(torch: Any, name: str) -> str:
    """Return the path of a library of torch."""
    return os.path.join(_folder(torch), "lib", name)
