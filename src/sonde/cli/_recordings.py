"""What TARGET names for commands that ask it in SQL: here, in a shared place, or a cluster."""

from __future__ import annotations

from sonde.cli._missing import tell_hosts
from sonde.fleet.hosts import find_cluster
from sonde.store.recording import Recording, open_recording


def open_any(target: str, timeout_s: float) -> Recording:
    """Return the recording that a target names; `timeout_s` is for the hosts of a cluster."""
    if "@" in target and (cluster := find_cluster(target)) is not None:
        from sonde.fleet.recording import ClusterRecording  # Flight takes a while to import

        return ClusterRecording(cluster, timeout_s)
    return open_recording(target)


def tell_missing_hosts(recording: Recording) -> int:
    """Say on stderr which hosts of a cluster did not answer; return the exit code."""
    missing = getattr(recording, "missing", None)
    return 0 if missing is None else tell_hosts(missing)
