"""The layouts of torch's own objects, as its headers tell them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from sonde.job.torch import seams

HEADER = """struct TORCH_API Node : c10::intrusive_ptr_target {
  // Sequence number used to correlate backward nodes with forward ops.
  uint64_t sequence_nr_;

  uint64_t topological_nr_ = 0;
  %s
  // The id of the thread that created this.
  uint64_t thread_id_ = 0;
};
"""


@pytest.mark.parametrize(
    ("between", "is_known"),
    [
        ("mutable bool has_parent_ = false;", True),
        # torch 2.15
        ("mutable bool has_parent_ = false;\n  bool node_creation_hooks_fired_ = false;", True),
        ("mutable bool has_parent_ = false;\n  uint64_t another_ = 0;", False),
        ("mutable bool has_parent_ = false;" + "\n  bool more_ = false;" * 8, False),
    ],
)
def test_a_nodes_layout_is_known_if_only_flags_lie_before_its_thread(
    tmp_path: Path, between: str, is_known: bool
) -> None:
    folder = tmp_path / "include/torch/csrc/autograd"
    folder.mkdir(parents=True)
    (folder / "node.h").write_text(HEADER % between)
    torch = SimpleNamespace(__file__=str(tmp_path / "__init__.py"))
    assert seams._has_known_nodes(torch) is is_known
