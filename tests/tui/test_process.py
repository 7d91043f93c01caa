"""Processes as `sonde top` reads them, once their rows are in the archive."""

from __future__ import annotations

from sonde.collector.drain import Drain, seal
from sonde.session import list_sessions
from sonde.tui.process import TopProcess, open_processes

PROGRAM = """
import sonde, time
sonde.start(collector='off', stack_every='2ms')
end = time.thread_time() + 0.2
while time.thread_time() < end: sum(range(100))
sonde.stop()
"""


def test_ended_processes_say_the_same_together_as_alone(run, root) -> None:
    for _ in range(2):
        run(PROGRAM)
    sessions = list(list_sessions(str(root)))
    for session in sessions:
        for path in session.find_rings():
            Drain(session, path).run(0.0, 0.0, ended=True)
        seal(session)
    together = open_processes(sessions)
    assert len(together) == 2
    for one in together:
        alone = TopProcess(one.session)
        found = one.weigh(5.0, "wall", idle=True)
        assert found.whole == alone.weigh(5.0, "wall", idle=True).whole > 0
        assert one.samples.newest == alone.samples.newest
        assert one.read_usage() == alone.read_usage()


class OldProcess(TopProcess):
    """One that has run for longer than its samples are kept at hand."""

    is_short = False


def test_idle_time_is_hidden_since_the_start_of_a_long_process_as_well(run, root) -> None:
    run(PROGRAM.replace("sonde.stop()", "time.sleep(0.3)\nsonde.stop()"))
    (session,) = list_sessions(str(root))
    short, old = TopProcess(session), OldProcess(session)
    everything = old.weigh(None, "wall", idle=True)
    working = old.weigh(None, "wall", idle=False)
    assert working.whole == short.weigh(None, "wall", idle=False).whole
    assert 0 < working.whole < everything.whole - 0.2e9
