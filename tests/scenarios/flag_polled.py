"""A player looks at a flag, again and again, until another thread has the next frame.

As in openthread/pyspinel issue 24."""

from __future__ import annotations

RULE, CAUSE = "costly_calls", "asks again and again"
LINE = "next_frame"
ALSO = ("gil_bound",)
TWIN = True

if __name__ == "__main__":
    import threading
    import time

    from loop import FIXED, until_over

    class Decoder(threading.Thread):
        """Has a frame every tenth of a second, if the last one was taken."""

        frame, changed = 0, threading.Condition()

        def run(self) -> None:
            for step in until_over():
                time.sleep(0.1)
                with self.changed:
                    self.frame = step + 1
                    self.changed.notify()

    class Player:
        def __init__(self, decoder: Decoder) -> None:
            self.decoder = decoder

        def next_frame(self) -> int:
            if FIXED:
                with self.decoder.changed:
                    while not self.decoder.frame and self.decoder.is_alive():
                        self.decoder.changed.wait(1.0)
            else:
                while not self.decoder.frame:
                    pass
            frame, self.decoder.frame = self.decoder.frame, 0
            return frame

    decoder = Decoder(daemon=True)
    decoder.start()
    player = Player(decoder)
    for _step in until_over():
        player.next_frame()
