"""What recording costs, as a table."""

from __future__ import annotations

from sonde.session.schema import column, f64, i64, text, u16, u32


class Overhead:
    """What recording costs the program: when it changed, and every ten seconds of steps."""

    SCHEMA = "sonde"
    RING_BYTES = 2**18
    t_ns: i64 = column("when", "ns")
    step: i64 = column("the last step that counts")
    source: text = column("whose recording")
    overhead_pct: f64 | None = column(
        "how much longer steps take, by comparison with steps beside them that were not recorded",
        "%",
    )
    low_pct: f64 | None = column("it is hardly less than this (2 standard deviations)", "%")
    high_pct: f64 | None = column("it is hardly more than this", "%")
    direct_pct: f64 = column("time in the recording itself, as it measures it: a lower bound", "%")
    budget_pct: f64 = column("what it may cost: torch.budget_pct; 0: no limit", "%")
    level: u16 = column("0 is everything; each level records less")
    plan: text = column("what is recorded at this level")
    shadow_steps: u32 = column("steps without recording that were compared with their neighbours")


ROWS = (Overhead,)
