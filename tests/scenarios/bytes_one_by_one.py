"""A client takes each answer from its socket byte by byte, until it meets the end of a line.

As in vertica/vertica-python issue 397."""

from __future__ import annotations

RULE, CAUSE = "costly_calls", "without a buffer"
LINE = "read_line"
TWIN = True

if __name__ == "__main__":
    import os
    import socket

    from loop import FIXED, until_over

    ours, theirs = socket.socketpair()
    if os.fork() == 0:  # the server
        ours.close()
        rows = b"".join(b"row %d of a long answer with many columns\n" % row for row in range(1000))
        try:
            while True:
                theirs.sendall(rows)
        except OSError:
            os._exit(0)
    theirs.close()
    stream = ours.makefile("rb", buffering=1 << 16)

    def read_line() -> bytes:
        if FIXED:
            return stream.readline()
        line = bytearray()
        while (byte := ours.recv(1)) != b"\n":
            line += byte
        return bytes(line)

    def fetch_rows() -> int:
        return sum(len(read_line().split()) for _row in range(1000))

    for _step in until_over():
        fetch_rows()
    ours.close()
