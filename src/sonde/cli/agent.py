"""Answer for this host when a cluster is asked: sonde query JOB@CLUSTER, stacks, ps."""

from __future__ import annotations

import argparse
import os
import sys

from sonde.errors import ConfigError
from sonde.store.engine import limited

GROUP = "watch"
EXAMPLES = (
    "sonde agent                              for this machine only",
    "sonde agent --listen 0.0.0.0             for everybody who has the token; with TLS",
    "sonde agent --listen 10.0.0.7:7500 --allow-steer",
)
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_EVERYWHERE = ("0.0.0.0", "::")
_MEMORY = "1GiB"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--listen", metavar="ADDRESS[:PORT]", default="127.0.0.1",
                        help="where to listen (default: %(default)s, port 7434)")  # fmt: skip
    parser.add_argument("--allow-steer", action="store_true",
                        help="also let who asks change settings of recordings")  # fmt: skip
    parser.add_argument("--plain", action="store_true",
                        help="without TLS, on this machine only; ask plain://HOST")  # fmt: skip
    parser.add_argument("--memory", default=_MEMORY, metavar="SIZE",
                        help="the most memory a query may use (default: %(default)s)")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    # Only here: the help needs neither Arrow nor the credentials.
    from sonde.fleet import credentials
    from sonde.fleet.agent import AgentServer, double_memory, read_address
    from sonde.fleet.answers import Leave

    host, port = read_address(args.listen)
    if args.plain and host not in _LOOPBACK:
        raise ConfigError("--plain is for the loopback address; other machines are answered by TLS")
    folder = credentials.make_credentials()
    with limited(double_memory(args.memory)):
        server = AgentServer(host, port, Leave(args.memory, steer=args.allow_steer),
                             plain=args.plain)  # fmt: skip
        name = os.uname().nodename if host in _EVERYWHERE else host
        shown = f"{'plain://' if args.plain else ''}{name}:{server.port}"
        print(f"sonde agent answers: sonde ps @hosts:{shown}", flush=True)
        print(f"token and certificate are in {folder}; whoever has them may ask. Ctrl-C ends it.",
              file=sys.stderr, flush=True)  # fmt: skip
        server.serve()
    return 0
