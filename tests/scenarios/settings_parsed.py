"""A server with a thread for each request parses its file of settings in each of them.

As in backdrop/backdrop-issues issue 350 and esengine/DeepSeek-Reasonix pull request 2149."""

from __future__ import annotations

RULE, CAUSE = "costly_calls", "JSON"
LINE = "read_settings"
ALSO = ("gc_pauses",)  # what is parsed is many objects
TWIN = True

if __name__ == "__main__":
    import json
    import os
    import subprocess
    import sys
    import threading
    from functools import lru_cache
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
    from pathlib import Path

    from loop import FIXED, SECONDS

    CLIENT = """
import sys, time, urllib.request
while True:
    urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/").read()
    time.sleep(0.01)
"""
    file = Path(os.environ["MEET"] + ".json")
    shops = [{"name": f"shop {at}", "hours": list(range(30))} for at in range(6000)]
    file.write_text(json.dumps({"currency": "EUR", "shops": shops}))

    def read_settings() -> dict[str, object]:
        return json.loads(file.read_text())

    if FIXED:
        read_settings = lru_cache(read_settings)

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = str(read_settings()["currency"]).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    others = {key: value for key, value in os.environ.items() if not key.startswith("SONDE")}
    client = subprocess.Popen([sys.executable, "-c", CLIENT, str(server.server_port)], env=others)
    threading.Timer(SECONDS, server.shutdown).start()
    server.serve_forever()
    client.kill()
    client.wait()
