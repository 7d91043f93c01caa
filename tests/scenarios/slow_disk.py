"""Workers that read small pieces from all over a file, past the page cache.

Where the file system knows no direct reads, or they are answered from memory (a fast disk, a
virtual one), each piece is waited for as a disk that turns, or one behind a network, would have
it: the kernel then sees a sleep, no I/O. What the worker does is the same: it waits."""

from __future__ import annotations

RULE, CAUSE = "input_bound", "I/O"

SIZE, PIECE, SEEK_S = 32 * 2**20, 4096, 0.004

if __name__ == "__main__":
    import mmap
    import os
    import random
    import tempfile
    import time

    from torch_loop import Examples, load, train

    def make_file() -> str:
        with tempfile.NamedTemporaryFile(delete=False) as file:
            file.write(os.urandom(SIZE))
            os.fsync(file.fileno())
        return file.name

    path = make_file()
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        fd = os.open(path, os.O_RDONLY)
    os.unlink(path)

    def read(_index: int) -> None:
        piece = mmap.mmap(-1, PIECE)
        end = time.monotonic() + 4 * SEEK_S
        for at in range(4):
            os.preadv(fd, [piece], random.randrange(SIZE // PIECE) * PIECE)
            time.sleep(max(0.0, end - (3 - at) * SEEK_S - time.monotonic()))

    train(load(Examples(read), num_workers=2))
