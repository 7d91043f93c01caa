"""Pages are fetched one after the other from a server that takes its time.

As in achillean/shodan-python pull request 28."""

from __future__ import annotations

RULE, CAUSE = "costly_calls", "one network request after the other"
LINE = "fetch"
TWIN = True

if __name__ == "__main__":
    import os
    import threading
    import time
    from concurrent.futures import ThreadPoolExecutor
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
    from urllib.request import urlopen

    from loop import FIXED, until_over

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            time.sleep(0.03)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"page")

        def log_message(self, *_args: object) -> None:
            pass

    def fetch(number: int) -> bytes:
        with urlopen(f"http://127.0.0.1:{port}/{number}") as answer:
            return answer.read()

    def crawl(numbers: range) -> list[bytes]:
        return list(pool.map(fetch, numbers)) if FIXED else [fetch(number) for number in numbers]

    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    port = server.server_port
    if os.fork() == 0:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for _step in until_over():
            time.sleep(0.1)
        time.sleep(1)
        os._exit(0)
    pool = ThreadPoolExecutor(8)
    for _step in until_over():
        crawl(range(10))
    os.wait()
