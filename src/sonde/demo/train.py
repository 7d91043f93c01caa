"""A small transformer that learns to write the text of this file, letter by letter.

sonde run examples/train.py            # seconds on a CPU; --device cuda, if there is one
sonde modules PID                      # where the time of a step goes; also while it runs
"""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

CONTEXT = 64  # letters that are seen at once


class Text(Dataset):
    """Every stretch of a text, and the same one letter later."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            text = file.read()
        self.letters = sorted(set(text))
        self.data = torch.tensor([self.letters.index(letter) for letter in text])

    def __len__(self):
        return len(self.data) - CONTEXT

    def __getitem__(self, at):
        return self.data[at : at + CONTEXT], self.data[at + 1 : at + CONTEXT + 1]


class Attention(nn.Module):
    """Each letter looks at those before it."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, letters, width = x.shape
        shape = (batch, letters, 3, self.heads, width // self.heads)
        query, key, value = self.qkv(x).view(shape).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(seen.transpose(1, 2).reshape(batch, letters, width))


class Block(nn.Module):
    """Attention, then two layers for each letter by itself."""

    def __init__(self, width, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Letters in, a guess of the next letter out."""

    def __init__(self, letters, width=64, depth=4, heads=4):
        super().__init__()
        self.letter = nn.Embedding(letters, width)
        self.place = nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, letters)

    def forward(self, text):
        x = self.letter(text) + self.place(torch.arange(text.shape[1], device=text.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def iter_batches(loader):
    """Batches without end."""
    while True:
        yield from loader


def train(seconds, device):
    """Learn for a while; prints the loss now and then."""
    torch.manual_seed(0)
    text = Text(__file__)
    loader = DataLoader(text, batch_size=8, shuffle=True)
    model = GPT(len(text.letters)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    end, latest = time.thread_time() + seconds, time.monotonic() + 4 * seconds
    for step, (letters, following) in enumerate(iter_batches(loader)):
        guess = model(letters.to(device))
        loss = functional.cross_entropy(guess.flatten(0, 1), following.to(device).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        over = time.thread_time() > end or time.monotonic() > latest  # longer on a busy machine
        if step % 50 == 0 or over:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
        if over:
            return


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="default: %(default)g")
    parser.add_argument("--device", default="cpu", help="default: %(default)s")
    arguments = parser.parse_args()
    train(arguments.seconds, arguments.device)
