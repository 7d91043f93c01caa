"""What agents and those who ask them say to each other, and how both prove that they may.

First `hello`: each side sends a number that it never sends again, and the agent proves that it has
the token and tells its clock. Then the request, with a proof over it and the agent's number: the
token itself never travels, and a request that somebody wrote down is worth nothing the second
time."""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from sonde.analysis.live_processes import COLLECTIVE, PROCESS, THREAD

PORT = 7434
HELLO = "hello"
ERROR = b"sonde.error"  # in the metadata of an answer without rows: what went wrong
LONGEST = 1 << 20  # bytes of a request
NONCE_BYTES = 16
_KINDS = {"i64": pa.int64(), "text": pa.string(), "bool": pa.bool_()}


def prove(token: bytes, who: str, *parts: str) -> str:
    """Return the proof that one side has the token; `who` keeps the two sides apart."""
    text = json.dumps([who, *parts]).encode()
    return hmac.new(token, text, "sha256").hexdigest()


def is_proof(token: bytes, given: object, who: str, *parts: str) -> bool:
    """Tell whether a proof is right, in the same time whatever is wrong with it."""
    return isinstance(given, str) and hmac.compare_digest(
        given.encode(errors="replace"), prove(token, who, *parts).encode()
    )


def read_object(raw: bytes) -> dict[str, Any]:
    """Return a JSON object; raise ValueError if it is anything else, or too long."""
    if len(raw) > LONGEST:
        raise ValueError("too long")
    try:
        found = json.loads(raw)
    except (RecursionError, UnicodeDecodeError):
        raise ValueError("not JSON") from None
    if not isinstance(found, dict):
        raise ValueError("not an object")
    return found


def _make_fields(columns: Mapping[str, str], inner: Mapping[str, pa.DataType]) -> list[pa.Field]:
    return [pa.field(name, inner.get(name) or _KINDS[kind]) for name, kind in columns.items()]


# The rows of live_processes.read_processes as they travel.
PROCESSES = pa.schema(
    _make_fields(
        PROCESS,
        {
            "threads": pa.list_(pa.struct(_make_fields(THREAD, {}))),
            "collectives": pa.list_(pa.struct(_make_fields(COLLECTIVE, {}))),
        },
    )
)
