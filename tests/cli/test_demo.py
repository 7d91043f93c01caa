"""The demo on a machine that is busy with other work."""

from __future__ import annotations

from pathlib import Path

from sonde.cli import demo


def test_a_job_that_got_little_of_a_processor_is_said_to_have(
    root: Path, capfd, monkeypatch
) -> None:
    """Nobody can see what is wrong with a job that hardly ran."""
    root.mkdir()
    for used_s, is_told in (([5.0, 5.0], True), ([0.0, 1e6], False)):
        monkeypatch.setattr(demo, "_read_cpu", iter(used_s).__next__)
        program = demo._Program(demo._ORDERS, 0.001)
        program.write(slow=False)
        program.record()
        printed = capfd.readouterr().out
        assert "an order takes" in printed
        assert (demo.describe_starved(0.0) in printed) is is_told
