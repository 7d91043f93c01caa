"""A small shop: it keeps all orders in memory, and takes new ones as fast as it can.

sonde run orders.py --seconds 10
"""

import argparse
import hashlib
import time

import sonde


class Shop:
    """Orders that were paid."""

    def __init__(self, count):
        self.orders = [{"number": number, "items": [number]} for number in range(count)]

    def sell(self):
        """Take one order, and write a receipt."""
        order = {"number": len(self.orders), "items": list(range(5))}
        self.orders.append(order)
        return self.sign(order)

    def sign(self, order):
        """Make a receipt that nobody can forge."""
        receipt = repr(order).encode()
        for _round in range(2000):
            receipt = hashlib.sha256(receipt).digest()
        return receipt


def main(seconds):
    """Open the shop for a while; prints how long a customer waited."""
    shop = Shop(200_000)
    end, latest = time.thread_time() + seconds, time.monotonic() + 4 * seconds
    took = []
    while time.thread_time() < end and time.monotonic() < latest:  # longer on a busy machine
        start = time.monotonic()
        with sonde.span("order"):
            shop.sell()
        took.append(time.monotonic() - start)
    print(f"an order takes {1e3 * sum(took) / len(took):.1f} ms")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="default: %(default)g")
    main(parser.parse_args().seconds)
