"""The lines above the table of `sonde top`: no number of them is cut."""

from __future__ import annotations

from types import SimpleNamespace

from sonde.tui.header import describe_losses, describe_use

LOST = ["samples not taken in time: 73 of 5,002", "the text table is full: 1,000 names",
        "12 rows of python.gc_pause were overwritten"]  # fmt: skip


def test_what_was_lost_is_told_as_far_as_there_is_room_and_the_rest_is_counted() -> None:
    assert describe_losses(LOST, 200) == "lost: " + "; ".join(LOST)
    assert describe_losses(LOST, 80) == f"lost: {LOST[0]}; 2 more (? lists them)"
    assert describe_losses(LOST, 40) == "lost: 3 things (? lists them)"
    assert describe_losses([], 80) == ""


def test_the_use_of_the_machine_is_told_in_fewer_words_where_there_is_no_room() -> None:
    usage = {"user_pct": 1400.0, "system_pct": 47.0, "rss_bytes": 12 << 30, "threads": 128}
    process = SimpleNamespace(
        read_usage=lambda: usage, find_cost_pct=lambda: 1.25, interval_s=0.01,
        find_gil_pct=lambda _: 100.0,
    )  # fmt: skip
    wide, narrow = describe_use(process, 5.0, 160), describe_use(process, 5.0, 80)  # type: ignore[arg-type]
    assert "sampled every 10 ms  sonde 1.2% of a core" in wide
    assert len(narrow) <= 80 and "every 10 ms  sonde 1.2%" in narrow and "CPU 1447%" in narrow
