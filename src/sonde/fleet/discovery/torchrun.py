"""The hosts of a torchrun job, from its own store: @torchrun:HOST:PORT/ID, as in --rdzv-endpoint
and --rdzv-id."""

from __future__ import annotations

import base64
import binascii
import io
import pickle
from datetime import timedelta
from typing import Any

from sonde.errors import Error

_ASK_S = 10.0
_STATE = ("_RendezvousState", "_NodeDesc")


def list_hosts(value: str) -> list[str]:
    """Return the hosts that take part, in the order of their ranks."""
    endpoint, slash, job = value.partition("/")
    host, colon, port = endpoint.rpartition(":")
    if not (slash and job and colon and port.isdecimal()):
        raise Error("write @torchrun:HOST:PORT/ID, as in --rdzv-endpoint and --rdzv-id")
    state = _read_state(_ask_store(host.strip("[]"), int(port), job), value)
    members = sorted(state.participants.items(), key=lambda item: item[1])
    return list(dict.fromkeys(str(node.addr) for node, _rank in members))


def _ask_store(host: str, port: int, job: str) -> bytes:
    try:
        # Only torch speaks the store's language.
        from torch.distributed import TCPStore  # type: ignore[attr-defined]
    except ImportError:
        raise Error("to ask torchrun's store, this Python needs torch") from None
    try:
        store = TCPStore(host, port, is_master=False, wait_for_workers=False,
                         timeout=timedelta(seconds=_ASK_S))  # fmt: skip
        return bytes(store.get(f"torch.rendezvous.{job}"))
    except (RuntimeError, OSError) as error:
        line = str(error).splitlines()[0]
        raise Error(f"torchrun's store at {host}:{port} has no job {job}: {line}") from None


class _Plain:
    """What stands in for the classes of torchrun: their attributes, and nothing that runs."""

    def __init__(self, *values: Any, **more: Any) -> None:
        self.__dict__.update(zip(("addr", "pid", "local_id"), values, strict=False), **more)

    def __hash__(self) -> int:
        return id(self)


class _Reader(pickle.Unpickler):
    """Reads the state of a rendezvous, and refuses everything else: whoever reaches the store can
    write to it, and an object of any other kind could do anything when it is made."""

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("torch.distributed.elastic.rendezvous.") and name in _STATE:
            return _Plain
        if (module, name) in (("datetime", "datetime"), ("datetime", "timezone"),
                              ("datetime", "timedelta"), ("builtins", "set")):  # fmt: skip
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it holds {module}.{name}")


def _read_state(raw: bytes, value: str) -> Any:
    try:
        state = _Reader(io.BytesIO(base64.b64decode(raw))).load()
        if isinstance(getattr(state, "participants", None), dict):
            return state
    except (pickle.UnpicklingError, binascii.Error, EOFError, AttributeError, ValueError,
            TypeError, IndexError) as error:  # fmt: skip
        raise Error(f"the store behind @torchrun:{value} holds no rendezvous: {error}") from None
    raise Error(f"the store behind @torchrun:{value} holds no rendezvous")
