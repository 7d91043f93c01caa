"""Each look at a link finds out anew where the root folder of all links leads.

As in got-feedBack/feedBack pull request 966 and ncoevoet/facet pull request 93."""

from __future__ import annotations

RULE, CAUSE = "costly_calls", "Asking the file system"
LINE = "is_inside"
TWIN = True

if __name__ == "__main__":
    import os
    from pathlib import Path

    from loop import FIXED, until_over

    root = Path(os.environ["MEET"]) / "site" / "pages" / "of" / "books"
    root.mkdir(parents=True)
    resolved = root.resolve()

    def is_inside(link: str) -> bool:
        if FIXED:
            return os.path.normpath(f"{resolved}/{link}").startswith(f"{resolved}/")
        return root.resolve() in (root / link).resolve().parents

    def check(links: list[str]) -> list[str]:
        return [link for link in links if not is_inside(link)]

    for step in until_over():
        check([f"chapter{step % 7}/../page{at}.html" for at in range(50)])
