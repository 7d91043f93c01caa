"""TARGET@CLUSTER: which hosts it names. Nothing here needs Arrow."""

from __future__ import annotations

import os
from typing import NamedTuple

from sonde import plugins
from sonde.errors import ConfigError

CLUSTER_TIMEOUT_S = 10.0


class Cluster(NamedTuple):
    """A target, and the hosts that are to be asked for it."""

    target: str
    hosts: list[str]


def find_cluster(target: str | None) -> Cluster | None:
    """Return what TARGET@CLUSTER names; None if a target is of this machine."""
    before, at, after = (target or "").rpartition("@")
    name, _colon, value = after.partition(":")
    if not at or os.path.exists(target or "") or name not in plugins.list_names("fleet.discovery"):
        return None
    hosts = list(dict.fromkeys(plugins.load("fleet.discovery", name).list_hosts(value)))
    if not hosts:
        raise ConfigError(f"@{after} names no hosts; {plugins.read_help('fleet.discovery', name)}")
    return Cluster(before or "all", hosts)
