"""Network interfaces and RDMA ports: what they received and sent."""

from __future__ import annotations

import os
from collections.abc import Iterator

from sonde.collector.sensors._files import Past, Reader, Row
from sonde.tables.system import Network

ABOUT_PROCESSES = True  # its rows are about the recorded process or what it sees
_LOOPBACK = b"772"  # ARPHRD_LOOPBACK
_ETHERNET = b"1"
_WORD_BYTES = 4  # RDMA ports count words of four bytes


class Sensor:
    """Reads /proc/PID/net/dev and /sys/class/infiniband."""

    def __init__(self, reader: Reader) -> None:
        self._reader, self._past = reader, Past()
        self._rows: tuple[int, dict[int, list[Row]]] = (-1, {})  # of a reading, by namespace
        self._kinds: dict[int, dict[bytes, str]] = {}

    def read_machine(self) -> Iterator[Row]:
        """Yield rows about the RDMA ports."""
        base = f"{self._reader.sys}/class/infiniband"
        try:
            devices = sorted(os.listdir(base))
        except OSError:
            return
        for device in devices:
            try:
                ports = sorted(os.listdir(f"{base}/{device}/ports"))
            except OSError:
                continue
            for port in ports:
                yield from self._read_port(f"{device}/{port}", f"{base}/{device}/ports/{port}")

    def read_process(self, pid: int) -> Iterator[Row]:
        """Yield rows about the interfaces that a process sees, or the collector if `pid` is 0; none
        once it has ended."""
        folder = f"{self._reader.proc}/{pid or 'self'}"
        try:
            namespace = os.stat(f"{folder}/ns/net").st_ino
        except PermissionError:
            namespace = -pid  # another user's process: its namespace is unknown, maybe shared
        except OSError:
            return
        if self._rows[0] != self._reader.number:
            self._rows = (self._reader.number, {})
        if namespace not in self._rows[1]:
            self._rows[1][namespace] = list(self._read_interfaces(namespace, folder))
        yield from self._rows[1][namespace]

    def _read_interfaces(self, namespace: int, folder: str) -> Iterator[Row]:
        # Not kept open, because that would keep a container's network alive after its end.
        now, data = self._reader.read(f"{folder}/net/dev", keep=False)
        lines = dict(line.strip().partition(b":")[::2] for line in data.splitlines()[2:])
        kinds = self._kinds.setdefault(namespace, {})
        for gone in kinds.keys() - lines.keys():
            del kinds[gone]
            self._past.forget([(namespace, gone)])
        for name, rest in lines.items():
            if name not in kinds:
                kinds[name] = self._find_kind(folder, os.fsdecode(name))
            n = [int(word) for word in rest.split()]
            counts = [n[0], n[8], n[1], n[9], n[2] + n[10], n[3] + n[11]]
            grown = self._past.move((namespace, name), now, counts)
            if grown is not None:
                yield Network, (now, grown[0], os.fsdecode(name), kinds[name], *grown[1], namespace)

    def _find_kind(self, folder: str, name: str) -> str:
        # A sysfs shows the interfaces of the namespace that it was mounted in.
        for base in (os.path.join(folder, "root", "sys"), self._reader.sys):
            kind = _read_kind(f"{base}/class/net/{name}")
            if kind is not None:
                return kind
        return "loopback" if name == "lo" else "other"

    def _read_port(self, name: str, folder: str) -> Iterator[Row]:
        def count(*files: str) -> int:
            found = 0
            for file in files:
                try:
                    found += int(self._reader.read(f"{folder}/counters/{file}")[1])
                except (OSError, ValueError):  # a device may lack some of them
                    continue
            return found

        counts = [
            _WORD_BYTES * count("port_rcv_data"), _WORD_BYTES * count("port_xmit_data"),
            count("port_rcv_packets"), count("port_xmit_packets"),
            count("port_rcv_errors", "symbol_error", "local_link_integrity_errors"),
            count("port_xmit_discards"),
        ]  # fmt: skip
        now = self._reader.clock()
        grown = self._past.move(name, now, counts)
        if grown is not None:
            yield Network, (now, grown[0], name, "rdma", *grown[1], None)


def _read_kind(folder: str) -> str | None:
    try:
        with open(f"{folder}/type", "rb") as file:
            kind = file.read().strip()
    except OSError:
        return None
    if kind == _LOOPBACK:
        return "loopback"
    if os.path.exists(f"{folder}/wireless") or os.path.exists(f"{folder}/phy80211"):
        return "wireless"
    if "/virtual/" in os.path.realpath(folder):
        return "virtual"
    return "ethernet" if kind == _ETHERNET else "other"
