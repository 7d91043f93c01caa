"""A thread is started for each message.

As in eternnoir/pyTelegramBotAPI issue 23."""

from __future__ import annotations

RULE, CAUSE = "costly_calls", "Starting one thread after the other"
LINE = "notify_all"
TWIN = True

if __name__ == "__main__":
    import threading

    from loop import FIXED, until_over

    class Notifier:
        def __init__(self) -> None:
            self.sent: list[int] = []

        def send(self, user: int) -> None:
            self.sent = [len(f"hello {user}" * 10)]

        def notify_all(self, users: range) -> None:
            if FIXED:
                for user in users:
                    self.send(user)
                return
            threads = [threading.Thread(target=self.send, args=(user,)) for user in users]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    notifier = Notifier()
    for _step in until_over():
        notifier.notify_all(range(50))
