"""Each report is sent to a host that does not answer, as behind a firewall that drops what it does
not allow."""

from __future__ import annotations

RULE, CAUSE, LINE, TWIN = "costly_calls", "nobody answers", "send", True

if __name__ == "__main__":
    import socket

    from loop import FIXED, burn, until_over

    server = socket.create_server(("127.0.0.1", 0), backlog=0)  # accepts nobody
    waiting = [socket.socket() for _ in range(3)]  # and has no room for more
    for one in waiting:
        one.setblocking(False)
        one.connect_ex(server.getsockname())
    away = False

    def send(report: str) -> None:
        global away
        try:
            with socket.create_connection(server.getsockname(), timeout=1.2) as connection:
                connection.sendall(report.encode())
        except OSError:
            away = True

    for step in until_over():
        burn(0.05)
        if not (FIXED and away):
            send(f"step {step}")
