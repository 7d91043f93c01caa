"""Who holds memory of a GPU: with a stand-in for torch's allocator, and on a real device."""

from __future__ import annotations

import pytest

import sonde
from sonde.job.sources.cuda_memory import sum_places
from sonde.session import list_sessions
from support.needs import need, need_cuda

TORCH = "/lib/torch/"
SEGMENTS = [
    {
        "device": 0,
        "blocks": [
            {"state": "active_allocated", "size": 1024, "frames": [
                {"name": "linear", "filename": "/lib/torch/nn/functional.py", "line": 9},
                {"name": "forward", "filename": "/job/net.py", "line": 7},
                {"name": "<module>", "filename": "/job/train.py", "line": 3},
            ]},
            {"state": "active_pending_free", "size": 512, "frames": [
                {"name": "load", "filename": "/job/data.py", "line": 5},
            ]},
            {"state": "active_allocated", "size": 2048, "frames": []},
            {"state": "inactive", "size": 4096, "frames": []},
        ],
    },
    {
        "device": 1,
        "blocks": [
            {"state": "active_allocated", "size": 64, "frames": [
                {"name": "load", "filename": "/job/data.py", "line": 5},
            ]},
            {"state": "active_allocated", "size": 64, "frames": [
                {"name": "load", "filename": "/job/data.py", "line": 5},
            ]},
        ],
    },
]  # fmt: skip
HOLDS = """
import torch, sonde
assert sonde.start(source_cuda_memory="on")
def hold():
    return torch.ones(1 << 20, device="cuda")             # line 5
kept = [hold() for _ in range(8)]
model = torch.nn.Linear(512, 512).cuda()                  # line 7
sonde.step()
sonde.stop()
assert not torch._C._cuda_isHistoryEnabled()
"""


def test_memory_belongs_to_the_innermost_line_that_is_not_of_torch() -> None:
    assert sum_places(SEGMENTS, TORCH) == {
        ("cuda:0", "forward", "/job/net.py", 7, "linear"): [1024, 1],
        ("cuda:0", "load", "/job/data.py", 5, None): [512, 1],
        ("cuda:0", None, None, None, None): [2048, 1],
        ("cuda:1", "load", "/job/data.py", 5, None): [128, 2],
    }


def test_without_cuda_the_source_says_so(run_torch, root) -> None:
    need("torch")
    code = "import sonde\nsonde.start(source_cuda_memory='on')\nimport torch\nsonde.stop()\n"
    if run_torch(code + "print(torch.version.cuda)").stdout != "None\n":
        pytest.skip("this torch was built for CUDA")
    (session,) = list_sessions(str(root))
    rows = sonde.open(session.folder).query(
        "SELECT state FROM sonde.source_log WHERE source = 'cuda_memory' AND state = 'unavailable'"
    )
    assert rows.num_rows == 1


def test_a_real_device_names_the_lines_that_hold_its_memory(run, root) -> None:
    need_cuda()
    run(HOLDS)
    (session,) = list_sessions(str(root))
    rows = (
        sonde.open(session.folder)
        .query(
            "SELECT lineno, SUM(alive_bytes)::BIGINT AS bytes FROM python.cuda_memory "
            "WHERE t_ns = (SELECT MIN(t_ns) FROM python.cuda_memory) GROUP BY 1"
        )
        .to_pylist()
    )
    held = {row["lineno"]: row["bytes"] for row in rows}
    assert held[5] == 8 * 4 * 2**20
    assert held[7] >= 512 * 512 * 4
