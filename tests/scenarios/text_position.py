"""An index of the lines of a file: it asks the file before each line where it stands, in text mode.

As in questions about `tell()`, which makes reading a text file many times slower."""

from __future__ import annotations

RULE, CAUSE = "costly_calls", "where a text file stands"
LINE = "add"
TWIN = True

if __name__ == "__main__":
    import os

    from loop import FIXED, until_over

    class Offsets:
        def __init__(self) -> None:
            self.found: dict[str, int] = {}

        def add(self, path: str) -> None:
            if FIXED:
                self.add_bytes(path)
                return
            with open(path, encoding="utf-8") as file:
                while True:
                    at = file.tell()
                    line = file.readline()
                    if not line:
                        break
                    self.found[line.partition("\t")[0]] = at

        def add_bytes(self, path: str) -> None:
            at = 0
            with open(path, "rb") as file:
                for line in file:
                    self.found[line.decode().partition("\t")[0]] = at
                    at += len(line)

    path = os.environ["MEET"] + ".tsv"
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(f"{at}\tStraße {at % 99}\t{'übung ' * (at % 9)}\n" for at in range(5000))
    for _ in until_over():
        Offsets().add(path)
    os.unlink(path)
