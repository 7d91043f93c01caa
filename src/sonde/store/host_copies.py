"""Tables about a machine, of which every session of its host has a copy."""

from __future__ import annotations

import math

from sonde.store.rows import SessionTable


def leave_out_copies(tables: dict[str, list[SessionTable]]) -> dict[str, list[SessionTable]]:
    """Return tables with those about machines in as few parts as have all their rows."""
    return {
        name: _leave_out_covered(parts) if parts[0].schema.scope == "host" else parts
        for name, parts in tables.items()
    }


def _leave_out_covered(parts: list[SessionTable]) -> list[SessionTable]:
    """Return the parts without those of sessions that lie within the time of another one: every
    session has its own copy of the rows about its machine."""
    kept, ends_ns = [], dict[str, float]()
    for part in sorted(parts, key=lambda part: (part.session.start_wall_ns, -_find_end(part))):
        host, end_ns = part.session.host, _find_end(part)
        if end_ns <= ends_ns.get(host, 0):
            continue
        kept.append(part)
        if part.count_at_most():
            ends_ns[host] = end_ns
    return kept


def _find_end(part: SessionTable) -> float:
    sealed = part.session.read_sealed()
    return math.inf if sealed is None else sealed.end_wall_ns
