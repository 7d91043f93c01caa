"""CPU and GPU take turns: the program prepares, then the GPU (which is not there) computes."""

from __future__ import annotations

RULE, CAUSE, GPU = "alternating", None, True
ALSO = ("low_gpu", "room_to_grow", "gpu_free")  # what is seen of it
OPTIONS, PIECE_S = {"host.every": "0.1"}, 4.0

if __name__ == "__main__":
    import hashlib
    import os
    import time
    from concurrent.futures import ThreadPoolExecutor

    from loop import show_gpu, until_over

    cores, piece = len(os.sched_getaffinity(0)), bytes(2**20)

    def prepare(end: float) -> None:
        while time.monotonic() < end:
            hashlib.sha256(piece).digest()  # without the GIL

    with ThreadPoolExecutor(cores) as pool:
        for _step in until_over():
            show_gpu(3)
            list(pool.map(prepare, [time.monotonic() + 0.5] * cores))
            show_gpu(95)
            time.sleep(0.5)
