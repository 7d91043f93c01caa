"""Four readers fill a queue faster than its one writer empties it, which compresses each record on
its own, as in the questions why a bounded queue.Queue "blocks" its producers (Stack Overflow). The
twin writes many records at once, and its readers have other things to do."""

from __future__ import annotations

RULE, CAUSE, LINE, TWIN = "full_queue", "whoever takes from it is slower", "compress", True
ALSO = ("costly_calls",)

if __name__ == "__main__":
    import json
    import lzma
    import queue
    import threading
    import time

    from loop import FIXED, until_over

    records: queue.Queue[dict[str, object] | None] = queue.Queue(50)
    done = threading.Event()

    def compress(data: bytes) -> bytes:
        return lzma.compress(data)

    def write() -> None:
        kept: list[object] = []
        while (record := records.get()) is not None:
            kept.append(record)
            if not FIXED or len(kept) == 500:
                compress(json.dumps(kept).encode())
                kept.clear()

    def read(number: int) -> None:
        at = 0
        while not done.is_set():
            at += 1
            records.put({"reader": number, "at": at, "text": f"{number * at:x}" * 40})
            if FIXED:
                time.sleep(0.005)

    writer = threading.Thread(target=write, name="writer")
    readers = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    for thread in (writer, *readers):
        thread.start()
    for _ in until_over():
        time.sleep(0.1)
    done.set()
    for thread in readers:
        thread.join()
    records.put(None)
    writer.join()
