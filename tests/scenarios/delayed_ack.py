"""A client sends the head and the body of a message with two calls, and then waits for the answer.

As in reports of 40 ms a call to Thrift, Redis and HTTP servers: Nagle's algorithm and delayed
acknowledgements."""

from __future__ import annotations

RULE, CAUSE = "places", "acknowledgement"
LINE = "read"
TWIN = True

if __name__ == "__main__":
    import os
    import socket

    from loop import FIXED, burn, until_over

    def answer_all(server: socket.socket) -> None:
        connection, _ = server.accept()
        file = connection.makefile("rb")
        while head := file.read(4):
            file.read(int.from_bytes(head, "big"))
            connection.sendall(b"okay")

    class Client:
        def __init__(self, port: int) -> None:
            self.socket = socket.create_connection(("127.0.0.1", port))

        def call(self, body: bytes) -> bytes:
            head = len(body).to_bytes(4, "big")
            if FIXED:
                self.socket.sendall(head + body)
            else:
                self.socket.sendall(head)
                self.socket.sendall(body)
            return self.read(4)

        def read(self, count: int) -> bytes:
            found = b""
            while len(found) < count:
                found += self.socket.recv(count - len(found))
            return found

    server = socket.create_server(("127.0.0.1", 0))
    if os.fork() == 0:
        answer_all(server)
        os._exit(0)
    client = Client(server.getsockname()[1])
    for _step in until_over():
        client.call(b"x" * 200)
        burn(0.001)
    client.socket.close()
    os.wait()
