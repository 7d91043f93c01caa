"""Variables that the user asked to watch."""

from __future__ import annotations

from sonde.session.schema import column, f64, i64, text, u64


class Variable:
    """A watched variable at the end of a step."""

    RING_BYTES = 4 * 2**20
    t_ns: i64 = column("when", "ns")
    step: i64 = column("number of the step")
    func: text = column("function in which the variable is looked up")
    name: text = column("expression that is watched")
    value: text | None = column(
        "value as (shortened) text, if it is not a number; or why it is missing"
    )
    number: f64 | None = column("value, if it is a number or an array with one element")
    kind: text = column("type of the value; missing if there is no such variable (reported once)")
    shape: text | None = column("shape of an array: 8x128")
    dtype: text | None = column("element type of an array")
    device: text | None = column("device that an array is on")
    elements: u64 | None = column("elements of an array")
    seen: u64 | None = column(
        "elements that were examined, spread over the whole array; 0 if none could be"
    )
    least: f64 | None = column("smallest of the examined elements, ignoring NaN")
    largest: f64 | None = column("largest of the examined elements")
    mean: f64 | None = column("mean of the examined elements")
    nans: u64 | None = column("how many of the examined elements are NaN")


ROWS = (Variable,)
