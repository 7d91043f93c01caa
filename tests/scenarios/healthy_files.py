"""A copy of many small files, compressed: that is what it is for."""

from __future__ import annotations

RULE = CAUSE = None
ALSO = ("costly_calls",)

if __name__ == "__main__":
    import gzip
    import pathlib
    import tempfile

    from loop import until_over

    with tempfile.TemporaryDirectory() as folder:
        paths = [pathlib.Path(folder, f"{n}.txt") for n in range(50)]
        for path in paths:
            path.write_text("some text, " * 2000)
        for _step in until_over():
            for path in paths:
                path.with_suffix(".gz").write_bytes(gzip.compress(path.read_bytes()))
