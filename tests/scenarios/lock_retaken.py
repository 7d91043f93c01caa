"""A counter takes its lock, and then asks itself for its value, which takes the same lock.

As in apache/texera issue 4794."""

from __future__ import annotations

RULE, CAUSE = "deadlock", "itself"
LINE = "value"
TWIN, ENDS = True, -9
LIMITS = {"deadlock.least_s": 3}

if __name__ == "__main__":
    import threading

    from loop import FIXED, burn, end_later

    class Counter:
        def __init__(self) -> None:
            self._lock = threading.RLock() if FIXED else threading.Lock()
            self._value = 0

        @property
        def value(self) -> int:
            with self._lock:
                return self._value

        def add(self, number: int) -> None:
            with self._lock:
                self._value += number

        def take(self) -> int:
            with self._lock:
                taken, self._value = self.value, 0
                return taken

    counter = Counter()

    def work() -> None:
        while True:
            burn(0.01)
            counter.add(1)
            if counter.value > 100:
                counter.take()

    end_later()
    worker = threading.Thread(target=work, name="worker")
    worker.start()
    worker.join()
