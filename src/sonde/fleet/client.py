"""Asking one agent: within a time, and never more than a given amount of its answer."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import flight

from sonde.errors import Error
from sonde.fleet import credentials
from sonde.fleet.protocol import ERROR, HELLO, NONCE_BYTES, PORT, is_proof, prove, read_object
from sonde.words import show_bytes

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_PLAIN = "plain://"
_MESSAGE_BYTES = 64 << 20  # of one piece of an answer
_LEAST_S = 0.001
# Arrow's errors are of several kinds, and gRPC's are among them.
_FAILURES = (pa.ArrowException, flight.FlightError, OSError, MemoryError)


class Refused(Error):
    """An agent said no, or answered what no agent answers."""


class Clock(NamedTuple):
    """How far the clock of a host is ahead of ours, and by how much that may be wrong."""

    offset_ns: int
    error_ns: int


class Asker:
    """Asks one agent; close it afterwards."""

    def __init__(self, host: str, deadline: float) -> None:
        self.host, self._deadline, self._token = host, deadline, credentials.read_token()
        self.clock: Clock | None = None
        options = [("grpc.max_receive_message_length", _MESSAGE_BYTES),
                   ("grpc.enable_http_proxy", 0)]  # fmt: skip
        location, is_plain = _locate(host)
        more = {} if is_plain else {"tls_root_certs": credentials.read_certificate(),
                                    "override_hostname": credentials.NAME}  # fmt: skip
        self._client = flight.FlightClient(location, generic_options=options, **more)

    def __enter__(self) -> Asker:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def ask(self, request: Mapping[str, Any], limit_bytes: int) -> pa.Table:
        """Return the answer to a request; raise Refused, in words, if there is none."""
        try:
            nonce = self.say_hello()
            left_s = self._deadline - time.monotonic()
            body = json.dumps({**request, "timeout_s": left_s})
            proof = prove(self._token, "asker", nonce, body)
            ticket = json.dumps({"nonce": nonce, "body": body, "proof": proof}).encode()
            reader = self._client.do_get(flight.Ticket(ticket), self._options())
            said = (reader.schema.metadata or {}).get(ERROR)
            if said is not None:
                raise _read_error(said)
            return _read_all(reader, limit_bytes)
        except _FAILURES as error:
            raise _explain(error) from None

    def say_hello(self) -> str:
        """Have the agent prove that it is one; return its number, and note its clock."""
        ours, before_ns = secrets.token_hex(NONCE_BYTES), time.time_ns()
        action = flight.Action(HELLO, json.dumps({"nonce": ours}).encode())
        results = self._client.do_action(action, self._options())
        first = next(iter(results), None)
        after_ns = time.time_ns()
        try:
            found = read_object(b"" if first is None else first.body.to_pybytes())
            nonce, clock = str(found.get("nonce")), str(found.get("clock"))
            if not is_proof(self._token, found.get("proof"), "agent", ours, nonce, clock):
                raise Refused("its token is not the one in our folder")
            received_ns, sent_ns = json.loads(clock)
            offset = (received_ns - before_ns + sent_ns - after_ns) // 2
            wait = max(0, after_ns - before_ns - (sent_ns - received_ns))
        except (ValueError, TypeError):
            raise Refused("what answers there is no agent") from None
        if self.clock is None or wait // 2 < self.clock.error_ns:
            self.clock = Clock(offset, wait // 2 + 1)
        return nonce

    def _options(self) -> Any:
        left_s = max(_LEAST_S, self._deadline - time.monotonic())
        return flight.FlightCallOptions(timeout=left_s, read_options=_read_aligned())


def _read_aligned() -> Any:
    """Have numbers copied that lie at an odd place: Arrow would warn of them on stderr."""
    if not hasattr(pa.ipc, "Alignment"):
        return None  # an Arrow that cannot copy them
    return pa.ipc.IpcReadOptions(ensure_alignment=pa.ipc.Alignment.DataTypeSpecific)


def _locate(host: str) -> tuple[str, bool]:
    is_plain = host.startswith(_PLAIN)
    name = host.removeprefix(_PLAIN)
    if not name.rpartition("]")[2].count(":"):
        name = f"{name}:{PORT}"
    if is_plain and not name.startswith(tuple(f"{one}:" for one in _LOOPBACK)):
        raise Refused("without TLS only this machine may be asked")
    return f"grpc+{'tcp' if is_plain else 'tls'}://{name}", is_plain


def _read_all(reader: Any, limit_bytes: int) -> pa.Table:
    pieces, size = [], 0
    while True:
        try:
            piece = reader.read_chunk().data
        except StopIteration:
            break
        piece.validate(full=True)  # it may be anybody's; what is wrong with it must not reach SQL
        size += piece.nbytes
        if size > limit_bytes:
            reader.cancel()
            raise Refused(f"its answer is larger than {show_bytes(limit_bytes)}")
        pieces.append(piece)
    return pa.Table.from_batches(pieces, reader.schema)


def _read_error(said: bytes) -> Error:
    try:
        found = read_object(said)
        error = Refused(" ".join(str(found.get("text")).split())[:2000])
        error.exit_code = int(found.get("code", 1)) & 0x7F
    except (ValueError, TypeError):
        return Refused("it refused, in no words that we understand")
    return error


def _explain(error: BaseException) -> Refused:
    """Return an error of Arrow's or gRPC's as a sentence."""
    text = " ".join(str(error).split())
    if isinstance(error, flight.FlightTimedOutError) or "Deadline Exceeded" in text:
        return Refused("it has not answered in time")
    if isinstance(error, flight.FlightUnauthenticatedError):
        return Refused("it refused: the token is another one, or the request was not new")
    if "CERTIFICATE_VERIFY_FAILED" in text or "handshake" in text.lower():
        # gRPC says the same of a connection that was closed in the middle of it.
        said = "what answers there does not have the certificate of our agents, or is ending"
        return Refused(said)
    if isinstance(error, flight.FlightUnavailableError):
        return Refused("nobody listens there, or the network is down")
    if "larger than max" in text or isinstance(error, flight.FlightCancelledError):
        most = show_bytes(_MESSAGE_BYTES)
        return Refused(f"it broke off, or a piece of its answer is larger than {most}")
    return Refused(f"its answer cannot be read: {text[:160]}")
