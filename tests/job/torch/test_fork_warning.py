"""Python warns of a fork in a process with threads; it must not because of ours."""

from __future__ import annotations

import sys

import pytest

from support.needs import need

need("torch")

# OpenBLAS and others end their threads at a fork, so the bare program may have threads and no warning.
PROGRAM = """
import os, warnings
import torch
layer = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(layer.parameters(), 0.1)
def step():
    layer(torch.ones(2, 8)).sum().backward()
    optimizer.step()
step()
step()
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    for _ in range(5):
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        step()
print(len(seen))
"""


@pytest.mark.skipif(sys.version_info < (3, 12), reason="this Python does not warn of forks")
def test_a_recorded_program_is_warned_of_forks_as_often_as_a_bare_one(run_anew) -> None:
    said = {on: run_anew(PROGRAM, SONDE=on, SONDE_COLLECTOR="off").stdout for on in ("0", "1")}
    assert said["0"] == said["1"]
