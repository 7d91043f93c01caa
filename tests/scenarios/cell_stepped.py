"""A model steps a recurrent cell through time in Python.

As whoever needs the state of each step, which nn.LSTM returns as well."""

from __future__ import annotations

RULE, CAUSE = "inner_loop", "many times"
LINE = "forward"
ALSO = ("python_bound",)
TWIN = True

if __name__ == "__main__":
    import torch
    from loop import FIXED, until_over
    from torch import nn

    torch.set_num_threads(1)

    class Forecast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.whole = nn.GRUCell(8, 32), nn.GRU(8, 32, batch_first=True)

        def forward(self, series: torch.Tensor) -> torch.Tensor:
            if FIXED:
                return self.whole(series)[0]
            states = [torch.zeros(len(series), 32)]
            for moment in series.unbind(1):
                states.append(self.cell(moment, states[-1]))
            return torch.stack(states, 1)

    model = Forecast()
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    for _step in until_over():
        loss = model(torch.randn(32, 100, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
