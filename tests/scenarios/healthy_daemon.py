"""A daemon that looks for work twice a second: nothing is wrong."""

from __future__ import annotations

RULE = CAUSE = None

if __name__ == "__main__":
    import pathlib
    import tempfile
    import time

    from loop import burn, until_over

    with tempfile.TemporaryDirectory() as folder:
        for _step in until_over():
            for path in pathlib.Path(folder).glob("*.job"):
                path.unlink()
            burn(0.01)
            time.sleep(0.5)
