"""A web server that rests, and answers now and then: nothing is wrong."""

from __future__ import annotations

RULE = CAUSE = None

if __name__ == "__main__":
    import threading
    import time
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
    from urllib.request import urlopen

    from loop import until_over

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"page")

        def log_message(self, *_args: object) -> None:
            pass

    def ask() -> None:
        for step in until_over():
            time.sleep(0.2)
            urlopen(f"http://127.0.0.1:{server.server_port}/{step}").read()
        server.shutdown()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    threading.Thread(target=ask).start()
    server.serve_forever()
