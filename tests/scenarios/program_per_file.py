"""A report that starts a program for each file, one after the other.

As in casperdcl/git-fame issue 131."""

from __future__ import annotations

RULE, CAUSE = "costly_calls", "one program after the other"
LINE = "count_lines"
TWIN = True

if __name__ == "__main__":
    import pathlib
    import subprocess
    import tempfile

    from loop import FIXED, burn, until_over

    def count_lines(paths: list[pathlib.Path]) -> int:
        done = subprocess.run(["wc", "-l", *paths], capture_output=True, text=True, check=True)
        return len(done.stdout.splitlines())

    def make_report(paths: list[pathlib.Path]) -> int:
        if FIXED:
            burn(0.1)
            return count_lines(paths)
        return sum(count_lines([path]) for path in paths)

    with tempfile.TemporaryDirectory() as folder:
        paths = [pathlib.Path(folder, f"{n}.txt") for n in range(40)]
        for path in paths:
            path.write_text("a line\n" * 100)
        for _step in until_over():
            make_report(paths)
