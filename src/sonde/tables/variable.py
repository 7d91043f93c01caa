"""Variables that the user asked to watch."""

from __future__ import annotations

from sonde.session.schema import column, f64, i64, text, u64


class Variable:
    """A watched variable at the end of a step."""

    RING_BYTES = 4 * 2**20
    t_ns: i64 = column("when", "ns")
    step: i64 = column("which step")
    func: text = column("the function it is looked for in")
    name: text = column("what is watched")
    value: text | None = column("what it is, if that is no number: cut; or why it is missing")
    number: f64 | None = column("what it is: a number, or an array that holds one")
    kind: text = column("its type; missing: it is not there, told once")
    shape: text | None = column("of an array: 8x128")
    dtype: text | None = column("of an array")
    device: text | None = column("where an array is")
    elements: u64 | None = column("numbers in an array")
    seen: u64 | None = column("how many were looked at, spread over all; 0: none could be")
    least: f64 | None = column("the least of those, NaN left out")
    largest: f64 | None = column("the largest of those")
    mean: f64 | None = column("the mean of those")
    nans: u64 | None = column("how many of those are NaN")


ROWS = (Variable,)
