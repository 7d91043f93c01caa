"""A library waits for a device without giving the GIL away; the other threads stand still.

As in ndi-python issue 38."""

from __future__ import annotations

RULE, CAUSE = "gil_bound", "native call waits"
LINE = "find_sources"
TWIN = True

if __name__ == "__main__":
    import ctypes
    import threading
    import time

    from loop import FIXED, until_over

    library = (ctypes.CDLL if FIXED else ctypes.PyDLL)(None)

    def find_sources() -> None:
        library.usleep(300_000)

    def look() -> None:
        for _step in until_over():
            find_sources()
            time.sleep(0.05)

    threading.Thread(target=look, daemon=True).start()
    for _step in until_over():
        time.sleep(0.01)
