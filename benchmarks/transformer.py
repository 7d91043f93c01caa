"""Transformers to measure with: a step of training, on a CPU or on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """What a model is made of, and what it is given."""

    words: int
    width: int
    depth: int
    heads: int
    context: int
    batch: int


# Twelve modules a block. The small ones wait for Python and launches, the large one for the GPU.
CPU = Shape(words=256, width=64, depth=8, heads=4, context=32, batch=4)
LAUNCH = Shape(words=1000, width=128, depth=8, heads=4, context=64, batch=8)
GPU = Shape(words=32000, width=1024, depth=16, heads=16, context=1024, batch=16)
# So large that a profiler beside us does not make the device wait, or small operators count.
CPU_LARGE = Shape(words=1000, width=256, depth=4, heads=8, context=128, batch=4)
GPU_LARGE = Shape(words=32000, width=1024, depth=16, heads=16, context=1024, batch=32)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.drop = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        shape = (batch, length, 3, self.heads, width // self.heads)
        query, key, value = self.qkv(x).view(shape).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.drop(self.out(seen.transpose(1, 2).reshape(batch, length, width)))


class Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.act = nn.GELU()
        self.down = nn.Linear(4 * width, width)
        self.drop = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.down(self.act(self.up(x))))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = Mlp(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.word = nn.Embedding(shape.words, shape.width)
        self.place = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape.width, shape.heads) for _ in range(shape.depth))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.words, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.word(words) + self.place(torch.arange(words.shape[1], device=words.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def make_step(shape: Shape, device: str) -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    """A model, and what makes one step of training; bf16 and a fused optimizer on a GPU."""
    torch.manual_seed(0)
    cuda = device != "cpu"
    model = GPT(shape).to(device, torch.bfloat16 if cuda else torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=cuda)
    size = (shape.batch, shape.context)
    words, following = (torch.randint(0, shape.words, size, device=device) for _ in range(2))

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        guess = model(words)
        loss = functional.cross_entropy(guess.view(-1, shape.words), following.view(-1))
        loss.backward()
        optimizer.step()
        return loss

    return model, step
