"""What recording costs the program."""

from __future__ import annotations

from sonde.session.schema import column, f64, i64, text, u16, u32


class Overhead:
    """What recording costs the program; written at each change and every ten seconds of steps."""

    SCHEMA = "sonde"
    RING_BYTES = 2**18
    t_ns: i64 = column("when", "ns")
    step: i64 = column("last step that was taken into account")
    source: text = column("source whose cost this is")
    overhead_pct: f64 | None = column(
        "how much longer steps take, compared with neighbouring steps that were not recorded",
        "%",
    )
    low_pct: f64 | None = column("lower bound of overhead_pct (2 standard deviations)", "%")
    high_pct: f64 | None = column("upper bound of overhead_pct (2 standard deviations)", "%")
    direct_pct: f64 = column("time that recording measures in its own code: a lower bound", "%")
    budget_pct: f64 = column("how much recording may cost: torch.budget_pct; 0 means no limit", "%")
    level: u16 = column("how much is left out: 0 records everything, each level records less")
    plan: text = column("what is recorded at this level")
    compared_steps: u32 = column("unrecorded steps that were compared with their neighbours")


ROWS = (Overhead,)
