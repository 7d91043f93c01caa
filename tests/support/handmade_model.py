"""Steps of models made by hand: every time is known, the session and the SQL are real."""

from __future__ import annotations

from dataclasses import dataclass, field

from sonde.job.recorder import recorder
from sonde.tables.torch import TorchModule, TorchStep, TorchTrace

MS = 10**6


@dataclass
class Part:
    """A module: how long it works itself, forward and backward, and what it calls."""

    name: str
    type: str = "Linear"
    forward_ms: float = 1.0
    backward_ms: float = 2.0
    inside: list[Part] = field(default_factory=list)
    recompute_ms: float = 0.0  # it is checkpointed, and this is its own time
    device_ms: float | None = None
    allocated: float | None = None

    def sum(self, own: str) -> float:
        return getattr(self, own) + sum(part.sum(own) for part in self.inside)


def make_gpt(blocks: int = 3, slower: float = 1.0) -> Part:
    """A model whose list of blocks is never called itself."""
    made = []
    for at in range(blocks):
        name = f"GPT.blocks.{at}"
        inside = [
            Part(f"{name}.attn", "Attention", 2 * slower, 4),
            Part(f"{name}.mlp", "MLP", 3, 6),
        ]
        made.append(Part(name, "Block", 1, 1, inside))
    return Part("GPT", "GPT", 0.5, 0.25, [Part("GPT.emb", "Embedding", 1, 2), *made])


class Job:
    """Writes what the source `torch` writes, into the recording that is on."""

    def __init__(self, now_ns: int) -> None:
        self.now_ns = now_ns
        self.trace = recorder.open_table(TorchTrace, "python.torch_trace")
        self.step_row = recorder.open_table(TorchStep, "python.torch_step")
        self.module_row = recorder.open_table(TorchModule, "python.torch_module")
        self._rows: list[list[object]] = []
        self._calls: dict[tuple[str, str], int] = {}
        self._known: set[str] = set()

    def step(
        self, number: int, *models: Part, optimizer_ms: float = 2.0, other_ms: float = 1.0,
        input_ms: float = 0.5, unrecorded: bool = False, backward: bool = True, first_seq: int = 0,
        timed: str = "forward backward", known: bool = True, training: bool = True,
    ) -> None:  # fmt: skip
        """One step: wait for input, every model forward, backward, the optimizer. The device is
        timed in the stages of `timed`; backward is not known by module unless `known`."""
        begin_ns, self._rows, self._calls, self._timed = self.now_ns, [], {}, timed
        self.now_ns += round(input_ms * MS)
        for model in models:
            self._run(model, "forward", 0, None)
        if backward:
            for model in models:
                self._run(model, "backward", 0, None)
        self._emit_row("AdamW", "step", self.now_ns, optimizer_ms, optimizer_ms, 0, Part("AdamW"))
        self.now_ns += round((optimizer_ms + other_ms) * MS)
        if not unrecorded:
            for seq, row in enumerate(self._rows):
                if seq >= first_seq and (known or row[1] != "backward"):
                    self.trace(number, seq, *row)
        spent = [sum(model.sum(f"{stage}_ms") for model in models) if stage == "forward" or backward
                 else 0.0 for stage in ("forward", "backward", "recompute")]  # fmt: skip
        self.step_row(
            number, begin_ns, self.now_ns - begin_ns, round(input_ms * MS), 0, round(spent[0] * MS),
            round((spent[1] + spent[2]) * MS), round(optimizer_ms * MS), round(other_ms * MS),
            "optimizer", unrecorded, 0 if unrecorded else len(self._rows), 0,
            90.0 if backward and known else None, training, len(models), int(backward), None,
        )  # fmt: skip

    def _run(self, part: Part, stage: str, depth: int, above: str | None) -> None:
        own = getattr(part, f"{stage}_ms")
        begin_ns, at = self.now_ns, len(self._rows)
        self._rows.append([])
        self.now_ns += round(own * MS)
        if stage == "backward" and part.recompute_ms:
            self._run_again(part, 0)
        for inner in part.inside:
            self._run(inner, stage, depth + 1, part.name)
        call = self._calls.get((part.name, stage), 0)
        self._calls[part.name, stage] = call + 1
        self._rows[at] = self._make(
            part.name, stage, begin_ns, (self.now_ns - begin_ns) / MS, own, depth, part, call
        )
        if part.name not in self._known:
            self._known.add(part.name)
            self.module_row(self.now_ns, part.name, part.type, 100, 100, "float32", "cpu", above)

    def _run_again(self, part: Part, depth: int) -> None:
        """A checkpointed module, forward again: nothing calls it."""
        self._run(Part(part.name, part.type, inside=part.inside, recompute_ms=part.recompute_ms),
                  "recompute", depth, None)  # fmt: skip

    def _emit_row(self, name, stage, begin_ns, dur_ms, own_ms, depth, part) -> None:
        self._rows.append(self._make(name, stage, begin_ns, dur_ms, own_ms, depth, part, 0))

    def _make(self, name, stage, begin_ns, dur_ms, own_ms, depth, part, call) -> list[object]:
        is_timed = part.device_ms is not None and stage in self._timed
        device = part.device_ms / 1e3 if is_timed else None
        return [
            name, stage, part.allocated, part.allocated, part.allocated, dur_ms / 1e3, begin_ns,
            device, own_ms / 1e3, None if device is None else "cuda:0", 1, depth, call, False,
            is_timed, None,
        ]  # fmt: skip
