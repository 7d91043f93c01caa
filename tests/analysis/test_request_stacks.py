"""Where a request was: told by the samples of its own thread, and by the library that it called."""

from __future__ import annotations

import sys

PROGRAM = """
import json, socketserver, threading, time, urllib.request, wsgiref.simple_server
import sonde
class Server(socketserver.ThreadingMixIn, wsgiref.simple_server.WSGIServer): pass
class Quiet(wsgiref.simple_server.WSGIRequestHandler):
    def log_message(self, *_): pass
both, large = threading.Barrier(2), {n: [n] for n in range(20_000)}
def fetch(): time.sleep(0.6)
def shop(environ, start_response):
    both.wait(60)
    if environ["PATH_INFO"] == "/fetch": fetch()
    else:
        # No clock is read in between: on a busy machine that is where the kernel lets others go first.
        for _ in range(20): json.dumps(large, indent=1)
    start_response("200 OK", [])
    return [b"done"]
server = wsgiref.simple_server.make_server("127.0.0.1", 0, shop, Server, Quiet)
sonde.start(collector="off", source_request=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
def ask(path): urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}{path}").read()
asking = [threading.Thread(target=ask, args=(path,)) for path in ("/fetch", "/dump")]
for one in asking: one.start()
for one in asking: one.join()
server.shutdown()
"""


def test_two_requests_of_one_function_at_once_are_told_apart(run, sonde_cli) -> None:
    run(PROGRAM)
    slowest = sonde_cli("requests", "program.py").stdout.partition("the slowest")[2]
    # No calls of C functions are known on Python 3.10.
    sleeps = "time.sleep, called by fetch" if sys.version_info >= (3, 11) else "fetch"
    assert slowest.count(f"waiting in {sleeps} (") == 1, slowest
    assert slowest.count(" in json.dumps, called by shop (") == 1, slowest
