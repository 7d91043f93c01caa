"""A queue that two threads empty as fast as it fills: they wait for work, as they should."""

from __future__ import annotations

RULE = CAUSE = None

if __name__ == "__main__":
    import queue
    import threading
    import time

    from loop import until_over

    orders: queue.Queue[int | None] = queue.Queue(20)

    def consume() -> None:
        while (order := orders.get()) is not None:
            sum(range(order))

    consumers = [threading.Thread(target=consume) for _ in range(2)]
    for consumer in consumers:
        consumer.start()
    for _step in until_over():
        orders.put(2000)
        time.sleep(0.005)
    for _consumer in consumers:
        orders.put(None)
    for consumer in consumers:
        consumer.join()
