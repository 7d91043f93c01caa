"""Record a few steps of a live PyTorch job in full: every operator and kernel."""

from __future__ import annotations

import argparse
import gzip
import os
import shutil
import sys
from collections.abc import Sequence

from sonde import environ
from sonde.analysis import capture
from sonde.cli import _options, _progress
from sonde.errors import Error
from sonde.fleet.hosts import Cluster, find_cluster
from sonde.session import captures, steering
from sonde.session.files import Replacement
from sonde.session.target import find_sessions

GROUP = "profile"
EXAMPLES = (
    "sonde capture 4242 --steps 3",
    "sonde capture train-7                      all ranks of a job, at the same steps",
    "sonde capture 4242 --duration 5s -o ops.json.gz",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.add_target(parser, "the live recording; of a job all ranks are captured at once",
                        cluster=True)  # fmt: skip
    how = parser.add_mutually_exclusive_group()
    _options.add_count(how, "--steps", what="how many steps (default: 3)", least=1)
    _options.add_span(how, "-d", "--duration",
                      what="a length of time instead, for programs without steps")  # fmt: skip
    _options.add_timeout(parser, "60s", "how long to wait for a step")
    parser.add_argument("--no-shapes", dest="shapes", action="store_false",
                        help="leave out the shapes of tensors; ends faster")  # fmt: skip
    parser.add_argument("--memory", action="store_true", help="also record every allocation")
    parser.add_argument("--stacks", action="store_true",
                        help="also record Python stacks; much slower")  # fmt: skip
    _options.add_output(parser, "also copy the trace to this file; .gz compresses it")


_LASTING = """\
sonde: from now on each launch on the GPU takes 1 to 2 µs longer until the program ends, as after
any use of torch.profiler, unless it was started with TEARDOWN_CUPTI=1 (CUDA 12.6 or newer)"""


def run(args: argparse.Namespace) -> int:
    timeout_s, duration_s = args.timeout, args.duration
    steps = None if duration_s is not None else 3 if args.steps is None else args.steps
    if "@" in args.target and (cluster := find_cluster(args.target)) is not None:
        return _ask_cluster(cluster, steps, args)
    options = captures.CaptureOptions(
        steps=steps, duration_s=duration_s, timeout_s=timeout_s, shapes=args.shapes,
        memory=args.memory, stacks=args.stacks,
    )  # fmt: skip
    targets = steering.select_alive(find_sessions(args.target, environ.find_root()))
    _check_output(args.output, len(targets))
    asked = capture.request_captures(targets, options)
    with _progress.Bar("capture", None) as bar:
        counting = capture.wait_for_captures(asked, timeout_s + (duration_s or 0), bar.set_title)
    return _report(counting, args.output)


def _ask_cluster(cluster: Cluster, steps: int | None, args: argparse.Namespace) -> int:
    from sonde.cli._cluster_jobs import capture_cluster  # Flight takes a while to import

    if args.output is not None:
        raise Error("-o takes one process; the traces of a cluster stay on their hosts")
    request = {"steps": steps, "duration_s": args.duration, "wait_s": args.timeout,
               "shapes": args.shapes, "memory": args.memory, "stacks": args.stacks}  # fmt: skip
    return capture_cluster(cluster, request, args.timeout + (args.duration or 0))


def _report(asked: Sequence[capture.CaptureRequest], output: str | None) -> int:
    """Print the path of every trace and a line for every failure; raise if all have failed."""
    paths, failures = [], []
    for one in asked:
        try:
            paths.append(one.find_file())
        except capture.CaptureFailed as error:
            failures.append(error)
    for path in paths:
        if output is not None:
            _copy(path, output)
        print(output or path)
    _tell_notes(asked)
    for failure in failures[: len(failures) if paths else -1]:
        print(f"sonde: {failure}", file=sys.stderr)
    if failures and not paths:
        raise failures[-1]
    if sys.stderr.isatty():
        print("`sonde export TARGET --to chrome` merges it with the samples; "
              "python.torch_op and python.torch_kernel hold its rows", file=sys.stderr)  # fmt: skip
    return 1 if failures else 0


def _tell_notes(asked: Sequence[capture.CaptureRequest]) -> None:
    """Print what a person should know of captures that have succeeded."""
    for one in asked:
        if one.state == captures.DONE and one.about.why:
            print(f"sonde: process {one.session.pid}: {one.about.why}", file=sys.stderr)
    if any(one.about.device == "cuda" for one in asked):
        print(_LASTING, file=sys.stderr)


def _check_output(output: str | None, count: int) -> None:
    """Refuse a file that cannot be written, before a capture is made for it."""
    if output is None:
        return
    if count > 1:
        raise Error("-o takes one process; without it each trace goes into its session folder")
    folder = os.path.dirname(output) or "."
    if os.path.isdir(output) or not os.access(folder, os.W_OK | os.X_OK):
        raise Error(f"{output} cannot be written; name a file in a folder of yours")


def _copy(path: str, output: str) -> None:
    """Copy a trace, as JSON or compressed, as the new name says."""
    pack = output.endswith(".gz") and not capture.is_packed(path)
    unpack = capture.is_packed(path) and not output.endswith(".gz")
    try:
        with (
            Replacement(output) as hidden,
            (gzip.open if unpack else open)(path, "rb") as source,
            (gzip.open if pack else open)(hidden, "xb") as file,
        ):
            shutil.copyfileobj(source, file, 2**20)
    except OSError as error:
        raise Error(f"{output}: {error.strerror or error}; the capture is {path}") from None
