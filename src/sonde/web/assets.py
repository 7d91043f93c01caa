"""The files of the page: as a browser fetches them, or all in one."""

from __future__ import annotations

import base64
import hashlib
import os
import re

# In the order in which they are run: each uses what those before it define.
SCRIPTS = ("words.js", "state.js", "wire.js", "sums.js", "ribbon.js", "flame.js", "lists.js",
           "modules.js", "heat.js", "machine.js", "sql.js", "save.js", "main.js")  # fmt: skip
KINDS = {"html": "text/html; charset=utf-8", "css": "text/css; charset=utf-8",
         "js": "text/javascript; charset=utf-8"}  # fmt: skip
# Names are shown as text and never as HTML: with trusted types, a browser refuses anything else.
POLICY = (
    "default-src 'none'; script-src {script}; style-src {style}; connect-src {connect}; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
SERVED_POLICY = POLICY.format(script="'self'", style="'self'", connect="'self'")


def read_asset(name: str) -> str:
    """Return the text of a file of the page."""
    with open(os.path.join(os.path.dirname(__file__), "page", name), encoding="utf-8") as file:
        return file.read()


def read_script() -> str:
    """Return all scripts as one."""
    return '"use strict";\n' + "\n".join(map(read_asset, SCRIPTS))


def make_files() -> dict[str, tuple[str, bytes]]:
    """Return what is served: by path, its kind and its bytes."""
    return {
        "/": (KINDS["html"], _fill(read_asset("page.html"), "", "").encode()),
        "/page.css": (KINDS["css"], read_asset("page.css").encode()),
        "/page.js": (KINDS["js"], read_script().encode()),
    }


def make_single(data: bytes) -> str:
    """Return the page as one file, with data inside that no browser takes for HTML or script."""
    style, script = read_asset("page.css"), read_script()
    policy = POLICY.format(script=_hash(script), style=_hash(style), connect="'none'")
    policy = policy.replace(" frame-ancestors 'none';", "")  # which a file cannot ask for
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style>'
    body = (
        f'<script type="application/octet-stream" id="inside">{base64.b64encode(data).decode()}'
        f"</script>\n<script>{script}</script>"
    )
    page = re.sub(r'<link rel="stylesheet"[^>]*>|<script src=[^>]*></script>', "",
                  read_asset("page.html"))  # fmt: skip
    return _fill(page, head, body)


def _fill(page: str, head: str, body: str) -> str:
    return page.replace("<!--HEAD-->", head).replace("<!--BODY-->", body)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
