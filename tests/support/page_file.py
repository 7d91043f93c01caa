"""What is inside a page that is one file: the answers that it shows."""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64decode


def read_answers(page: str) -> dict[str, dict]:
    """The data of each answer that is JSON, by the name of its question."""
    packed = re.search(r'id="inside">([^<]*)<', page)
    assert packed
    whole = zlib.decompress(b64decode(packed[1]))
    at = 4 + int.from_bytes(whole[:4], "little")
    found = {}
    for name, kind, length in json.loads(whole[4:at]):
        if kind == "application/json":
            found[name] = json.loads(whole[at : at + length])["data"]
        at += length
    return found
