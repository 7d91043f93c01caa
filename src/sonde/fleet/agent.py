"""The agent: an Arrow Flight server that answers for every recording of one host."""

from __future__ import annotations

import json
import math
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyarrow import flight

from sonde import environ, settings
from sonde.errors import ConfigError, Error, QueryError
from sonde.fleet import credentials
from sonde.fleet.answers import LONGEST_S, Leave, answer
from sonde.fleet.protocol import (
    ERROR,
    HELLO,
    LONGEST,
    NONCE_BYTES,
    PORT,
    is_proof,
    prove,
    read_object,
)

_MOST_NONCES = 10_000
_NONCE_S = 60.0  # that a request may take to follow its hello
_AT_ONCE = 4  # requests that are worked on


class AgentServer(flight.FlightServerBase):  # type: ignore[misc]
    """Answers whoever proves to have the token; everybody else learns nothing."""

    def __init__(self, host: str, port: int, leave: Leave, *, plain: bool = False) -> None:
        self._token, self._leave = credentials.read_token(), leave
        self._nonces: dict[str, float] = {}
        self._lock, self._room = threading.Lock(), threading.Semaphore(_AT_ONCE)
        environ.silence_grpc()  # whoever knocks would fill the log
        shown = f"[{host}]" if ":" in host else host
        pair = [] if plain else [(credentials.read_certificate(), credentials.read_key())]
        kind = "grpc+tcp" if plain else "grpc+tls"
        try:
            _check_port(host, port)
            super().__init__(f"{kind}://{shown}:{port}", tls_certificates=pair)
        except (pa.ArrowException, OSError) as error:
            raise Error(f"{shown}:{port} cannot be listened on: {_shorten(error)}") from None
        leave.pool.prepare(leave.memory)

    # ---- what Flight calls -----------------------------------------------------------------------

    def do_action(self, _context: Any, action: Any) -> Iterator[bytes]:
        """Answer `hello`: a number for the next request, the proof that we are an agent, and our
        clock."""
        received_ns = time.time_ns()
        try:
            theirs = read_object(action.body.to_pybytes()).get("nonce")
        except ValueError:
            theirs = None
        if action.type != HELLO or not isinstance(theirs, str) or len(theirs) > 2 * NONCE_BYTES:
            raise flight.FlightUnauthenticatedError("this is no hello")
        ours = self._make_nonce()
        clock = json.dumps([received_ns, time.time_ns()])
        proof = prove(self._token, "agent", theirs, ours, clock)
        yield json.dumps({"nonce": ours, "clock": clock, "proof": proof}).encode()

    def do_get(self, _context: Any, ticket: Any) -> Any:
        """Answer a request; an error of ours goes back as a sentence."""
        if len(ticket.ticket) > LONGEST:
            raise flight.FlightUnauthenticatedError("the request is too long")
        try:
            sent = read_object(ticket.ticket)
            body = str(sent.get("body"))
        except ValueError:
            raise flight.FlightUnauthenticatedError("this is no request") from None
        if not self._is_allowed(sent, body):
            raise flight.FlightUnauthenticatedError("the token is another one, or it was used")
        try:
            rows = self._work(read_object(body.encode()))
        except (Error, ValueError, OSError, ArithmeticError, LookupError, TypeError) as error:
            rows = _describe(error)
        return flight.RecordBatchStream(rows)

    def shutdown(self) -> None:
        """End, when the requests that are under way are answered."""
        super().shutdown()
        self._leave.pool.close()

    # ---- who may ask -----------------------------------------------------------------------------

    def _make_nonce(self) -> str:
        now, nonce = time.monotonic(), secrets.token_hex(NONCE_BYTES)
        with self._lock:
            # In the order of time, so that the oldest come first.
            while self._nonces and (
                len(self._nonces) >= _MOST_NONCES or next(iter(self._nonces.values())) < now
            ):
                self._nonces.pop(next(iter(self._nonces)))
            self._nonces[nonce] = now + _NONCE_S
        return nonce

    def _is_allowed(self, sent: dict[str, Any], body: str) -> bool:
        nonce = str(sent.get("nonce"))
        with self._lock:
            until = self._nonces.pop(nonce, 0.0)  # whoever comes second finds nothing
        right = is_proof(self._token, sent.get("proof"), "asker", nonce, body)
        return right and until > time.monotonic()

    def _work(self, asked: dict[str, Any]) -> pa.Table:
        given = asked.get("timeout_s")
        left_s = given if isinstance(given, (int, float)) and math.isfinite(given) else 1.0
        if not self._room.acquire(timeout=min(max(left_s, 0.0), LONGEST_S)):
            raise QueryError("the agent is busy with other requests; ask again")
        try:
            return answer(asked, self._leave)
        finally:
            self._room.release()


def read_address(text: str) -> tuple[str, int]:
    """Return the address and the port that `ADDRESS` or `ADDRESS:PORT` names."""
    host, colon, port = text.rpartition(":")
    if not colon or (text.count(":") > 1 and not text.startswith("[")):
        host, port = text, str(PORT)
    if not port.isdecimal() or int(port) > 65535 or not host:
        raise ConfigError(f"{text} is not ADDRESS or ADDRESS:PORT, where an agent could listen")
    return host.strip("[]"), int(port)


def double_memory(memory: str) -> str:
    """Return twice the memory of a query: what the whole agent may use."""
    try:
        return str(2 * settings.parse_size(memory))
    except (KeyError, ValueError):
        raise ConfigError(f"--memory {memory!r} is not a size; write 500MiB or 2GiB") from None


def _describe(error: Exception) -> pa.Table:
    """Return an answer without rows that says why there are none."""
    code = error.exit_code if isinstance(error, Error) else 1
    text = str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}"
    said = json.dumps({"text": text[:4000], "code": code})
    return pa.schema([pa.field("error", pa.string())], {ERROR: said.encode()}).empty_table()


def _check_port(host: str, port: int) -> None:
    """Raise OSError if somebody listens there: gRPC would share the port, and half of the calls."""
    family, kind, protocol, _name, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM
    )[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)


def _shorten(error: Exception) -> str:
    if "did not start properly" in str(error):  # all that gRPC says
        return "somebody else listens there, or it is no address of this machine"
    return " ".join(str(error).split())[:200]
