"""A native call that waits and does not give the GIL back: no other thread can run."""

from __future__ import annotations

RULE, CAUSE, ENDS = "hang", "holds the GIL", -9
LIMITS = {"hang.least_s": 2}

if __name__ == "__main__":
    import ctypes
    import os
    import threading
    import time

    from loop import SECONDS

    def beat() -> None:
        while True:
            time.sleep(0.01)

    if os.fork() == 0:  # another process ends it: no thread of its own could
        time.sleep(SECONDS)
        os.kill(os.getppid(), 9)
        os._exit(0)
    threading.Thread(target=beat, daemon=True).start()
    ctypes.PyDLL(None).sleep(1000)
