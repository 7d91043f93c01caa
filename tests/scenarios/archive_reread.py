"""Each item is read from an archive of numpy that holds all of them.

As in the questions in PyTorch's forum why np.load in __getitem__ is slow."""

from __future__ import annotations

RULE, CAUSE = "costly_calls", "Reading whole files"
LINE = "read_clip"
TWIN = True

if __name__ == "__main__":
    import tempfile

    import numpy as np
    from loop import FIXED, burn, until_over

    class Clips:
        def __init__(self, path: str) -> None:
            self.path = path
            self.clips = np.load(path)["clips"] if FIXED else None

        def read_clip(self, at: int) -> np.ndarray:
            if self.clips is not None:
                return self.clips[at]
            return np.load(self.path)["clips"][at]

    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/clips.npz"
        clips = np.random.default_rng(0).integers(0, 40, (1000, 256)).astype("float32")
        np.savez_compressed(path, clips=clips)
        source = Clips(path)
        for step in until_over():
            source.read_clip(step % 1000).mean()
            burn(0.002)
