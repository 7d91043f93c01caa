"""A build script that waits for one long program at a time: there is nothing to do meanwhile."""

from __future__ import annotations

RULE = CAUSE = None

if __name__ == "__main__":
    import subprocess

    from loop import until_over

    for _step in until_over():
        subprocess.run(["sleep", "1.5"], check=True)
