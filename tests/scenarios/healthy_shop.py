"""A web server under load that asks a database once for each request: nothing is wrong."""

from __future__ import annotations

RULE = CAUSE = None
ALSO = ("costly_calls",)

if __name__ == "__main__":
    import sqlite3
    import subprocess
    import sys
    import threading
    from http.server import BaseHTTPRequestHandler, HTTPServer

    from loop import SECONDS

    shop = sqlite3.connect(":memory:")
    shop.execute("CREATE TABLE item (id INTEGER, price REAL)")
    shop.executemany("INSERT INTO item VALUES (?, ?)", ((i % 500, i) for i in range(20_000)))

    class Shop(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            rows = shop.execute("SELECT AVG(price) FROM item WHERE id = ?", (int(self.path[1:]),))
            text = str(rows.fetchone()[0]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_args: object) -> None:
            pass

    CLIENT = """
    import http.client, sys, time
    client, end = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1])), time.time() + float(sys.argv[2])
    while time.time() < end:
        client.request("GET", "/7")
        client.getresponse().read()
    """

    def ask() -> None:
        """Ask from a process that is not recorded: it does ask one thing after the other."""
        code = "\n".join(line[4:] for line in CLIENT.splitlines())
        subprocess.run(
            [sys.executable, "-c", code, str(server.server_port), str(SECONDS)], env={}, check=True
        )
        server.shutdown()

    server = HTTPServer(("127.0.0.1", 0), Shop)
    threading.Thread(target=ask).start()
    server.serve_forever()
