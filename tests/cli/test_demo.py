"""The demo on a machine that is busy with other work, and one that is too short to tell anything."""

from __future__ import annotations

from argparse import Namespace
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


def test_a_demo_that_is_too_short_for_a_second_step_still_ends(
    root: Path, capfd, monkeypatch
) -> None:
    """Its last questions have no answer then. To import torch twice would take most of a minute."""
    root.mkdir()
    monkeypatch.setenv("SONDE_COLLECTOR", "off")
    monkeypatch.setattr(demo, "_TRAIN", demo._ORDERS)
    monkeypatch.setattr(demo, "find_spec", lambda _name: True)
    assert demo.run(Namespace(plain=False, duration=0.001)) == 0
    printed = capfd.readouterr()
    assert "And now, module by module?" in printed.out and "Open the page" in printed.out
    assert "is too short; it takes at least" in printed.err
