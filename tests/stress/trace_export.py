"""Export many events: how long it takes, and how much memory.

    python tests/stress/trace_export.py [EVENTS]        default: a million

A program records so many regions and counters, slowly enough that none is lost; then they are exported
in both formats, and opened: JSON is parsed, protobuf is counted packet by packet."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAM = """
import sonde, sys, time
sonde.start()
outer, inner, value = sonde.span("outer"), sonde.span("inner"), sonde.counter("value")
done = 0
while done < int(sys.argv[1]):
    for number in range(4000):
        outer.start()
        inner.start(); inner.stop()
        inner.start(); inner.stop()
        value.set_value(number)
        outer.stop()
    done += 16000
    time.sleep(0.06)
print(done)
"""


def main() -> int:
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 10**6
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SONDE_DIR"] = str(Path(folder) / "sonde")
        made = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(events)], capture_output=True, text=True, check=True
        )
        written = int(made.stdout)
        (session,) = [
            p for p in Path(os.environ["SONDE_DIR"]).iterdir() if (p / "meta.json").exists()
        ]
        deadline = time.monotonic() + 60
        while not (session / "sealed.json").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        bad = 0
        for to, check in (("chrome", count_json), ("perfetto", count_packets)):
            path = Path(folder) / "out"
            begun, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "sonde",
                    "export",
                    str(session),
                    "--to",
                    to,
                    "-o",
                    str(path),
                ],
                check=True,
            )
            took, now = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
            found = check(path) if events <= 2 * 10**6 else None
            print(f"{to}: {written:,} events, {took:.1f} s ({cpu:.1f} s of CPU), "
                  f"{path.stat().st_size / 1e6:.0f} MB, at most {now.ru_maxrss / 1024:.0f} MB of "
                  f"memory so far, {found} found", flush=True)  # fmt: skip
            bad |= found is not None and found != written
            path.unlink()
        return bad


def count_json(path: Path) -> int:
    events = json.loads(path.read_bytes())["traceEvents"]
    return sum(event["name"] in ("outer", "inner", "value") for event in events)


def count_packets(path: Path) -> int:
    """Ends of slices of our regions, and values of our counter."""
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

    trace = protos.Trace()
    trace.ParseFromString(path.read_bytes())
    names: dict[int, str] = {}
    tracks: dict[int, str] = {}
    found = 0
    for packet in trace.packet:
        names |= {one.iid: one.name for one in packet.interned_data.event_names}
        if packet.HasField("track_descriptor"):
            tracks[packet.track_descriptor.uuid] = packet.track_descriptor.name
        event = packet.track_event
        if event.type == event.TYPE_SLICE_BEGIN:
            found += names[event.name_iid] in ("outer", "inner")
        elif event.type == event.TYPE_COUNTER:
            found += tracks[event.track_uuid] == "value"
    return found


if __name__ == "__main__":
    sys.exit(main())
