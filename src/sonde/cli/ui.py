"""Open a page in the browser that shows the whole job: live, or as it was recorded."""

from __future__ import annotations

import argparse
import os
import sys
import webbrowser

from sonde import environ
from sonde.cli import _options
from sonde.session.files import Replacement, remove_quietly
from sonde.session.target import find_newest, find_sessions
from sonde.web.server import ADDRESS, PageServer

GROUP = "watch"
EXAMPLES = (
    "sonde ui 4242                            opens the browser; Ctrl-C ends it, not the job",
    "sonde ui job:train --no-browser          prints the link, and how to forward it over ssh",
    "sonde ui 4242 --allow-steer              the page may also change settings and show locals",
)
_REDIRECT = """\
<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={link}"><title>sonde</title><a href="{link}">sonde</a>
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.add_target(parser, "the recording to show (default: the newest)", optional=True)
    parser.add_argument("--port", type=int, metavar="N",
                        help="the port to listen on (default: a free one)")  # fmt: skip
    parser.add_argument("--no-browser", action="store_true", help="print the link and open nothing")
    parser.add_argument(
        "--allow-steer", action="store_true",
        help="let the page change settings, take snapshots and look at local variables and tasks "
        "of a live job (default: it only reads)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    target = args.target or find_newest(environ.find_root())
    find_sessions(target, environ.find_root())  # a wrong target is an error here, not on the page
    server = PageServer(target, args.port, may_steer=args.allow_steer)
    try:
        print(f"sonde shows {target} at {server.link}", flush=True)
        print(f"from another machine: ssh -L {server.server_port}:{ADDRESS}:{server.server_port} "
              f"{os.uname().nodename}, then open the same link. Ctrl-C ends it.",
              file=sys.stderr)  # fmt: skip
        if not args.no_browser:
            _open_browser(server)
        server.serve_forever()
    finally:
        server.close()
        remove_quietly(_name_redirect(server))
    return 0


def _name_redirect(server: PageServer) -> str:
    return os.path.join(environ.find_root(), f"ui-{server.server_port}.html")


def _open_browser(server: PageServer) -> None:
    """Open the link by way of a file that only its user can read: the arguments of a browser can
    be read by everyone."""
    path = _name_redirect(server)
    with Replacement(path) as hidden:
        descriptor = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(_REDIRECT.format(link=server.link))
    try:
        webbrowser.get()
    except webbrowser.Error:
        return  # the link is printed
    webbrowser.open(f"file://{path}")
