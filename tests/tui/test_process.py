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
