"""Some agents of a cluster in one process, for bench_fleet.py: a process each would be 128 times
120 MB. They are real ones, each with the recordings of its own host, but for their stacks, which
are those of a job with 1,024 ranks.

Arguments: the number of the first agent, and the folders of recordings, one for each agent; prints
their ports."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

from sonde.fleet.agent import AgentServer
from sonde.fleet.answers import Leave
from sonde.fleet.protocol import PROCESSES

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from support.handmade_ranks import make_ranks

RANKS, EACH = 1024, 8


class _RankAgent(AgentServer):
    """Answers for eight ranks of a job."""

    rows: pa.Table

    def _work(self, asked: dict[str, Any]) -> pa.Table:
        return self.rows if asked["request"] == "stacks" else super()._work(asked)


def main() -> None:
    """Serve until the end of stdin."""
    first, folders = int(sys.argv[1]), sys.argv[2:]
    ranks, agents = make_ranks(RANKS), []
    for at, folder in enumerate(folders, first):
        agent = _RankAgent("127.0.0.1", 0, Leave("512MiB", steer=False, root=folder))
        agent.rows = pa.Table.from_pylist(ranks[EACH * at : EACH * (at + 1)], schema=PROCESSES)
        agents.append(agent)
    print(json.dumps([agent.port for agent in agents]), flush=True)
    sys.stdin.read()
    for agent in agents:
        agent.shutdown()


if __name__ == "__main__":
    main()
