"""The nodes of a Ray cluster, asked of its dashboard: @ray, or @ray:HEAD:8265."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

from sonde import environ
from sonde.errors import Error

_PORT = 8265
_ASK_S = 10.0
_LONGEST = 1 << 24  # bytes of an answer


def list_hosts(value: str) -> list[str]:
    """Return the addresses of the nodes that are alive."""
    place = value.removeprefix("http://").rstrip("/") or "127.0.0.1"
    if not place.rpartition("]")[2].count(":"):
        place = f"{place}:{_PORT}"
    address = f"http://{place}/api/v0/nodes?limit=10000"
    # No proxy: a cluster's own machines are asked.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    token = environ.read_variables(["RAY_AUTH_TOKEN"]).get("RAY_AUTH_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        request = urllib.request.Request(address, headers=headers)
        with opener.open(request, timeout=_ASK_S) as answer:
            found = json.loads(answer.read(_LONGEST))
        nodes = found["data"]["result"]["result"]
        return [str(one["node_ip"]) for one in nodes if one["state"] == "ALIVE"]
    except urllib.error.HTTPError as error:
        raise Error(f"Ray's dashboard at {place} refuses: {error}; RAY_AUTH_TOKEN must be that of "
                    "the cluster, if it has one") from None  # fmt: skip
    except (OSError, ValueError) as error:
        raise Error(f"Ray's dashboard does not answer at {place}: {error}; write @ray:HEAD:8265"
                    ) from None  # fmt: skip
    except (KeyError, TypeError):
        raise Error(f"what answers at {place} is not Ray's dashboard") from None
