"""A loop adds its hooks to the model before each step and never takes one away.

As in EleutherAI/bergson pull request 55 and NeuroBench/neurobench issue 184."""

from __future__ import annotations

RULE, CAUSE = "slower_steps", "a hook of a module"
LINE = "note"
TWIN = True
ALSO = ("python_bound", "step_change")

if __name__ == "__main__":
    import torch
    from loop import FIXED, until_over
    from torch import nn
    from torch_loop import make_model

    torch.set_num_threads(1)

    class Watch:
        def __init__(self, model: nn.Module) -> None:
            self.model, self.mean = model, 0.0
            self.handles: list[object] = []

        def note(self, _module: nn.Module, _inputs: object, output: torch.Tensor) -> None:
            self.mean = 0.99 * self.mean + 0.01 * float(output.detach().abs().mean())

        def begin(self) -> None:
            for handle in self.handles if FIXED else ():
                handle.remove()
            layers = [layer for layer in self.model.modules() if isinstance(layer, nn.Linear)]
            self.handles = [layer.register_forward_hook(self.note) for layer in layers]

    model = make_model()
    watch = Watch(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.001)

    def train_step() -> None:
        watch.begin()
        optimizer.zero_grad()
        model(torch.randn(64, 512)).square().mean().backward()
        optimizer.step()

    for _step in until_over():
        train_step()
