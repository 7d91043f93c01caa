"""A training loop was profiled once, and the profiler stayed: it notes every operator of every step.

As in Lightning-AI/pytorch-lightning issue 10717."""

from __future__ import annotations

RULE, CAUSE = "debug_mode", "torch.profiler"
TWIN = True

if __name__ == "__main__":
    from contextlib import nullcontext

    import torch
    from loop import FIXED
    from torch.profiler import ProfilerActivity, profile
    from torch_loop import Examples, load, train

    watch = (
        nullcontext()
        if FIXED
        else profile(
            activities=[ProfilerActivity.CPU],
            record_shapes=True,
            profile_memory=True,
            with_stack=True,
        )
    )
    examples = load(Examples(lambda _index: torch.randn(64)))
    with watch:
        train(examples, repeats=2)
