"""The search for a NaN is over, and its aid is still on: each operator is traced, and each gradient
checked."""

from __future__ import annotations

RULE, CAUSE = "debug_mode", "anomaly mode"
TWIN = True

if __name__ == "__main__":
    import torch
    from loop import FIXED
    from torch_loop import train

    torch.autograd.set_detect_anomaly(not FIXED)
    train([torch.randn(8, 512)])
