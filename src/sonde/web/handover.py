"""Files for other viewers, of the time that is brushed: made by `sonde export`, in its process."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping

import pyarrow as pa

from sonde import plugins
from sonde.errors import ConfigError, Error
from sonde.web.answer import PageAnswer
from sonde.web.own_process import run_module

_TIMEOUT_S = 300.0
_MOST_BYTES = 256 * 1024 * 1024  # which a browser can still take over


def read_export(target: str, asked: Mapping[str, str]) -> PageAnswer:
    """Return a file of a format, its name, and how people open it."""
    form = asked.get("to_format", "")
    if form not in plugins.list_names("export.formats"):
        raise ConfigError(f"{form!r} is not a format; `sonde export --help` lists them")
    exporter = plugins.load("export.formats", form)
    words = ["export", target, "--to", form]
    for option, name in (("--since", "from"), ("--until", "to")):
        if name in asked:
            words += [option, f"+{float(asked[name]) / 1e9:.9f}s"]
    with tempfile.TemporaryDirectory(prefix="sonde-ui-") as folder:
        path = os.path.join(folder, f"sonde{exporter.SUFFIX}")
        body = _run([*words, "-o", path], path)
    name = os.path.basename(path)
    data = {"name": name, "how": exporter.OPEN.format(file=name)}
    command = f"sonde {' '.join(words)} -o {name}"
    return PageAnswer(data, [f"-- `{command}` writes the same"], {"body": body})


def _run(words: list[str], path: str) -> pa.Array:
    too_late = f"the file was not done after {_TIMEOUT_S:g} s; brush less time"
    run_module("sonde", words, _TIMEOUT_S, too_late)
    if os.path.getsize(path) > _MOST_BYTES:
        raise Error("the file is larger than 256 MiB; brush less time, or use `sonde export`")
    with open(path, "rb") as file:
        body = file.read()
    return pa.Array.from_buffers(pa.uint8(), len(body), [None, pa.py_buffer(body)])
