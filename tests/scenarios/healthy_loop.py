"""The service of blocked_loop.py with an asynchronous call instead: nothing is wrong."""

from __future__ import annotations

RULE = CAUSE = None

if __name__ == "__main__":
    from blocked_loop import serve

    serve(blocks=False)
