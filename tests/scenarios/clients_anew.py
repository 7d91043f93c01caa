"""A new client for each request: each reads all certificates again.

As in httpx issue 3627 and ogx issue 4221."""

from __future__ import annotations

RULE, CAUSE = "costly_calls", "certificates"
LINE = "__init__"
TWIN = True

if __name__ == "__main__":
    import ssl
    import time

    from loop import FIXED, until_over

    class Client:
        def __init__(self) -> None:
            self.context = ssl.create_default_context()

    kept = Client()

    def fetch() -> None:
        client = kept if FIXED else Client()
        assert client.context.verify_mode
        time.sleep(0.002)

    for _step in until_over():
        fetch()
